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
