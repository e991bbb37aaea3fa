# SPDX-License-Identifier: GPL-2.0-only
"""The command line: one module a noun. Arguments in, calls to the rooms below, text and an exit status
out."""
