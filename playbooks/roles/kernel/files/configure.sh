#!/bin/bash
# Configure a build tree (the current directory): configure.sh SOURCE JOB fragments|whole
#
# JOB is the folder of what the lab sent. The caller holds the source's lock.
set -euo pipefail
source=$1 job=$2 kind=$3
[ ! -s configured ] || exit 0 # by another lab, while this one waited for the lock
bash "$job/restore.sh" "$source" # a killed build may have left its patches in the tree, Kconfig's too
mapfile -t words <"$job/make" # CC=..., of the era
for tool in make:make ld:binutils flex:flex bison:bison bc:bc git:git perl:perl xz:xz-utils lz4:lz4; do
    command -v "${tool%:*}" >/dev/null || { echo "${tool%:*} is not installed on the builder: apt-get install ${tool#*:}" >&2; exit 1; }
done
for header in gelf.h:libelf-dev openssl/opensslv.h:libssl-dev; do
    echo "#include <${header%:*}>" | gcc -E - >/dev/null 2>&1 ||
        { echo "${header%:*} is not installed on the builder: apt-get install ${header#*:}" >&2; exit 1; }
done
if [ "$kind" = fragments ]; then
    make -s -C "$source" O="$PWD" "${words[@]}" KCONFIG_ALLCONFIG="$job/all.config" allnoconfig >configure.log 2>&1 || { cat configure.log >&2; exit 1; }
else
    cp "$job/all.config" .config
fi
bash "$job/olddefconfig.sh" "$source" "${words[@]}"
cp .config configured.new
sync configured.new
mv configured.new configured
