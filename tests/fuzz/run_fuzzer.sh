#!/bin/sh
# usage: run_fuzzer.sh FUZZER CORPUS
# A few seconds of libFuzzer from the seed corpus, bounded in memory and in time per input. What it finds of interest goes
# to a scratch folder, an input that fails into the working folder.
set -eu
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$1" -max_total_time="${WEIR_FUZZ_SECONDS:-5}" -rss_limit_mb=1024 -timeout=10 -print_final_stats=1 "$scratch" "$2"
