"""The runner that goes into the guest, run for real on this host."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import numalab
from numalab.inside import KEEP, snapshot

SCRIPT = Path(numalab.__file__).with_name("inside.py")


def inside(command: str, *, files: list[str] | None = None, limit: float = 60) -> dict[str, Any]:
    about = json.dumps({"command": command, "files": files or [], "limit": limit})
    # -I -S: nothing but the standard library, as in the guest
    done = subprocess.run([sys.executable, "-I", "-S", SCRIPT], input=about, capture_output=True, text=True, timeout=120, check=True)
    assert done.stderr == ""
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.parametrize(("command", "status"), [("true", 0), ("exit 3", 3), ("kill -9 $$", -9), ("no-such-command", 127)])
def test_status(command: str, status: int) -> None:
    told = inside(command)
    assert (told["status"], told["timed_out"]) == (status, False)


def test_streams() -> None:
    told = inside("echo out; echo err >&2; cat; printf '\\377'")
    assert (told["stdout"], told["stderr"]) == ("out\n\ufffd", "err\n"), "and the command's standard input is empty"


def test_the_end_of_long_streams_is_kept() -> None:
    told = inside(f"head -c {KEEP + 5} /dev/zero | tr '\\0' x; echo end")
    assert len(told["stdout"]) == KEEP
    assert told["stdout"].endswith("xend\n")


def test_snapshots_at_both_edges(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt", "gone.txt"):
        (tmp_path / name).write_text("numa_hit 1\n")
    told = inside(f"cd {tmp_path}; echo 'numa_hit 7' > a.txt; rm gone.txt; echo > new.txt", files=[f"{tmp_path}/*.txt", "/no/such/*"])
    assert {Path(path).name: text for path, text in told["before"].items()} == {"a.txt": "numa_hit 1\n", "b.txt": "numa_hit 1\n", "gone.txt": "numa_hit 1\n"}
    assert {Path(path).name: text for path, text in told["after"].items()} == {"a.txt": "numa_hit 7\n", "b.txt": "numa_hit 1\n", "new.txt": "\n"}


def test_snapshot_passes_over_what_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("text")
    assert snapshot([f"{tmp_path}/*"]) == {f"{tmp_path}/file": "text"}


def test_this_hosts_own_counters() -> None:
    told = inside("true", files=["/proc/vmstat"])
    assert "nr_free_pages " in told["before"]["/proc/vmstat"]
    assert "nr_free_pages " in told["after"]["/proc/vmstat"]


def test_time_limit(tmp_path: Path) -> None:
    """The command and its children end; what it said until then comes back."""
    told = inside(f"echo said; sh -c 'echo $$ > {tmp_path}/pid; exec sleep 1000' & wait", limit=0.5)
    assert (told["timed_out"], told["status"], told["stdout"]) == (True, -9, "said\n")
    pid = (tmp_path / "pid").read_text().strip()
    state = Path(f"/proc/{pid}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"


def test_times_are_the_commands() -> None:
    told = inside("i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done")
    assert told["user"] > 0
    assert 0 < told["elapsed"] < 120
    assert told["system"] >= 0
    assert told["load"] >= 0
