# SPDX-License-Identifier: GPL-2.0-only
"""A host kept fit for the lab: what it lacks (doctor), what nobody owns (gc), unused kernels (prune)."""
