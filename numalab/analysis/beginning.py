# SPDX-License-Identifier: GPL-2.0-only
"""How the guests of runs began where that was no plain boot, in words: for verdicts, mails and reports.

Not here: which runs may stand side by side (runs.compatibility).
"""

from __future__ import annotations

from collections.abc import Sequence

from numalab.model.run import Run


def restored(runs: Sequence[Run]) -> str:
    """How many guests began from ready states, and what that means for their scatter; '' for none."""
    begun = [run.guest.ready_state for run in runs if run.guest.ready_state]
    if not begun:
        return ""
    keys = list(dict.fromkeys(begun))
    one = "one saved state" if len(keys) == 1 else f"{len(keys)} saved states"
    return (
        f"{len(begun)} of {len(runs)} boots are none: their guests began from {one} (ready state"
        f" {', '.join(keys)}); those of one state share its boot: kernel addresses, and where memory was by"
        " then"
    )


def prepared(runs: Sequence[Run]) -> str:
    """How many guests began on prepared disks, which, and what was no part of their runs; '' for none."""
    begun = [run for run in runs if run.prepared]
    if not begun:
        return ""
    disks = dict.fromkeys(
        f"{disks.key}, made with {disks.kernel} {disks.release}".rstrip()
        for run in begun
        if (disks := run.guest.prepared)
    )
    phases = dict.fromkeys(name for run in begun for name in run.prepared)
    return (
        f"{len(begun)} of {len(runs)} boots began on prepared disks ({'; '.join(disks)}): {', '.join(phases)}"
        " were done once, in another guest, and are no part of them"
    )
