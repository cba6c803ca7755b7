#!/bin/sh
# usage: serve_test.sh WEIR SERVE_TEST.PY: the client's test with the model that tests read (WEIR_MODEL, or the cached one).
exec python3 "$2" "$1" "${WEIR_MODEL:-${XDG_CACHE_HOME:-$HOME/.cache}/weir/SmolLM2-135M-Instruct.Q4_1.gguf}"
