# SPDX-License-Identifier: GPL-2.0-only
"""Programs that make targets run; not part of the package."""
