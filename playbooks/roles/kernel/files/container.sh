#!/bin/bash
# Make a container: container.sh FOLDER ID SCRATCH SUITE PACKAGE,PACKAGE...
#
# FOLDER/ID/versions is written last: the first line of --version of each compiler, of the assembler and of the linker.
# A container without it is half made. All files are the user's own, so that whoever made it can remove it; no device
# nodes are in it.
set -euo pipefail
folder=$1 id=$2 scratch=$1/$3$2 suite=$4 packages=$5
command -v mmdebstrap >/dev/null || { echo 'mmdebstrap is not installed on the builder: apt-get install mmdebstrap' >&2; exit 1; }
mkdir -p "$folder"
exec 9>"$folder/$id.lock"
flock 9
[ ! -s "$folder/$id/versions" ] || exit 0
rm -rf "${folder:?}/$id"
trap 'rm -rf "$scratch" "$scratch.tar"' EXIT
trap 'exit 143' TERM INT HUP
# shellcheck disable=SC2016 # mmdebstrap's $1
mmdebstrap --variant=apt --format=tar --skip=output/dev '--aptopt=Acquire::Languages "none"' \
    --dpkgopt=path-exclude=/usr/share/man/\* --dpkgopt=path-exclude=/usr/share/doc/\* --dpkgopt=path-exclude=/usr/share/locale/\* \
    --include="$packages" \
    --customize-hook='chroot "$1" sh -c "cd /usr/bin; for tool in gcc gcc-[0-9]* as ld; do \$tool --version | head -n 1; done" >"$1/versions"' \
    "$suite" "$scratch.tar" >&2
mkdir "$scratch"
tar -C "$scratch" --no-same-owner -xf "$scratch.tar"
mkdir -p "$scratch/dev" "$scratch/proc"
sync -f "$scratch"
mv -T "$scratch" "$folder/$id"
