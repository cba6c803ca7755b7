#!/usr/bin/env bash
# usage: test.sh [--quick]
# Installs what the tests need by apt-get (sudo for an ordinary user), builds into build-test/, fetches the model that
# some of them read, and runs them all; then those on memory and threads again under ASan+UBSan (build-asan/, by clang,
# with the fuzzers for a few seconds each) and TSan (build-tsan/). --quick leaves out all that comes after the first
# run. The last line counts the cases of all runs; the exit status is 0 where none failed.
#
# In the environment: WERROR=1 makes warnings errors. UFFD_TESTS=required fails where userfaultfd cannot be had (auto
# skips, disabled leaves out). WEIR_REQUIRE_MATERIAL=1 fails where models and vocabularies are not here (they are looked
# for in ../shared, or WEIR_SHARED); WEIR_MODEL=FILE is the SmolLM2 file, fetched otherwise. Gemma 3 is fetched too.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

quick=
case ${1-} in
    '') ;;
    --quick) quick=1 ;;
    -h | --help)
        sed -n '2,11s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
        exit 0
        ;;
    *) die "unknown argument $1 (--help says more)" ;;
esac

options=(-Duffd_tests="${UFFD_TESTS:-auto}")
if [[ ${WERROR-} == 1 ]]; then options+=(-Dwerror=true); fi
counted=()  # arguments of count_tests.py: the build folders whose results count
not_built=0 # builds that failed: each counts as one failure
runner=()

# build_tests FOLDER [SUITE...] -- SETUP_ARGUMENT...: builds what these suites run, or everything.
build_tests() {
    local folder=$1 suites=() targets=()
    shift
    while [[ $1 != -- ]]; do
        suites+=("$1")
        shift
    done
    shift
    set_up "$folder" "$@"
    if ((${#suites[@]} > 0)); then
        targets=($(python3 "$weir_root/scripts/test_targets.py" "$folder" "${suites[@]}")) || die "no targets of ${suites[*]}"
    fi
    build "$folder" "${targets[@]}"
}

# phase WHAT FOLDER SETUP_ARGUMENT... -- [SUITE...]: one build and one run of these suites, or of everything.
phase() {
    local what=$1 folder=$weir_root/$2 setup=() start=$SECONDS
    shift 2
    while [[ $1 != -- ]]; do
        setup+=("$1")
        shift
    done
    shift
    say "== $what: building into ${folder##*/}"
    if ! (build_tests "$folder" "$@" -- "${options[@]}" "${setup[@]}"); then
        not_built=$((not_built + 1))
        return
    fi
    say "== $what: built after $((SECONDS - start)) s; testing"
    # meson reads the results of a program that crashed out of what an earlier run left here.
    rm -f "$folder"/*.xml "$folder"/meson-logs/testlog*
    "${runner[@]}" meson test -C "$folder" --no-rebuild --print-errorlogs "${@/#/--suite=}" </dev/null || true
    if [[ ${UFFD_TESTS-} == required ]]; then counted+=(--must-run live); fi
    counted+=("$folder")
    say "== $what: $((SECONDS - start)) s"
}

say "== packages"
install_packages "${weir_packages_run[@]}" "${weir_packages_tests[@]}"

say "== model"
if WEIR_MODEL=$("$weir_root/scripts/fetch_model.sh"); then
    export WEIR_MODEL
elif [[ ${WEIR_REQUIRE_MATERIAL-} == 1 ]]; then
    die "the model is required (WEIR_REQUIRE_MATERIAL=1)"
else
    unset WEIR_MODEL
    say "tests that read the model will be skipped"
fi
if ! "$weir_root/scripts/fetch_model.sh" --gemma3 >/dev/null; then
    if [[ ${WEIR_REQUIRE_MATERIAL-} == 1 ]]; then die "Gemma 3 is required (WEIR_REQUIRE_MATERIAL=1)"; fi
    say "tests that read Gemma 3 will be skipped"
fi

phase "all tests" build-test -Dbuildtype=release --

if [[ -z $quick ]]; then
    sanitizer_options=(-Doptimization=1 -Ddebug=true -Dcpp_args=-g1 -Db_lundef=false)
    export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1
    export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
    # A run that cannot go on ends by _exit with a line: threads that nobody joined then are no leak.
    export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:report_thread_leaks=0

    # By clang, which builds the fuzzers, and takes a quarter of g++'s time for GoogleTest's templates under UBSan.
    CXX=clang++ phase "ASan, UBSan, fuzzers" build-asan "${sanitizer_options[@]}" -Dfuzzers=true \
        -Db_sanitize=address,undefined -- unit differential property fuzz live
    # ThreadSanitizer of g++ 12 refuses kernels that scatter mappings over more than 28 bits.
    if setarch -R true 2>/dev/null; then runner=(setarch -R); fi
    phase "TSan" build-tsan "${sanitizer_options[@]}" -Db_sanitize=thread -- threads live
fi

say "== done after $SECONDS s"
exec python3 "$weir_root/scripts/count_tests.py" --also-failed "$not_built" "${counted[@]}"
