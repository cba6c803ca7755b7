#!/usr/bin/env bash
# usage: demo.sh [MODEL.gguf]
# Builds weir and shows the main job: a real model answers a question with 40 % of its weights in memory, next to a run
# with all of them, and the text is the same. Where a memory cgroup can be made (root), userfaultfd paging is then
# compared with stock mmap on a synthetic model of 1 GiB. Installs what is missing by apt-get (sudo for an ordinary
# user), builds into build/, keeps models in $WEIR_CACHE, else $XDG_CACHE_HOME/weir, else ~/.cache/weir. MODEL.gguf,
# or WEIR_MODEL in the environment, takes the place of the model that is fetched.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

question="How do plants make food?"
tokens=96
synthetic=$weir_cache/synthetic-1.1b-q8_0.gguf
synthetic_mib=1200 # the file, and room to spare

case ${1-} in
    -h | --help)
        sed -n '2,7s/^# //p' "${BASH_SOURCE[0]}"
        exit 0
        ;;
    -*) die "unknown option $1 (--help says more)" ;;
esac
(($# <= 1)) || die "one MODEL.gguf at most (--help says more)"

work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT

say "[1/5] packages"
install_packages "${weir_packages_run[@]}"

say "[2/5] build: release, into $weir_root/build"
build_into "$weir_root/build" -Dbuildtype=release -Dtests=false
weir=$weir_root/build/runtime/cli/weir

say "[3/5] model"
model=$("$weir_root/scripts/fetch_model.sh" "$@")

chat=(--chat)
# run NAME ARGUMENT...: one answer, its JSON kept as NAME.json and its words on stderr as NAME.err.
run() {
    local name=$1
    shift
    say "      weir run ${model##*/} ${chat[*]} --temp 0 --seed 1 -n $tokens $*"
    "$weir" run "$model" -p "$question" "${chat[@]}" --temp 0 --seed 1 -n "$tokens" --json "$@" \
        >"$work/$name.json" 2>"$work/$name.err" </dev/null
}
failed() {
    cat "$work/$1.err" >&2
    die "the run with --paging $1 failed"
}
say "[4/5] the same question, with all weights in memory and with 40 % of them"
if ! run resident --paging resident; then
    grep -q -e '--chat:' "$work/resident.err" || failed resident
    say "      its chat template is unknown here: the question goes in as it is"
    chat=()
    run resident --paging resident || failed resident
fi
run uffd --paging uffd --weights-ram 40% || failed uffd
python3 "$weir_root/scripts/show_runs.py" "$question" "$work/resident.json" "$work/uffd.json" ||
    die "the two runs do not agree"

say "[5/5] comparison with stock mmap under the same hard memory limit"
if ! why=$("$weir" bench paging --probe 2>&1); then
    say "left out: ${why#weir: }"
    exit 0
fi
if [[ ! -f $synthetic ]]; then
    free_mib=$(df --output=avail -BM "$weir_cache" | tail -n 1 | tr -dc 0-9)
    if ((free_mib < synthetic_mib)); then
        say "left out: $weir_cache has $free_mib MiB free, and the synthetic model takes $synthetic_mib MiB"
        exit 0
    fi
    say "      weir synth --shape 1.1b --type q8_0 -o $synthetic (kept; delete it when you are done)"
    trap 'rm -rf -- "$work" "$synthetic.part"' EXIT
    "$weir" synth --shape 1.1b --type q8_0 --seed 1 -o "$synthetic.part" >"$work/synth.log" 2>&1 || {
        cat "$work/synth.log" >&2
        die "the synthetic model could not be written"
    }
    mv -- "$synthetic.part" "$synthetic"
fi
say "      weir bench paging $synthetic --limits 75,50"
"$weir" bench paging "$synthetic" --limits 75,50
