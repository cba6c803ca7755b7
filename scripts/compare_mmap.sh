#!/usr/bin/env bash
# usage: compare_mmap.sh MODEL [--limits "75 50"] [--tokens N] [--runs N] [--threads N] [--json]
# Decodes MODEL with --paging uffd and with --paging mmap in turn under the same hard memory limit, and prints medians.
# --help says more. Needs root (it makes a memory cgroup) and a built `weir`: build/, or the program that WEIR_BIN names.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
command -v python3 >/dev/null || die "python3 is missing"
exec env WEIR_BIN="${WEIR_BIN:-$weir_root/build/runtime/cli/weir}" \
    python3 "$weir_root/scripts/compare_mmap.py" "$@"
