# SPDX-License-Identifier: GPL-2.0-only
"""Workloads measured: phases run in a guest, with counters taken before and after each. agent runs in the
guest, alone. What is written about a run belongs in runs.record, which boots are made in experiment."""
