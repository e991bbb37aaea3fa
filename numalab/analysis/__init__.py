# SPDX-License-Identifier: GPL-2.0-only
"""Runs -> metrics, effects and verdicts. Numbers only; how they are shown is report's."""
