# SPDX-License-Identifier: GPL-2.0-only
"""Keeping a host fit for the lab: what it lacks (doctor), what nobody owns any more (gc), and kernels that no
recipe leads to (prune)."""
