# SPDX-License-Identifier: GPL-2.0-only
"""Tools that know nothing of guests and kernels: errors, steps, programs, the state directory. What measures
or judges is above."""
