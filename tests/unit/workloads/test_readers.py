# SPDX-License-Identifier: GPL-2.0-only
"""The readers' command, with a dd that only tells what it was given."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from numalab.core.errors import InputError
from numalab.measure import runner
from numalab.model.values import SizeClass


def parts(command: str) -> list[tuple[int, int]]:
    """(skip, count) of each reader, in blocks of 64 KiB."""
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=True)
    return sorted(
        (int(skip), int(count)) for count, skip in re.findall(r"count=(\d+) skip=(\d+)", done.stdout)
    )


def test_each_reads_its_part(program: Callable[[str, str], Path]) -> None:
    program("dd", 'echo "$@"')
    module = runner.load("readers")
    (read,) = module.phases(module.Params(readers=3, mib=2, seconds=1))
    assert parts(read.command) == [(0, 32), (32, 32), (64, 32)]


def test_the_full_size_reads_four_times_the_memory(program: Callable[[str, str], Path]) -> None:
    program("dd", 'echo "$@"')
    program("blockdev", f"echo {1 << 60}")
    module = runner.load("readers")
    (read,) = module.phases(module.PARAMS[SizeClass.FULL])
    blocks = parts(read.command)
    total = next(int(line.split()[1]) for line in Path("/proc/meminfo").read_text().splitlines())
    assert [skip for skip, _ in blocks] == [number * blocks[0][1] for number in range(4)]
    assert sum(count for _, count in blocks) * 64 == pytest.approx(4 * total, rel=0.001)


def test_no_further_than_the_disk_goes(program: Callable[[str, str], Path]) -> None:
    program("dd", 'echo "$@"')
    program("blockdev", f"echo {8 << 20}")
    module = runner.load("readers")
    (read,) = module.phases(module.Params(readers=2, memories=4, seconds=1))
    assert parts(read.command) == [(0, 64), (64, 64)]


def test_something_is_to_be_read() -> None:
    module = runner.load("readers")
    with pytest.raises(InputError, match="mib or memories"):
        module.phases(module.Params(seconds=1))
    (read,) = module.phases(module.Params(mib=1, memories=2, seconds=1))
    assert "each=1;" in read.command, "mib goes before memories, which a size has by default"
