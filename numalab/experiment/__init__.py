# SPDX-License-Identifier: GPL-2.0-only
"""A case run: fresh guests of each kernel in turn, measured and judged. Running one workload belongs in
measure, what follows from the runs in analysis."""
