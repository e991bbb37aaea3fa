# SPDX-License-Identifier: GPL-2.0-only
"""Options of the lab's own tests."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-golden",
        action="store_true",
        help="write tests/golden anew instead of comparing; then read the diff",
    )
