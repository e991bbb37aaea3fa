#!/bin/bash
# Put a source tree back as it was before a variant patched it: restore.sh SOURCE
#
# SOURCE.applied is the journal of variant.sh: it is there while a variant is built, and after a build that was
# killed. Copies get a fresh mtime, so that make compiles again just what a patch touched. They are on the disk
# before the journal goes: a power cut must not leave an empty file in the tree. The caller holds the source's lock.
set -euo pipefail
source=$1 journal=$1.applied
rm -rf "$journal.new" "$journal.done"
[ -d "$journal" ] || exit 0
while IFS= read -r file; do
    if [ -e "$journal/files/$file" ]; then
        mkdir -p "$source/$(dirname "$file")" # a patch that removes a folder's last file removes the folder
        cp "$journal/files/$file" "$source/$file"
        sync "$source/$file"
    else
        rm -f "$source/$file"
        (cd "$source" && rmdir -p --ignore-fail-on-non-empty "$(dirname "$file")" 2>/dev/null) || true
    fi
done <"$journal/touched"
# First by name: a journal that is half removed would have originals removed as files that a patch had added.
mv -T "$journal" "$journal.done"
rm -rf "$journal.done"
