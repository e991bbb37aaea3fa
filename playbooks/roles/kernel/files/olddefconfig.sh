#!/bin/bash
# Give what .config leaves open its default: olddefconfig.sh SOURCE ARGUMENT...
#
# In a build tree (the current directory), with make's arguments.
set -euo pipefail
source=$1
shift
target=olddefconfig
if [ -e "$source/scripts/kconfig/Makefile" ] && ! grep -q olddefconfig "$source/scripts/kconfig/Makefile"; then
    target=oldnoconfig # its name until 3.6; what it does not know stays off
fi
make -s -C "$source" O="$PWD" "$@" "$target" >olddefconfig.log 2>&1 || { cat olddefconfig.log >&2; exit 1; }
