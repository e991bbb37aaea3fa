# SPDX-License-Identifier: GPL-2.0-only
"""Kernel configurations as text: their options, and requested ones that are lost. Pure; runs no make."""

from __future__ import annotations

import re

_SET = re.compile(r"^(CONFIG_\w+)=(.+)$")
_UNSET = re.compile(r"^# (CONFIG_\w+) is not set$")


def options(text: str) -> dict[str, str]:
    """The options of a fragment or a .config -> their values ("n": is not set); the last line wins."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        if match := _SET.match(line.strip()):
            values[match[1]] = match[2]
        elif match := _UNSET.match(line.strip()):
            values[match[1]] = "n"
    return values


def lost(requested: str, config: str) -> list[str]:
    """One line for each requested option that the configuration lacks or has with another value."""
    actual = options(config)
    return [
        f"{name} (requested {value}, got {actual.get(name, 'n')})"
        for name, value in options(requested).items()
        if actual.get(name, "n") != value
    ]


def has_modules(config: str) -> bool:
    """Whether a configuration builds anything as a module."""
    return "m" in options(config).values()
