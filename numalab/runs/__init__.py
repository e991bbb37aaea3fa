# SPDX-License-Identifier: GPL-2.0-only
"""Runs on disk: their folders, counters, samples and profiles, the index, and which runs may be compared.

Nothing is judged here (analysis), and no guest is needed.
"""
