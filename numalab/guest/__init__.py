# SPDX-License-Identifier: GPL-2.0-only
"""Guests: made, reached, verified, put in order, used and ended."""
