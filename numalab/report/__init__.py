# SPDX-License-Identifier: GPL-2.0-only
"""Runs and verdicts -> what a person reads: text, mail, tables, HTML; and what a program does: JSON, CSV."""
