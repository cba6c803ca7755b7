# What the scripts share; sourced, never run. Progress goes to stderr, so that stdout is left to results.

weir_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
weir_cache=${WEIR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/weir}

# What `weir` needs to be built and run, by Debian 12's names; and what its tests need besides. clang brings libFuzzer.
weir_packages_run=(g++ meson ninja-build pkg-config python3 python3-pip
    liburing-dev libnuma-dev libboost-dev libspdlog-dev libfmt-dev libcli11-dev nlohmann-json3-dev
    libpcre2-dev libxxhash-dev libcpp-httplib-dev libtomlplusplus-dev
    prometheus-cpp-dev)
# The last line makes and mounts the file systems of tests/cli/file_systems.py.
weir_packages_tests=(libgtest-dev libgmock-dev libbenchmark-dev clang libclang-rt-14-dev python3-numpy python3-jinja2 python3-jsonschema
    squashfs-tools e2fsprogs mount util-linux systemd)

# Programs that tests hold the service against. Unpacked and not installed: where Debian installs them they begin to serve.
weir_packages_unpacked=(nginx prometheus)

# What the cross build for 64-bit ARM and its tests need besides, as scripts/cross/aarch64.ini has it. Without the service:
# Debian's prometheus-cpp-dev is installed for one architecture at a time.
weir_packages_aarch64=(g++-aarch64-linux-gnu qemu-user
    {liburing,libnuma,libboost,libspdlog,libfmt,libpcre2,libxxhash,libgtest,libgmock}-dev:arm64)

# What scripts/test_avx512.sh boots: an emulator, and what makes a disk that it boots from.
weir_packages_avx512=(bochs bochs-term bochsbios vgabios isolinux syslinux-common xorriso cpio)

say() { printf '%s\n' "$*" >&2; }
die() {
    say "${0##*/}: $*"
    exit 1
}

# missing_packages NAME...: those that dpkg does not have, one a line. NAME:ARCHITECTURE is one of another architecture.
missing_packages() {
    local installed native
    native=$(dpkg --print-architecture)
    installed=$(dpkg-query -W -f='${db:Status-Status} ${Package}:${Architecture}\n' 2>/dev/null |
        sed -n "s/^installed //; T; s/:\(all\|$native\)\$//; p")
    printf '%s\n' "$@" | grep -vxF -e "$installed" || true
}

# as_root COMMAND...: as it is for root, by sudo for anybody else.
as_root() {
    if ((EUID == 0)); then "$@"; else sudo "$@"; fi
}

# apt_get ARGUMENT...: apt-get as root, quiet, asking nothing. Its words go to $apt_log.
apt_get() {
    as_root env DEBIAN_FRONTEND=noninteractive ${http_proxy:+"http_proxy=$http_proxy"} \
        ${https_proxy:+"https_proxy=$https_proxy"} \
        apt-get -qq -y -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=120 -o APT::Update::Error-Mode=any "$@" \
        </dev/null >>"$apt_log" 2>&1
}

# install_packages NAME...: installs what is missing and nothing else; silent and offline where all is there. The lists
# are only refreshed where they do not know a package, or name a version that the mirror no longer has. Architectures
# that names ask for (NAME:ARCHITECTURE) are made known to dpkg.
install_packages() {
    local missing architecture apt_log why
    if ! command -v dpkg-query >/dev/null; then
        say "not a Debian: the packages are taken to be here ($*)"
        return 0
    fi
    mapfile -t missing < <(missing_packages "$@")
    if ((${#missing[@]} == 0)); then return 0; fi
    if ((EUID != 0)) && ! command -v sudo >/dev/null; then
        die "missing packages, and neither root nor sudo to install them: ${missing[*]}"
    fi
    say "installing by apt-get: ${missing[*]}"
    if ((EUID != 0)); then sudo -v || die "sudo was refused; missing packages: ${missing[*]}"; fi
    for architecture in $(printf '%s\n' "${missing[@]}" | sed -n 's/.*://p' | sort -u); do
        as_root dpkg --add-architecture "$architecture" || die "dpkg refuses the architecture $architecture"
    done
    apt_log=$(mktemp)
    if ! apt-get -qq --simulate install "${missing[@]}" >/dev/null 2>&1 ||
        ! apt_get install --no-install-recommends "${missing[@]}"; then
        apt_get update && apt_get install --no-install-recommends "${missing[@]}" || {
            why=$(grep -m 1 '^E: ' "$apt_log" || tail -n 1 "$apt_log")
            rm -f "$apt_log"
            die "missing packages, and apt-get cannot install them (is there a network?): ${missing[*]} [${why}]"
        }
    fi
    rm -f "$apt_log"
}

# unpack_packages NAME...: puts their programs into the cache folder, once, and first in PATH.
unpack_packages() {
    local folder=$weir_cache/programs name work
    if command -v dpkg-deb >/dev/null; then
        for name in "$@"; do
            if [[ -e $folder/$name.unpacked ]]; then continue; fi
            work=$(mktemp -d)
            say "unpacking $name"
            if ! (cd "$work" && { apt-get -qq download "$name" || { as_root apt-get -qq update && apt-get -qq download "$name"; }; } &&
                mkdir -p "$folder" && dpkg-deb -x ./*.deb "$folder") >/dev/null 2>"$work/log"; then
                say "$(tail -n 1 "$work/log")"
                rm -rf "$work"
                die "$name cannot be had by apt-get download (is there a network?)"
            fi
            rm -rf "$work"
            touch "$folder/$name.unpacked"
        done
    fi
    export PATH=$folder/usr/sbin:$folder/usr/bin:$PATH
}

# configure FOLDER SETUP_ARGUMENT...: configures the folder, anew where it was configured differently.
configure() {
    local folder=$1 log
    shift
    log=$(mktemp)
    # --reconfigure keeps what is built; --wipe is for a folder that an older meson or another compiler left behind.
    if [[ -f $folder/build.ninja ]]; then
        meson setup --reconfigure "$folder" "$weir_root" "$@" >"$log" 2>&1 ||
            meson setup --wipe "$folder" "$weir_root" "$@" >"$log" 2>&1
    else
        meson setup "$folder" "$weir_root" "$@" >"$log" 2>&1
    fi || {
        cat "$log" >&2
        rm -f "$log"
        die "meson could not set up $folder"
    }
    rm -f "$log"
}

# build FOLDER TARGET...: builds those, or everything.
build() {
    local log
    log=$(mktemp)
    if ! ninja -C "$1" "${@:2}" >"$log" 2>&1; then
        grep -v '^\[[0-9]*/[0-9]*\] \(Compiling\|Linking\)' "$log" | tail -n 60 >&2
        rm -f "$log"
        die "the build in $1 failed"
    fi
    rm -f "$log"
}

# build_into FOLDER SETUP_ARGUMENT...: configures and builds everything.
build_into() {
    configure "$@"
    build "$1"
}

# suite_targets FOLDER SUITE...: what the tests of these suites are made of, one target a line.
suite_targets() {
    python3 - "$@" <<'END'
import json, os, sys
folder, suites = sys.argv[1], sys.argv[2:]
def told(what): return json.load(open(f'{folder}/meson-info/intro-{what}.json'))
tests = [t for t in told('tests') if any(s.split(':')[-1] in suites for s in t['suite'])]
needed = {id for t in tests for id in t['depends']}
print(*(os.path.relpath(f, folder) for t in told('targets') if t['id'] in needed for f in t['filename']), sep='\n')
END
}
