#!/bin/bash
# Run a command in a container, in the current directory: inside.sh ROOT CONTAINER COMMAND...
#
# ROOT, the builder's folder, is there at its own path. Mounts are in a namespace that ends with the command; who is
# not root is so in there only.
set -euo pipefail
root=$1 container=$1/containers/$2
shift 2
user=()
[ "$(id -u)" = 0 ] || user=(--map-root-user)
mkdir -p "$container$root"
# shellcheck disable=SC2016 # the inner shell's
exec unshare "${user[@]}" --mount bash -c '
    set -e
    root=$1 container=$2
    shift 2
    mount --bind "$root" "$container$root"
    mount --rbind /dev "$container/dev"
    mount --rbind /proc "$container/proc"
    exec chroot "$container" env -i -C "$PWD" PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C "$@"
' inside "$root" "$container" "$@"
