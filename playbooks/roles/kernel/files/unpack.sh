#!/bin/bash
# Unpack a source tree, once for all labs that build here: unpack.sh SOURCE TARBALL SCRATCH
#
# SOURCE is whole or not there; SCRATCH, beside it, is this lab's own. The caller holds the source's lock: another lab
# may have unpacked the tree while this one waited.
set -euo pipefail
source=$1 tarball=$2 scratch=$3
[ ! -e "$source/Makefile" ] || exit 0
trap 'rm -rf "$scratch"' EXIT
trap 'exit 143' TERM INT HUP
mkdir "$scratch"
tar -C "$scratch" --strip-components=1 --no-same-owner -xf "$tarball"
[ -e "$scratch/Makefile" ] || { echo 'no Linux source tree is in the tarball' >&2; exit 1; }
sync -f "$scratch"
mv -T "$scratch" "$source"
