# SPDX-License-Identifier: GPL-2.0-only
"""Runs and verdicts -> text, mail, tables, charts and HTML for people; JSON and CSV for programs. Computing a
metric or an answer belongs in analysis, reading a run's folder in runs."""
