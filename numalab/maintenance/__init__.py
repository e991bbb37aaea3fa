# SPDX-License-Identifier: GPL-2.0-only
"""What keeps a host fit for the lab: what it lacks (doctor), what nobody owns any more (gc), what no file
leads to (prune)."""
