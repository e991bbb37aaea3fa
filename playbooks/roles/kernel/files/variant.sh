#!/bin/bash
# Build one variant in a build tree (the current directory): variant.sh SOURCE
#
# job/order names the patches ("+ FILE" to apply, "- FILE" to take back), job/touched the files that they change,
# job/arguments make's. Before the first patch, what will be touched is copied to a journal beside the source;
# from there it comes back, however this ends: at once, or, after a kill -9, at the next start. Copies get a fresh
# mtime, so that make compiles again just what a patch touched. The caller holds the source's lock.
set -euo pipefail
source=$1 journal=$1.applied
export GIT_CEILING_DIRECTORIES=${source%/*} # git apply must not take itself to be in a repository above

restore() {
    rm -rf "$journal.new"
    [ -d "$journal" ] || return 0
    while IFS= read -r file; do
        if [ -e "$journal/files/$file" ]; then
            cp "$journal/files/$file" "$source/$file"
        else
            rm -f "$source/$file"
            (cd "$source" && rmdir -p --ignore-fail-on-non-empty "$(dirname "$file")" 2>/dev/null) || true
        fi
    done <"$journal/touched"
    rm -rf "$journal"
}

note_what_will_change() {
    mkdir -p "$journal.new/files"
    cp job/touched "$journal.new/touched"
    while IFS= read -r file; do
        [ ! -e "$source/$file" ] || (cd "$source" && cp -p --parents "$file" "$journal.new/files")
    done <job/touched
    mv "$journal.new" "$journal"
}

# A make that was killed may have left half an object with a fresh date.
drop_half_made() {
    [ -e busy ] || return 0
    find . -type f -newer busy \( -name '*.o' -o -name '*.a' -o -name '*.ko' -o -name 'vmlinux*' \) -delete
    rm busy
}

restore
drop_half_made
trap restore EXIT
trap 'exit 143' TERM INT HUP
[ ! -s job/touched ] || note_what_will_change
while read -r way file; do
    reverse=()
    [ "$way" = + ] || reverse=(--reverse)
    (cd "$source" && git apply "${reverse[@]}" "$OLDPWD/job/$file") 2>refused || { echo "refused: $file" >&2; cat refused >&2; exit 1; }
done <job/order

cmp -s .config configured || cp configured .config
mapfile -t arguments <job/arguments
if grep -q Kconfig job/touched; then
    make -s -C "$source" O="$PWD" "${arguments[@]}" olddefconfig >build.log 2>&1
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
rm busy
cp arch/x86/boot/bzImage bzImage
cp .config config
tar -cf result.tar bzImage config System.map build.log "${modules[@]}"
