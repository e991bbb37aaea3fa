# SPDX-License-Identifier: GPL-2.0-only
"""How long things take and how often they err: measured, for the numbers in the documentation."""
