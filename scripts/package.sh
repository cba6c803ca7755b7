#!/usr/bin/env bash
# usage: package.sh [FOLDER]
# Builds weir for the Debian that this runs on and packs it: FOLDER/weir_VERSION_ARCHITECTURE.deb (default: build-package/).
# What is in it is what `meson install` installs; what it depends on is what dpkg-shlibdeps finds. Installs what is missing
# by apt-get (sudo for an ordinary user). The last line on stdout is the package's path. SOURCE_DATE_EPOCH dates it.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

case ${1-} in
    -h | --help)
        sed -n '2,5s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
        exit 0
        ;;
    -*) die "unknown option $1 (--help says more)" ;;
esac
(($# <= 1)) || die "one folder at most (--help says more)"
folder=${1:-$weir_root/build-package}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)

say "== packages"
install_packages "${weir_packages_run[@]}" dpkg-dev
say "== build"
build_into "$weir_root/build-package" -Dbuildtype=release -Dtests=false --prefix=/usr

work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
stage=$work/stage
DESTDIR=$stage meson install -C "$weir_root/build-package" --no-rebuild --strip >"$work/log" 2>&1 || die "meson install failed: $(tail -n 1 "$work/log")"
install -D -m 644 "$weir_root/LICENSE" "$stage/usr/share/doc/weir/copyright"

say "== package"
version=$(meson introspect --projectinfo "$weir_root/build-package" | python3 -c 'import json, sys; print(json.load(sys.stdin)["version"])')
architecture=$(dpkg --print-architecture)
mkdir -p "$work/debian" "$stage/DEBIAN"
printf 'Source: weir\n\nPackage: weir\nArchitecture: any\n' >"$work/debian/control"
depends=$(cd "$work" && dpkg-shlibdeps -O "$stage"/usr/bin/* 2>"$work/log") || die "dpkg-shlibdeps failed: $(tail -n 1 "$work/log")"
cat >"$stage/DEBIAN/control" <<END
Package: weir
Version: $version
Architecture: $architecture
Maintainer: Weir <weir@localhost>
Installed-Size: $(du -sk --exclude=DEBIAN "$stage" | cut -f1)
Depends: ${depends#shlibs:Depends=}
Recommends: systemd
Section: science
Priority: optional
Description: runs language models that are larger than the memory they are given
 A paging runtime for language models: weights stream from storage through a
 fixed memory budget. With a service that speaks OpenAI's protocol.
END
(cd "$stage" && find etc -type f -printf '/%p\n') >"$stage/DEBIAN/conffiles"
# The service is not enabled: it wants a model first. One that runs goes on with the new program and its configuration.
cat >"$stage/DEBIAN/postinst" <<'END'
#!/bin/sh
set -e
if [ "$1" = configure ]; then
    if command -v systemd-sysusers >/dev/null; then systemd-sysusers weir.conf; fi
    if [ -d /run/systemd/system ]; then
        systemctl daemon-reload
        if [ -n "$2" ]; then systemctl try-restart weir.service; fi
    fi
fi
END
cat >"$stage/DEBIAN/prerm" <<'END'
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    systemctl disable --now weir.service weir.socket weir-quality.timer
fi
END
cat >"$stage/DEBIAN/postrm" <<'END'
#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
END
chmod 755 "$stage"/DEBIAN/{postinst,prerm,postrm}
(cd "$stage" && find . -path ./DEBIAN -prune -o -type f -printf '%P\0' | sort -z | xargs -0 md5sum) >"$stage/DEBIAN/md5sums"
package=$folder/weir_${version}_$architecture.deb
dpkg-deb --build --root-owner-group "$stage" "$package" >"$work/log" 2>&1 || die "dpkg-deb failed: $(tail -n 1 "$work/log")"
say "== $(dpkg-deb --field "$package" Depends)"
echo "$package"
