# SPDX-License-Identifier: GPL-2.0-only
"""Runs on disk: counters, samples and profiles of their phases, the index, and which runs may stand side by
side.

Nothing is judged here, and no guest is needed."""
