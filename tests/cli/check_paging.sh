#!/usr/bin/env bash
# usage: check_paging.sh WEIR FOLDER
# scripts/check_paging.py on a synthetic model of 1.1 GiB, written into FOLDER and removed again.
set -euo pipefail
model=$2/check-paging.gguf
trap 'rm -f -- "$model" "$model.partial"' EXIT
"$1" synth --shape 1.1b --type q8_0 -o "$model"
if "$1" run "$model" -p a -n 1 -c 32 -q --json 2>/dev/null | grep '"fallback": "'; then
    echo "skipped"
    exit 77
fi
python3 "$(dirname "${BASH_SOURCE[0]}")/../../scripts/check_paging.py" "$1" "$model" --threads 2 --tokens 6
