# SPDX-License-Identifier: GPL-2.0-only
"""The user's own SPECjbb: no phases without a copy; with one, run by a fake Java."""

from __future__ import annotations

import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from numalab.core.errors import InputError
from numalab.measure import runner
from numalab.model.values import SizeClass
from numalab.runs import counters


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A user's archive, without anything licensed in it."""
    (tmp_path / "SPECjbb.props").write_text("input.sequence_of_number_of_warehouses=1 2\n")
    with tarfile.open(tmp_path / "mine.tar", "w") as tar:
        tar.add(tmp_path / "SPECjbb.props", "SPECjbb2005/SPECjbb.props")
    return tmp_path / "mine.tar"


def done(params: object, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Run all phases on this machine."""
    module = runner.load("specjbb")
    for target, source in module.files(params).items():
        (tmp_path / Path(target).name).write_bytes(source.read_bytes())
    script = "; ".join(f"({phase.command}) || exit" for phase in module.phases(params)).replace(
        "/root", str(tmp_path)
    )
    return subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=60, check=False)


def test_it_is_absent_unless_it_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LAB_SPECJBB", raising=False)
    module = runner.load("specjbb")
    with pytest.raises(InputError, match="LAB_SPECJBB is not set"):
        module.phases(module.PARAMS[SizeClass.QUICK])
    monkeypatch.setenv("LAB_SPECJBB", str(tmp_path / "gone.tar"))
    module = runner.load("specjbb")
    with pytest.raises(InputError, match="there is no such file"):
        module.files(module.PARAMS[SizeClass.QUICK])


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        (
            'printf "  throughput =   100.5 SPECjbb2005 bops\\n  throughput = 99 SPECjbb2005 bops\\n"',
            0,
            {"most_bops_per_second": 100.5},
        ),
        ("echo INVALID", 1, {}),
        ("echo Exception; exit 7", 7, {}),
    ],
)
def test_it_is_run_and_its_score_told(
    monkeypatch: pytest.MonkeyPatch,
    program: Callable[[str, str], Path],
    archive: Path,
    tmp_path: Path,
    body: str,
    status: int,
    told: dict[str, float],
) -> None:
    program("java", f"[ -f SPECjbb.props ] || exit 9\n{body}")
    monkeypatch.setenv("LAB_SPECJBB", str(archive))
    module = runner.load("specjbb")
    result = done(module.PARAMS[SizeClass.QUICK], tmp_path)
    assert (result.returncode, counters.workload_numbers(result.stdout)) == (status, told), result.stderr
