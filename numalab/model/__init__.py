# SPDX-License-Identifier: GPL-2.0-only
"""Frozen values, and the files that people wrote -> values. Nothing here touches a guest, and nothing is
measured.

What a workload's file needs of it can be imported from here.
"""

from numalab.model.guest import MKFS_XFS
from numalab.model.topology import Bus
from numalab.model.values import Phase, SizeClass, Value

__all__ = ["MKFS_XFS", "Bus", "Phase", "SizeClass", "Value"]
