#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# install.sh yes|no PACKAGE…: install what the image lacks of its packages, with newer lists if the first word says so.
# A cloud image runs apt itself in its first minutes, which an emulator makes long: so it waits for apt's locks.
set -eu
export DEBIAN_FRONTEND=noninteractive LC_ALL=C
newer=$1
shift
missing=''
for package in "$@"; do
	[ "$(dpkg-query --show --showformat '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] ||
		missing="$missing $package"
done
[ "$missing" ] || exit 0

tries=0
until [ "$newer" = no ] || said=$(apt-get --quiet update 2>&1); do
	case $said in
	*"Could not get lock"*) ;; # for the one of its lists, apt has no option
	*) tries=90 ;;
	esac
	tries=$((tries + 1))
	if [ "$tries" -gt 90 ]; then
		echo "$said" >&2
		exit 1
	fi
	sleep 10
done
# shellcheck disable=SC2086 # words
apt-get -o DPkg::Lock::Timeout=900 --quiet --yes --no-install-recommends install $missing
echo "installed:$missing"
