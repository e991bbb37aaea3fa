# SPDX-License-Identifier: GPL-2.0-only
# slow_disks.sh request_kib:DISK:KIB bytes_per_second:DISK:BYTES...: give disks their speeds, and read them back.
# Why these two ways: slow_disks.py.
set -eu
fail() { echo "disk $disk: $1" >&2; exit 1; }
hierarchy() { awk '$3 == "cgroup" && $4 ~ /(^|,)blkio(,|$)/ { print $2; exit }' /proc/mounts; }
for word in "$@"; do
    kind=${word%%:*} rest=${word#*:}
    disk=${rest%%:*} number=${rest#*:}
    # The kernel may look for USB disks for longer than the guest takes to boot.
    for try in $(seq 300); do
        for link in "/dev/disk/by-id/virtio-$disk" /dev/disk/by-id/usb-*_"$disk"-*; do
            [ ! -b "$link" ] || break 2
        done
        [ "$try" -lt 300 ] || fail "is not there"
        sleep 0.1
    done
    device=$(readlink -f "$link")
    block=/sys/block/${device#/dev/}
    case $kind in
    request_kib)
        limit=$block/queue/max_sectors_kb
        { echo "$number" >"$limit" && grep -qxF "$number" "$limit"; } ||
            fail "$(uname -r) refuses requests of $number KiB"
        ;;
    bytes_per_second)
        place=$(hierarchy)
        if [ -z "$place" ]; then
            place=/run/blkio
            mkdir -p "$place"
            mount -t cgroup -o blkio none "$place" ||
                fail "$(uname -r) has no blkio of control groups' first version (BLK_CGROUP), or something uses it"
        fi
        for limit in "$place/blkio.throttle.read_bps_device" "$place/blkio.throttle.write_bps_device"; do
            [ -e "$limit" ] || fail "$(uname -r) cannot hold it back (BLK_DEV_THROTTLING)"
            entry="$(cat "$block/dev") $number"
            echo "$entry" >"$limit"
            grep -qxF "$entry" "$limit" || fail "$(uname -r) refuses $number bytes per second"
        done
        ;;
    esac
done
