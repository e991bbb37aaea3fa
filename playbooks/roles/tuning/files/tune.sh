#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# tune.sh sysctl:NAME=VALUE knob:NAME=VALUE...: write what differs, and prove all of it by reading it back.
# Knobs of NUMA balancing are in debugfs since 5.13; before that they were sysctls.
# optional:NAME=VALUE is a sysctl that the kernel may lack (said: lacks NAME); instead:NAME:OTHER=VALUE is for then.
set -eu
path_of() { echo "/proc/sys/$(echo "$1" | tr . /)"; }
read_back() { tr -s '\t ' '  ' <"$1"; }
for pair in "$@"; do
    kind=${pair%%:*} rest=${pair#*:}
    case $kind in
    optional)
        kind=sysctl
        [ -e "$(path_of "${rest%%=*}")" ] || { echo "lacks ${rest%%=*}"; continue; }
        ;;
    instead)
        kind=sysctl lacked=${rest%%:*} rest=${rest#*:}
        [ ! -e "$(path_of "$lacked")" ] || continue
        ;;
    esac
    name=${rest%%=*} want=${rest#*=}
    if [ "$kind" = sysctl ]; then
        path=$(path_of "$name")
    else
        mountpoint -q /sys/kernel/debug || mount -t debugfs none /sys/kernel/debug
        path=/sys/kernel/debug/sched/numa_balancing/$name
        [ -e "$path" ] || path=/proc/sys/kernel/numa_balancing_$name
    fi
    [ -e "$path" ] || { echo "$(uname -r) has no $kind $name" >&2; exit 1; }
    if [ "$(read_back "$path")" != "$want" ]; then
        { echo "$want" >"$path"; } 2>/dev/null || { echo "$kind $name: $want is refused" >&2; exit 1; }
        echo "changed $name"
    fi
    found=$(read_back "$path")
    [ "$found" = "$want" ] || { echo "$kind $name: $want was written, $found is read back" >&2; exit 1; }
done
