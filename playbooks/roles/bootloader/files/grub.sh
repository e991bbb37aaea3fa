#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# grub.sh RELEASE CMDLINE: GRUB starts the kernel RELEASE of /boot next, with CMDLINE, which is quoted for a shell.
# One script, for which the guest needs no Python: each module of Ansible's takes it seconds under emulation.
set -eu
release=$1 changed='' options=/etc/default/grub.d/numalab.cfg menu=/boot/grub/grub.cfg
mark="gnulinux-$release-advanced-"
new=$(mktemp)
trap 'rm -f "$new"' EXIT

# Without an initrd GRUB can name the root partition only by its PARTUUID.
cat >"$new" <<END
GRUB_CMDLINE_LINUX=$2
GRUB_DISABLE_LINUX_PARTUUID=false
GRUB_DISABLE_SUBMENU=y
GRUB_DISABLE_RECOVERY=true
GRUB_TIMEOUT=0
END
if ! cmp -s "$new" "$options"; then
	install -D -m 0644 "$new" "$options"
	changed=yes
	echo "changed: $options"
fi

# The kernel is new, or an earlier play was ended before its update-grub.
# shellcheck disable=SC3013 # Debian's sh has -nt
if [ "$changed" ] || ! { [ "$menu" -nt "$options" ] && grep -qF "$mark" "$menu"; }; then
	update-grub
	echo "changed: $menu"
fi

entry=$(tr "'" '\n' <"$menu" | grep -m1 -F "$mark") || {
	echo "update-grub made no entry for $release" >&2
	exit 1
}
if ! grub-editenv list | grep -qxF "saved_entry=$entry"; then
	grub-set-default "$entry"
	echo "changed: $entry"
fi
