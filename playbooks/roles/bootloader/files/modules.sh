#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# modules.sh RELEASE ARCHIVE MARKER: the modules of the tar ARCHIVE, which is removed; MARKER says whose they are.
set -eu
release=${1:?a kernel that does not say its release has no modules}
# The release stays when a kernel is built anew from other patches, and vermagic would fit.
rm -rf "/lib/modules/$release"
tar --extract --no-same-owner --file "$2" --directory /lib/modules
rm -f "$2"
# modules_install leaves it out, with no more than a warning, where whoever built them has no depmod; modprobe and
# udev then find none of them. It is seconds in an emulated guest, which is why the builder is to have it.
test -e "/lib/modules/$release/modules.dep" || depmod "$release"
touch "$3"
