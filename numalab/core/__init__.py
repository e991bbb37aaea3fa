# SPDX-License-Identifier: GPL-2.0-only
"""Helpers that know nothing of guests and kernels: errors, logged steps, host programs, checksums, paths, the
state directory, the version. Whatever measures, judges or touches a guest belongs in a room above."""
