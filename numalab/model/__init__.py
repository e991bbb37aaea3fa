# SPDX-License-Identifier: GPL-2.0-only
"""Frozen values, and the readers that make them from the files people write. Nothing here touches a guest,
the network or the state directory, and nothing is measured or judged.

What a workload's file needs of the model can be imported from here.
"""

from numalab.model.guest import MKFS_XFS
from numalab.model.topology import Bus
from numalab.model.values import Phase, SizeClass, Value

__all__ = ["MKFS_XFS", "Bus", "Phase", "SizeClass", "Value"]
