#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# install.sh yes|no PACKAGE…: install what the image lacks of its packages, with newer lists if the first word says so.
set -eu
export DEBIAN_FRONTEND=noninteractive
newer=$1
shift
missing=''
for package in "$@"; do
	[ "$(dpkg-query --show --showformat '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] ||
		missing="$missing $package"
done
[ "$missing" ] || exit 0
# A cloud image runs apt itself in its first minutes, which an emulator makes long.
wait='-o DPkg::Lock::Timeout=900'
# shellcheck disable=SC2086 # words
[ "$newer" = no ] || apt-get $wait --quiet update
# shellcheck disable=SC2086
apt-get $wait --quiet --yes --no-install-recommends install $missing
echo "installed:$missing"
