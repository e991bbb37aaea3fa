# SPDX-License-Identifier: GPL-2.0-only
"""Which Packer builds images, on hosts that are fakes: of PATH there is only what a test puts there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from numalab.core.errors import HostError
from numalab.core.process import Deadline
from numalab.host import apt, image, packer

Program = Callable[[str, str], Path]


@pytest.fixture
def bare(program: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A host with the programs of every system alone; returns the file with what apt-get was told."""
    place = program("true", "exit 0").parent
    for name in ("sh", "cat", "mkdir", "touch"):
        (place / name).symlink_to(shutil.which(name) or "")
    monkeypatch.setenv("PATH", str(place))
    return tmp_path / "log"


def debian(program: Program, log: Path) -> None:
    """Adds apt and dpkg, which have a Packer to give."""
    program("apt-get", f'echo "$@" >> {log}; case "$*" in *" download "*) touch packer.deb;; esac')
    program("dpkg-deb", 'mkdir -p "$3/usr/bin" && echo packer > "$3/usr/bin/packer"')


def test_the_hosts_own_comes_first(bare: Path, program: Program, deadline: Deadline) -> None:
    debian(program, bare)
    own = program("packer", "exit 0")
    assert packer.program() == packer.fetch(deadline) == own
    assert not bare.exists(), "nothing is fetched"


def test_cracklibs_packer_is_none(bare: Path, program: Program, deadline: Deadline) -> None:
    """On Fedora /usr/sbin/packer is a link to cracklib-packer."""
    debian(program, bare)
    cracklib = program("cracklib-packer", "exit 1")
    cracklib.with_name("packer").symlink_to(cracklib)
    assert packer.program() is None
    assert packer.fetch(deadline) != cracklib


def test_debians_is_fetched_once(bare: Path, program: Program, deadline: Deadline, lab_state: Path) -> None:
    debian(program, bare)
    assert packer.program() is None
    fetched = packer.fetch(deadline)
    assert fetched == lab_state / "tools/packer/packer"
    assert packer.program() == packer.fetch(deadline) == fetched
    calls = bare.read_text().splitlines()
    assert [call.split()[-1] for call in calls] == ["update", "packer"]
    for call in calls:
        assert f"Dir::State={lab_state}/" in call
        assert f"Dir::Etc::SourceList={lab_state}/" in call
    assert sorted(path.name for path in fetched.parent.iterdir()) == ["packer", "packer.sha256"]


def test_its_lists_are_debian_12s_and_signed(
    bare: Path, program: Program, deadline: Deadline, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.gpg"
    keys.touch()
    monkeypatch.setattr(apt, "KEYS", keys)
    debian(program, bare)
    apt.lists(packer.SUITE, tmp_path / "scratch", deadline)
    lines = (tmp_path / "scratch/sources.list").read_text().splitlines()
    assert lines[0] == f"deb [signed-by={keys}] http://deb.debian.org/debian bookworm main"
    assert len(lines) == 2


def test_a_damaged_one_is_fetched_again(
    bare: Path, program: Program, deadline: Deadline, caplog: pytest.LogCaptureFixture
) -> None:
    debian(program, bare)
    fetched = packer.fetch(deadline)
    fetched.write_text("half")
    assert packer.fetch(deadline).read_text() == "packer\n"
    assert f"{fetched} is damaged" in caplog.text


def test_its_bytes_are_told(
    bare: Path, program: Program, deadline: Deadline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is downloaded: this apt-get waits until it is told."""
    heard = tmp_path / "heard"
    said: list[str] = []

    def hear(line: str) -> None:
        said.append(line)
        heard.touch()

    monkeypatch.setattr(apt, "moving", hear)
    debian(program, bare)
    program("sleep", f"exec {shutil.which('sleep', path=os.defpath)} 0.05")
    program("truncate", f'exec {shutil.which("truncate", path=os.defpath)} "$@"')
    program(
        "apt-get",
        "truncate -s 12M packer.deb; echo 'Get:1 http://deb.debian.org/debian bookworm/main amd64 x [138 MB]'\n"
        f"while [ ! -e {heard} ]; do sleep; done",
    )
    (tmp_path / "unpacked").mkdir()
    apt.unpack("packer", [], tmp_path / "unpacked", deadline)
    assert set(said[:-1]) == {"12 of 132 MiB"}
    assert said[-1] == "", "it is over"


@pytest.mark.parametrize("fault", ["exit 100", "exit 0"], ids=["no mirror", "no package"])
def test_debian_cannot_be_reached(bare: Path, program: Program, deadline: Deadline, fault: str) -> None:
    program("apt-get", fault)
    program("dpkg-deb", "exit 0")
    with pytest.raises(
        HostError, match=r"Debian bookworm's cannot be had from .* or build the image without it"
    ):
        packer.fetch(deadline)
    assert packer.program() is None


def test_a_host_without_apt(bare: Path, deadline: Deadline) -> None:
    assert not packer.fetchable()
    with pytest.raises(HostError, match=r"without apt-get and dpkg-deb .* or build the image without it"):
        packer.fetch(deadline)


@pytest.mark.parametrize(
    ("host", "with_packer", "builder"),
    [
        ("packer", True, "_packer"),
        ("packer", False, "_by_itself"),
        ("debian", True, "_packer"),
        ("other", True, "_by_itself"),
    ],
)
def test_who_boots_the_base(
    bare: Path,
    program: Program,
    deadline: Deadline,
    monkeypatch: pytest.MonkeyPatch,
    lab_state: Path,
    host: str,
    with_packer: bool,
    builder: str,
) -> None:
    """Either way the manifest is the same: the way is no input of an image."""
    if host == "packer":
        program("packer", "exit 0")
    if host == "debian":
        debian(program, bare)
    used: list[str] = []

    def provision(name: str) -> Callable[..., None]:
        def leave(_name: str, _recipe: object, _disk: object, scratch: Path, *_: object) -> None:
            used.append(name)
            for file in (*image.FILES, "root"):
                (scratch / file).write_bytes(os.urandom(1) if file == "disk.qcow2" else b"x")

        return leave

    for name in ("_packer", "_by_itself"):
        monkeypatch.setattr(image, name, provision(name))
    monkeypatch.setattr(image, "_base", lambda *_: lab_state)
    built = image.build("debian12", accelerator="tcg", deadline=deadline, with_packer=with_packer)
    assert used == [builder]
    assert image.existing("debian12", deadline) == built
