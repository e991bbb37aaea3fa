#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# Prints those of the packages named on standard input, one a line, that are not installed, by the host's own database.
set -eu
if command -v dpkg-query >/dev/null && [ -e /etc/debian_version ]; then
	installed() { dpkg-query -W -f '${db:Status-Status}\n' "$1" 2>/dev/null | grep -qx installed; }
elif command -v rpm >/dev/null && [ ! -e /etc/arch-release ]; then
	installed() { rpm -q --whatprovides "$1" >/dev/null 2>&1; }
elif command -v pacman >/dev/null; then
	installed() { pacman -Q "$1" >/dev/null 2>&1; }
else
	echo "this host has none of dpkg, rpm and pacman: install the packages of playbooks/roles/hypervisor by hand" >&2
	exit 2
fi
while read -r package; do
	installed "$package" </dev/null || echo "$package"
done
