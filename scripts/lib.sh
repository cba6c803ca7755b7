# What the scripts share; sourced, never run. Progress goes to stderr, so that stdout is left to results.

weir_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
weir_cache=${WEIR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/weir}

# What `weir` needs to be built and run, by Debian 12's names; and what its tests need besides. clang brings libFuzzer.
weir_packages_run=(g++ meson ninja-build pkg-config python3 python3-pip
    liburing-dev libnuma-dev libboost-dev libspdlog-dev libfmt-dev libcli11-dev nlohmann-json3-dev
    libpcre2-dev libxxhash-dev)
# The last line makes and mounts the file systems of tests/cli/file_systems.py.
weir_packages_tests=(libgtest-dev libgmock-dev libbenchmark-dev clang libclang-rt-14-dev python3-numpy
    squashfs-tools e2fsprogs mount util-linux)

say() { printf '%s\n' "$*" >&2; }
die() {
    say "${0##*/}: $*"
    exit 1
}

# missing_packages NAME...: those that dpkg does not have, one a line.
missing_packages() {
    local installed
    installed=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' 2>/dev/null | sed -n 's/^installed //p')
    printf '%s\n' "$@" | grep -vxF -e "$installed" || true
}

# apt_get ARGUMENT...: apt-get as root, quiet, asking nothing. Its words go to $apt_log.
apt_get() {
    local as_root=()
    if ((EUID != 0)); then as_root=(sudo); fi
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive ${http_proxy:+"http_proxy=$http_proxy"} \
        ${https_proxy:+"https_proxy=$https_proxy"} \
        apt-get -qq -y -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=120 -o APT::Update::Error-Mode=any "$@" \
        </dev/null >>"$apt_log" 2>&1
}

# install_packages NAME...: installs what is missing and nothing else; silent and offline where all is there. The lists
# are only refreshed where they do not know a package, or name a version that the mirror no longer has.
install_packages() {
    local missing apt_log why
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

# set_up FOLDER SETUP_ARGUMENT...: configures the build folder, anew where it was configured differently.
set_up() {
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

# build FOLDER TARGET...: builds these, or everything.
build() {
    local folder=$1 log
    shift
    log=$(mktemp)
    if ! ninja -C "$folder" "$@" >"$log" 2>&1; then
        grep -v '^\[[0-9]*/[0-9]*\] \(Compiling\|Linking\)' "$log" | tail -n 60 >&2
        rm -f "$log"
        die "the build in $folder failed"
    fi
    rm -f "$log"
}

# build_into FOLDER SETUP_ARGUMENT...: configures the folder and builds everything.
build_into() {
    set_up "$@"
    build "$1"
}
