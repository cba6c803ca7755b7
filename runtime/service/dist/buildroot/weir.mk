################################################################################
#
# weir
#
# package/weir/ of an external tree (BR2_EXTERNAL), whose Config.in sources this
# one's. Where the source is: WEIR_OVERRIDE_SRCDIR = /path/to/weir in local.mk,
# or WEIR_SITE and WEIR_VERSION here.
#
################################################################################

WEIR_VERSION = 0.1.0
WEIR_SITE = $(TOPDIR)/../weir
WEIR_SITE_METHOD = local
WEIR_LICENSE = MIT
WEIR_LICENSE_FILES = LICENSE
WEIR_DEPENDENCIES = \
	host-pkgconf boost cli11 fmt json-for-modern-cpp liburing numactl pcre2 \
	spdlog xxhash
WEIR_CONF_OPTS = -Dtests=false

ifeq ($(BR2_PACKAGE_WEIR_SERVICE),y)
WEIR_CONF_OPTS += -Dservice=true
WEIR_DEPENDENCIES += cpp-httplib tomlplusplus prometheus-cpp
else
WEIR_CONF_OPTS += -Dservice=false
endif

# meson installs the units. They are not enabled: the service wants a model first.

$(eval $(meson-package))
