#!/usr/bin/env bash
# usage: test_avx512.sh [--limit SECONDS]
# Runs the tests of the AVX-512 kernels in an emulator, for machines without AVX-512: builds into build-avx512/, boots
# Debian's kernel in Bochs (an Ice Lake, which has VNNI) with nothing but these tests, and prints what they say. Ends
# with 0 where all passed, 1 where one failed or the time ran out (3600 s). Installs what it needs by apt-get (sudo
# for an ordinary user); the kernel is fetched once, kept in ~/.cache/weir, and not installed. The AVX-VNNI table
# needs no such machine: its one instruction is emulated by the differential suite itself
# (tests/kernels/emulated_dpbusd.h).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

limit=3600
case ${1-} in
    '') ;;
    --limit) limit=${2:?--limit wants seconds} ;;
    -h | --help)
        sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
        exit 0
        ;;
    *) die "unknown argument $1 (--help says more)" ;;
esac
[[ $(uname -m) == x86_64 ]] || die "the emulator wants programs for x86-64, and this is $(uname -m)"

install_packages "${weir_packages_run[@]}" "${weir_packages_tests[@]}" "${weir_packages_avx512[@]}"

say "== building into build-avx512"
folder=$weir_root/build-avx512
tests=$folder/tests/kernels
configure "$folder" -Dbuildtype=release -Dservice=false
build "$folder" tests/kernels/{kernels_unit_test,kernels_differential_test,emulator_init}

# The kernel of Debian's cloud image: all that is needed is built in, and it boots in half the time.
kernel=$weir_cache/linux-cloud-amd64
if [[ ! -s $kernel ]]; then
    say "== fetching a kernel"
    fetched=$(mktemp -d)
    package=$(apt-cache depends linux-image-cloud-amd64 |
        sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
    [[ -n $package ]] || die "apt-cache knows no linux-image-cloud-amd64 (apt-get update?)"
    (cd "$fetched" && apt-get -qq -o APT::Sandbox::User=root download "$package" >&2 && dpkg-deb -x ./*.deb image) ||
        die "cannot fetch $package"
    mkdir -p "$weir_cache"
    cp "$fetched"/image/boot/vmlinuz-* "$kernel.new"
    mv "$kernel.new" "$kernel"
    rm -rf "$fetched"
fi

work=$(mktemp -d)
emulator=
cleanup() {
    if [[ -n $emulator ]]; then kill "$emulator" 2>/dev/null || true; fi
    rm -rf "$work"
}
trap cleanup EXIT

# The emulator takes some hundred times as long as a CPU, so it gets what is this table's own: its choice, and its
# products with integer activations (everything else is AVX2's functions).
root=$work/root
mkdir -p "$root" "$work/cd"
cp "$tests"/kernels_unit_test "$tests"/kernels_differential_test "$root"
cp "$tests/emulator_init" "$root/init"
ldd "$tests"/kernels_unit_test "$tests"/kernels_differential_test | grep -o '/[^ ]*' | grep -v ':$' | sort -u |
    while read -r library; do install -D "$library" "$root$library"; done
cat >"$root/tests" <<'END'
/kernels_unit_test --gtest_brief=1 --gtest_filter=Select.*
/kernels_differential_test --gtest_brief=1 --gtest_filter=*/SameBits.*/avx512_*
/kernels_differential_test --gtest_brief=1 --gtest_filter=*/Invariance.*/avx512_*_Int8:*/Invariance.*/avx512_*_Fine
/kernels_differential_test --gtest_brief=1 --gtest_filter=*/Matmul.*/avx512_*_Int8:*/Matmul.*/avx512_*_Fine
END
(cd "$root" && find . | cpio --quiet -o -H newc) | gzip -1 >"$work/cd/initrd"
cp "$kernel" "$work/cd/vmlinuz"
cp /usr/lib/ISOLINUX/isolinux.bin /usr/lib/syslinux/modules/bios/ldlinux.c32 "$work/cd"
# The kernel hands what it does not know, the variables at the end, to its first process as environment. What Linux 6.1
# and Bochs 2.7 disagree about is taken away (numbers are word * 32 + bit of the kernel's cpufeatures.h): places and
# sizes of protection keys and compacted register states (515, 321, 323), for which Linux would take AVX away, and what
# it patches its own code for (112, 297, 580: fast string copies; 295, 308: SMEP, SMAP), after which it crashed.
arguments='console=ttyS0 quiet panic=-1 mitigations=off nokaslr nosmp edd=off nopti'
arguments+=' clearcpuid=112,295,297,308,321,323,515,580 WEIR_BEST_KERNELS=avx512 GTEST_COLOR=no'
cat >"$work/cd/isolinux.cfg" <<END
DEFAULT linux
LABEL linux
    KERNEL /vmlinuz
    INITRD /initrd
    APPEND $arguments
END
xorriso -as mkisofs -quiet -o "$work/cd.iso" -b isolinux.bin -c boot.cat -no-emul-boot -boot-load-size 4 \
    -boot-info-table "$work/cd" 2>"$work/xorriso" || die "$(<"$work/xorriso")"

# ips: how many instructions are a second of the machine's own time; the drive's and the timer's delays cost so many.
cat >"$work/bochsrc" <<END
display_library: rfb, options="timeout=0"
romimage: file=/usr/share/bochs/BIOS-bochs-latest
vgaromimage: file=/usr/share/bochs/VGABIOS-lgpl-latest
plugin_ctrl: sb16=0, es1370=0
megs: 512
cpu: model=corei7_icelake_u, count=1, ips=10000000
clock: sync=none
ata0: enabled=1, ioaddr1=0x1f0, ioaddr2=0x3f0, irq=14
ata0-master: type=cdrom, path="$work/cd.iso", status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev="$work/serial"
log: $work/log
panic: action=fatal
error: action=ignore
info: action=ignore
END
echo c >"$work/go_on"

say "== booting in the emulator"
start=$SECONDS
: >"$work/serial"
bochs-bin -q -f "$work/bochsrc" -rc "$work/go_on" </dev/null >"$work/out" 2>&1 &
emulator=$!
shown=0
while kill -0 "$emulator" 2>/dev/null && ((SECONDS - start < limit)); do
    sleep 1
    if grep -q '^init: all: ' "$work/serial"; then break; fi
    lines=$(wc -l <"$work/serial")
    if ((lines > shown)); then
        sed -n "$((shown + 1)),${lines}p" "$work/serial" | tr -d '\r' >&2
        shown=$lines
    fi
done
say "== $((SECONDS - start)) s"

tr -d '\r' <"$work/serial" | sed -n '/^init: /,$p'
if ! grep -q '^init: all: ' "$work/serial"; then
    tail -n 5 "$work/out" >&2
    die "the tests did not end (limit $limit s)"
fi
if grep -q ' 0 tests from' "$work/serial"; then die "a filter found no tests: is the table chosen there?"; fi
if grep -q '^init: all: \([0-9]*\) of \1 passed' <(tr -d '\r' <"$work/serial"); then
    echo passed
else
    echo failed
    exit 1
fi
