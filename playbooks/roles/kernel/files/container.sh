#!/bin/bash
# Make a container: container.sh FOLDER ID SCRATCH SUITE PACKAGE,PACKAGE...
#
# FOLDER/ID is whole or not there; ID/versions has the first line of each compiler's --version. All files are the
# user's own, so that whoever made it can remove it; no device nodes are in it.
set -euo pipefail
folder=$1 id=$2 scratch=$1/$3$2 suite=$4 packages=$5
command -v mmdebstrap >/dev/null || { echo 'mmdebstrap is not installed on the builder: apt-get install mmdebstrap' >&2; exit 1; }
mkdir -p "$folder"
exec 9>"$folder/$id.lock"
flock 9
[ ! -d "$folder/$id" ] || exit 0
trap 'rm -rf "$scratch" "$scratch.tar"' EXIT
trap 'exit 143' TERM INT HUP
# shellcheck disable=SC2016 # mmdebstrap's $1
mmdebstrap --variant=apt --format=tar --skip=output/dev '--aptopt=Acquire::Languages "none"' \
    --dpkgopt=path-exclude=/usr/share/man/\* --dpkgopt=path-exclude=/usr/share/doc/\* --dpkgopt=path-exclude=/usr/share/locale/\* \
    --include="$packages" \
    --customize-hook='chroot "$1" sh -c "cd /usr/bin; for cc in gcc gcc-[0-9]*; do \$cc --version | head -n 1; done" >"$1/versions"' \
    "$suite" "$scratch.tar" >&2
mkdir "$scratch"
tar -C "$scratch" --no-same-owner -xf "$scratch.tar"
mkdir -p "$scratch/dev" "$scratch/proc"
mv -T "$scratch" "$folder/$id"
