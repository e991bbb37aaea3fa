# SPDX-License-Identifier: GPL-2.0-only
"""Programs of make targets; no part of the package."""
