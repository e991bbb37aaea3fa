#!/bin/bash
# Build one variant in a build tree (the current directory): variant.sh SOURCE JOB
#
# JOB is the folder of what the lab sent, of this build alone: JOB/order names the patches ("+ FILE" to apply, "- FILE"
# to take back), JOB/touched the files that they change, JOB/arguments make's. The kernel comes to lie in
# JOB/result.tar, where no other build can replace it before the lab fetches it.
# Before the first patch, what will be touched is copied to a journal beside the source; restore.sh takes it from
# there, however this ends: at once, or, after a kill -9, at the next start. The caller holds the source's lock.
set -euo pipefail
source=$1 job=$2 journal=$1.applied
export GIT_CEILING_DIRECTORIES=${source%/*} # git apply must not take itself to be in a repository above

note_what_will_change() {
    mkdir -p "$journal.new/files"
    cp "$job/touched" "$journal.new/touched"
    while IFS= read -r file; do
        [ ! -e "$source/$file" ] || (cd "$source" && cp -p --parents "$file" "$journal.new/files")
    done <"$job/touched"
    find "$journal.new" -type f -exec sync {} +
    mv "$journal.new" "$journal"
}

# A make that was killed may have left half an object with a fresh date.
drop_half_made() {
    [ -e busy ] || return 0
    find . -type f -newer busy \( -name '*.o' -o -name '*.a' -o -name '*.ko' -o -name 'vmlinux*' \) -delete
    rm busy
}

bash "$job/restore.sh" "$source"
drop_half_made
trap 'bash "$job/restore.sh" "$source"' EXIT
trap 'exit 143' TERM INT HUP
[ ! -s "$job/touched" ] || note_what_will_change
while read -r way file; do
    reverse=()
    [ "$way" = + ] || reverse=(--reverse)
    (cd "$source" && git apply "${reverse[@]}" "$job/$file") 2>refused || { echo "refused: $file" >&2; cat refused >&2; exit 1; }
done <"$job/order"

cmp -s .config configured || cp configured .config
mapfile -t arguments <"$job/arguments"
if grep -q Kconfig "$job/touched"; then
    mapfile -t words <"$job/make"
    bash "$job/olddefconfig.sh" "$source" "${words[@]}"
fi
touch busy
make -C "$source" O="$PWD" -j"$(nproc)" "${arguments[@]}" >build.log 2>&1 || {
    rm busy # it ended by itself: what make did not finish, make has removed
    grep -m3 -E ': (fatal )?error: |No space left' build.log >&2 || grep -m1 -B1 -F ' *** ' build.log >&2 || true
    tail -n 20 build.log >&2
    exit 1
}
modules=()
if [[ " ${arguments[*]} " == *' modules '* ]]; then
    rm -rf modules.tree
    make -C "$source" O="$PWD" "${arguments[@]:0:${#arguments[@]}-2}" INSTALL_MOD_PATH="$PWD/modules.tree" INSTALL_MOD_STRIP=1 modules_install >>build.log 2>&1
    tar -C modules.tree/lib/modules -cf modules.tar .
    modules=(modules.tar)
fi
sync -f . # what make wrote is whole on the disk before nobody doubts it any more
rm busy
cp arch/x86/boot/bzImage bzImage
cp .config config
tar -cf "$job/result.tar" bzImage config System.map build.log "${modules[@]}"
