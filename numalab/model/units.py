# SPDX-License-Identifier: GPL-2.0-only
"""Sizes and CPU lists: from text with a unit, or in the kernel's cpulist format, to numbers and back."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40
_UNITS = {"": 1, "K": KIB, "M": MIB, "G": GIB, "T": TIB, "P": 1 << 50}


def parse_size(text: object) -> int:
    """'512MiB', '4G', '500T' -> bytes. Units are binary, as in truncate(1) and xfs_io(8)."""
    if isinstance(text, str):
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:([KMGTP])(?:iB)?|B)", text.strip())
        if match:
            return int(Decimal(match[1]) * _UNITS[match[2] or ""])
    raise ValueError(f"{text!r} is not a size: write a number and a binary unit, such as 512MiB, 4G or 500T")


def parse_nonzero_size(text: object) -> int:
    """Parse a size as parse_size does; ValueError for a size of nothing."""
    size = parse_size(text)
    if not size:
        raise ValueError(f"{text!r}: must be more than nothing")
    return size


def show_size(size: int) -> str:
    """Bytes -> the shortest exact text: 3584MiB, 500TiB."""
    unit, scale = next(
        (unit, scale)
        for unit, scale in reversed(_UNITS.items())
        if scale == 1 or (size and size % scale == 0)
    )
    return f"{size // scale}{unit}{'iB' if unit else 'B'}"


def show_part(done: int, size: int) -> str:
    """Bytes of a transfer -> '12 of 130 MiB'; '12 MiB' when `size` is 0, not known."""
    return f"{min(done, size) / MIB:,.0f} of {size / MIB:,.0f} MiB" if size else f"{done / MIB:,.0f} MiB"


def parse_cpus(text: object) -> tuple[int, ...]:
    """'0-3,8' -> (0, 1, 2, 3, 8): the kernel's cpulist format; '' is no CPU."""
    if isinstance(text, int) and not isinstance(text, bool):
        text = str(text)
    if not isinstance(text, str) or not re.fullmatch(r"(\d+(-\d+)?(,\d+(-\d+)?)*)?", text):
        raise ValueError(f"{text!r} is not a CPU list such as 0-3,8")
    cpus: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        if int(last or first) < int(first) or int(last or first) > 4096:
            raise ValueError(f"{part!r} is not a range of CPUs")
        cpus.extend(range(int(first), int(last or first) + 1))
    return tuple(sorted(set(cpus)))


def show_cpus(cpus: tuple[int, ...]) -> str:
    """(0, 1, 2, 3, 8) -> '0-3,8'."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and runs[-1][1] == cpu - 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)


Size = Annotated[int, BeforeValidator(parse_size), PlainSerializer(show_size, when_used="json")]
Cpus = Annotated[tuple[int, ...], BeforeValidator(parse_cpus), PlainSerializer(show_cpus, when_used="json")]
