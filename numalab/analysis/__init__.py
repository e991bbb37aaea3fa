# SPDX-License-Identifier: GPL-2.0-only
"""Runs -> metrics, effects and verdicts. Numbers only: a run's files belong in runs, text in report."""
