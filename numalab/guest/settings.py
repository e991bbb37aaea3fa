# SPDX-License-Identifier: GPL-2.0-only
"""Settings of guests that help texts show. Imports nothing: `lab.py --help` loads this, and none of the rest
of the room."""

from __future__ import annotations

UP_SECONDS = 300.0
"""From nothing to verified. The slowest `up` took 75 s: 16 vCPUs, TCG on two cores, Debian's kernel."""
KNOBS = ("scan_delay_ms", "scan_period_min_ms", "scan_period_max_ms", "scan_size_mb")
"""Settings of automatic NUMA balancing: /sys/kernel/debug/sched/numa_balancing since 5.13, sysctls before."""
