# Weir for images that BitBake builds (Yocto 5.0 and later): recipes-apps/weir/weir.bb in a layer of yours, with meta-oe. Say in
# conf/local.conf or a .bbappend where the source is:
#     WEIR_SOURCE = "git://git.example.com/weir.git;protocol=https;branch=main"
#     WEIR_REVISION = "..."
# The service wants recipes for cpp-httplib, tomlplusplus and prometheus-cpp (its core); without it: PACKAGECONFIG:pn-weir = "".
# The kernel wants CONFIG_USERFAULTFD, CONFIG_IO_URING, CONFIG_TRANSPARENT_HUGEPAGE and CONFIG_PSI.
SUMMARY = "Runs language models that are larger than the memory they are given"
LICENSE = "MIT"
LIC_FILES_CHKSUM = "file://LICENSE;md5=2f2c2f665418ba1389212857bca67d57"

PV = "0.1.0+git"
SRC_URI = "${WEIR_SOURCE}"
SRCREV = "${WEIR_REVISION}"
S = "${WORKDIR}/git"

inherit meson pkgconfig systemd

DEPENDS = "liburing numactl boost spdlog fmt cli11 nlohmann-json libpcre2 xxhash"
PACKAGECONFIG ??= "service"
PACKAGECONFIG[service] = "-Dservice=true,-Dservice=false,cpp-httplib tomlplusplus prometheus-cpp"
EXTRA_OEMESON = "-Dtests=false"
MESON_BUILDTYPE = "release"

# It wants a model first: systemctl enable weir, or SYSTEMD_AUTO_ENABLE = "enable" in an image that brings one.
SYSTEMD_SERVICE:${PN} = "${@bb.utils.contains('PACKAGECONFIG', 'service', 'weir.service weir.socket weir-quality.timer', '', d)}"
SYSTEMD_AUTO_ENABLE = "disable"
FILES:${PN} += "${systemd_system_unitdir} ${nonarch_libdir}/sysusers.d"
CONFFILES:${PN} = "${sysconfdir}/weir/weir.toml"

COMPATIBLE_HOST = "(x86_64|aarch64).*-linux"
