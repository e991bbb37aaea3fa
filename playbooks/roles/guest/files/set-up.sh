#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# set-up.sh ARCHIVE OUT UNIT…: a guest in order for the lab. Unpacks ARCHIVE, its configuration, over the root, and
# masks the UNITs. Leaves in the tar OUT, for the lab: vmlinuz, initrd.img, config, host_key.pub, and the word root.
# One script, for which the guest needs no Python: each module of Ansible's takes it seconds under emulation.
set -eu
archive=$1 out=$2
shift 2

tar --extract --no-overwrite-dir --file "$archive" --directory /
rm -f "$archive"
/bin/busybox sh -n /usr/local/sbin/lab-init # the lab's init has its shell

systemctl --quiet enable systemd-networkd.service serial-getty@hvc0.service
# Everything that would wake up in the middle of a measurement, and the getty that hangs ttyS0 up and loses what the kernel
# prints there.
systemctl --quiet mask "$@" # some are of packages that this image lacks

# For guests that own their kernel.
[ -e /boot/grub/i386-pc/core.img ] || grub-install --target=i386-pc /dev/vda
[ -e /boot/grub/grub.cfg ] || update-grub

# shellcheck disable=SC2012 # by version, the newest first; names of kernels are plain
release=$(ls -rv /boot/vmlinuz-* | sed -n '1s,^/boot/vmlinuz-,,p')
files=$(mktemp -d)
trap 'rm -rf "$files"' EXIT
cp "/boot/vmlinuz-$release" "$files/vmlinuz"
cp "/boot/config-$release" "$files/config"
cp /etc/ssh/ssh_host_ed25519_key.pub "$files/host_key.pub"
sh /run/make-initrd "$release" "$files/initrd.img"
root=$(findmnt --noheadings --output PARTUUID /)
echo "PARTUUID=$root" >"$files/root"
tar --create --file "$out" --directory "$files" vmlinuz initrd.img config host_key.pub root
