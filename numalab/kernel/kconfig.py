# SPDX-License-Identifier: GPL-2.0-only
"""Kernel configurations as text: their options, and requested ones that are lost. Pure; runs no make."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping

_SET = re.compile(r"^(CONFIG_\w+)=(.+)$")
_UNSET = re.compile(r"^# (CONFIG_\w+) is not set$")
_BUILD = re.compile(
    r"CONFIG_(LOCALVERSION(_AUTO)?|BUILD_SALT|VERSION_SIGNATURE|\w+_VERSION_TEXT"
    r"|(AS|CLANG|GCC|LD|LLD|PAHOLE|RUSTC|RUSTC_LLVM)_VERSION)"
)
"""Options that name a build or the versions of its tools, and change nothing in the kernel."""


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


def in_force(config: str) -> dict[str, str]:
    """The options of a .config that are set and make a difference to the kernel. An option that is not set is
    the same as one that the kernel does not have."""
    return {
        name: value for name, value in options(config).items() if value != "n" and not _BUILD.fullmatch(name)
    }


def digest(options: Mapping[str, str]) -> str:
    """SHA-256 of options, whatever their order."""
    return hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()


def has_modules(config: str) -> bool:
    """Whether a configuration builds anything as a module."""
    return "m" in options(config).values()
