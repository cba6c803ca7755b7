#!/usr/bin/env bash
# usage: llama_cpp.sh fetch
#        llama_cpp.sh run MODEL THREADS WARM TOKENS CONTEXT PROMPT
# The prebuilt llama.cpp that the npm package node-llama-cpp carries, as an arm of `weir bench paging --peer`. fetch
# installs it into a cache folder ($WEIR_CACHE, else $XDG_CACHE_HOME/weir, else ~/.cache/weir), once, running no script
# of any package; run decodes with it through its mmap and prints one JSON object. Needs npm, and node 20 or newer.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
version=3.22.1
cache=${WEIR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/weir}/peers/node-llama-cpp-$version

case ${1-} in
    fetch)
        for program in node npm; do
            command -v "$program" >/dev/null || { echo "$program is not here (Debian: apt-get install nodejs npm)" >&2; exit 1; }
        done
        [[ -d $cache/node_modules/node-llama-cpp ]] && exit 0
        mkdir -p "$cache.part"
        (cd "$cache.part" && npm install --prefix . "node-llama-cpp@$version" --ignore-scripts --no-fund --no-audit) >&2
        rm -rf "$cache"
        mv "$cache.part" "$cache"
        ;;
    run)
        shift
        exec node "$here/llama_cpp.mjs" "$cache" "$@"
        ;;
    *)
        sed -n '2,6s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
        exit 2
        ;;
esac
