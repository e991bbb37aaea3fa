# SPDX-License-Identifier: GPL-2.0-only
"""Workloads measured: phases run in a guest, counters taken at each edge. agent runs in the guest, alone."""
