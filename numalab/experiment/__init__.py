# SPDX-License-Identifier: GPL-2.0-only
"""A case run: fresh guests of each kernel in turn, measured and judged."""
