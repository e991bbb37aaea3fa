# SPDX-License-Identifier: GPL-2.0-only
"""Measurements for the numbers in the documentation: how long things take, and how often verdicts err."""
