# SPDX-License-Identifier: GPL-2.0-only
"""A guest's life: made, booted, reached, verified, provisioned and ended. How a domain, a disk or a
connection is made belongs in host; running workloads in a guest belongs in measure."""
