#!/usr/bin/env bash
# usage: test.sh [--quick | --aarch64]
# Installs what the tests need by apt-get (sudo for an ordinary user), unpacks what would begin to serve if it were installed,
# builds into build-test/, fetches the model that some tests read, and runs them all; then those on memory and threads again
# under ASan+UBSan (build-asan/, by clang, with the fuzzers for a few seconds each) and TSan (build-tsan/); and the suites unit
# and differential as a program for 64-bit ARM under qemu-user (build-aarch64/). --quick leaves out all that comes after the
# first run, --aarch64 all but the last. The last line counts the cases of all runs; the exit status is 0 where none failed.
#
# In the environment: WERROR=1 makes warnings errors. UFFD_TESTS=required fails where userfaultfd cannot be had (auto
# skips, disabled leaves out). WEIR_REQUIRE_MATERIAL=1 fails where models and vocabularies are not here (they are looked
# for in ../shared, or WEIR_SHARED); WEIR_MODEL=FILE is the SmolLM2 file, fetched otherwise. Gemma 3 is fetched too.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

only=
case ${1-} in
    '') ;;
    --quick | --aarch64) only=${1#--} ;;
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

# phase WHAT FOLDER SETUP_ARGUMENT... -- SUITE...: one build of what the suites need and one run of them; of everything,
# where none is named.
phase() {
    local what=$1 folder=$weir_root/$2 setup=() targets start=$SECONDS
    shift 2
    while [[ $1 != -- ]]; do
        setup+=("$1")
        shift
    done
    shift
    say "== $what: building into ${folder##*/}"
    if ! (
        configure "$folder" "${options[@]}" "${setup[@]}"
        mapfile -t targets < <((($# == 0)) || suite_targets "$folder" "$@")
        build "$folder" "${targets[@]}"
    ); then
        not_built=$((not_built + 1))
        return
    fi
    say "== $what: built after $((SECONDS - start)) s; testing"
    # meson reads the results of a program that crashed out of what an earlier run left here.
    rm -f "$folder"/*.xml "$folder"/meson-logs/testlog*
    # Limits are there for what hangs: a sanitizer on a machine with much else to do is no hang.
    "${runner[@]}" meson test -C "$folder" --no-rebuild --timeout-multiplier 4 --print-errorlogs "${@/#/--suite=}" </dev/null || true
    if [[ ${UFFD_TESTS-} == required && ($# == 0 || " $* " == *" live "*) ]]; then counted+=(--must-run live); fi
    counted+=("$folder")
    say "== $what: $((SECONDS - start)) s"
}

# A processor of its own where the machine is no ARM; there the first run is the one.
aarch64=
if [[ $only != quick && $(uname -m) != aarch64 ]]; then aarch64=1; fi

say "== packages"
install_packages "${weir_packages_run[@]}" "${weir_packages_tests[@]}" ${aarch64:+"${weir_packages_aarch64[@]}"}

if [[ $only != aarch64 ]]; then unpack_packages "${weir_packages_unpacked[@]}"; fi

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

if [[ $only != aarch64 ]]; then phase "all tests" build-test -Dbuildtype=release --; fi

if [[ -z $only ]]; then
    sanitizer_options=(-Doptimization=1 -Ddebug=true -Dcpp_args=-g1 -Db_lundef=false)
    export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1
    export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
    # A run that cannot go on ends by _exit with a line: threads that nobody joined then are no leak.
    export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:report_thread_leaks=0
    TSAN_OPTIONS+=:suppressions=$weir_root/tests/tsan_suppressions.txt

    # By clang, which builds the fuzzers, and takes a quarter of g++'s time for GoogleTest's templates under UBSan.
    CXX=clang++ phase "ASan, UBSan, fuzzers" build-asan "${sanitizer_options[@]}" -Dfuzzers=true \
        -Db_sanitize=address,undefined -- unit differential property fuzz live
    # ThreadSanitizer of g++ 12 refuses kernels that scatter mappings over more than 28 bits.
    if setarch -R true 2>/dev/null; then runner=(setarch -R); fi
    phase "TSan" build-tsan "${sanitizer_options[@]}" -Db_sanitize=thread -- threads live
    runner=()
fi

if [[ -n $aarch64 ]]; then
    # The kernels are optimised all the same; the rest is compiled in three fifths of the time.
    phase "64-bit ARM" build-aarch64 --cross-file "$weir_root/scripts/cross/aarch64.ini" -Dbuildtype=release \
        -Doptimization=1 -Dservice=false -- unit differential
fi

say "== done after $SECONDS s"
exec python3 "$weir_root/scripts/count_tests.py" --also-failed "$not_built" "${counted[@]}"
