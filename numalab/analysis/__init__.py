# SPDX-License-Identifier: GPL-2.0-only
"""Runs -> metrics, effects and verdicts. Numbers only: files of runs belong in runs, text and charts in
report."""
