#!/bin/sh
# isa_symbols.sh NM LIBRARY...: fails if an object built for one instruction set exports anything that other code could
# be given in place of its own: a weak or unique symbol of any name, or a global one outside the set's own namespace.
# (An inline function compiled with -mavx2 that the linker picks for the whole program kills older CPUs.)
nm=$1
shift
status=0
for library in "$@"; do
    symbols=$("$nm" -g --defined-only -C "$library" | grep -E '^[0-9a-f]+ ') || {
        echo "$library: no symbols to look at"
        exit 1
    }
    bad=$(printf '%s\n' "$symbols" | grep -Ev '^[0-9a-f]+ [TRDB] weir::kernels::(avx2|avx512|neon)::')
    if [ -n "$bad" ]; then
        echo "$library exports:"
        echo "$bad"
        status=1
    fi
done
exit $status
