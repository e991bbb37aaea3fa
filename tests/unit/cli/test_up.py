# SPDX-License-Identifier: GPL-2.0-only
"""lab.py up: options become one request for each guest, or one clear error before anything is made."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from numalab.cli import guest as guest_commands
from numalab.cli import options
from numalab.core import state
from numalab.core.errors import HostError, InputError
from numalab.guest.launch import GuestRequest
from numalab.host import hypervisor
from numalab.model.values import jsonable
from tests.unit.cli.conftest import LabPy
from tests.unit.makers import FakeHost, record


def requests(
    topologies: list[str], kernels: str, names: list[str] | None = None, port: int | None = None
) -> list[GuestRequest]:
    return guest_commands._requests(
        topologies, guest_commands._kernels(kernels), names or [], {"ssh_port": port}, None, None, []
    )


def summaries(guest_requests: list[GuestRequest]) -> list[tuple[str, str, str]]:
    return [(request.name, request.topology_name, request.kernel.name) for request in guest_requests]


def test_a_copied_state_directory_does_not_end_the_originals_guests(
    lab_state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (state.folder("guests", "g") / "guest.json").write_text(json.dumps(jsonable(record("g"))))
    assert "2222" in options.inventory().read_text()
    copy = lab_state.with_name("copy")
    shutil.copytree(lab_state, copy)
    monkeypatch.setenv("LAB_STATE", str(copy))
    with pytest.raises(
        HostError,
        match=f"^guest g: it is a guest of the lab in {lab_state}, of which {copy} is a copy, or was moved: run lab.py",
    ):
        options.open_guest("g")
    assert "2222" not in options.inventory().read_text()


def test_list_goes_on_where_one_libvirt_does_not_answer(
    lab_state: Path, lab_py: LabPy, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, uri in (("far", "qemu+ssh://far/system"), ("far2", "qemu+ssh://far/system"), ("near", "")):
        one = record(name).model_copy(update={"uri": uri or record(name).uri})
        (state.folder("guests", name) / "guest.json").write_text(json.dumps(jsonable(one)))
    asked = []

    def connect(uri: str | None, *_: object) -> FakeHost:
        asked.append(uri)
        if uri == "qemu+ssh://far/system":
            raise HostError(f"libvirt at {uri}: no route to host")
        return FakeHost()

    monkeypatch.setattr(hypervisor, "connect", connect)
    code, out, err = lab_py("list")
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines()[1:]] == [
        ["far", "unknown"],
        ["far2", "unknown"],
        ["near", "lost"],
    ]
    assert err.count("no route to host") == 1
    assert len(asked) == 2, "each libvirt once"


def test_one_guest_for_each_kernel(lab_state: Path) -> None:
    assert summaries(requests(["uma-2g"], "debian")) == [("uma-2g", "uma-2g", "debian")]
    assert summaries(requests(["uma-2g"], "6.1,6.1-slowscan-before")) == [
        ("uma-2g-6.1", "uma-2g", "6.1"),
        ("uma-2g-6.1-slowscan-before", "uma-2g", "6.1-slowscan-before"),
    ]
    assert summaries(requests(["uma-2g", "uma-2g"], "debian,6.1")) == [
        ("uma-2g-debian", "uma-2g", "debian"),
        ("uma-2g-6.1", "uma-2g", "6.1"),
        ("uma-2g-debian-2", "uma-2g", "debian"),
        ("uma-2g-6.1-2", "uma-2g", "6.1"),
    ]
    assert [name for name, *_ in summaries(requests(["uma-2g"], "6.1,6.12", ["old", "new"]))] == [
        "old",
        "new",
    ]


@pytest.mark.parametrize(
    ("kernels", "names", "port", "message"),
    [
        ("6.1,", [], None, "'' is not a name"),
        ("6.1,2.4", [], None, r"no kernels file .*2\.4\.yml"),
        ("6.1,6.1", [], None, r"--kernel: 6\.1 is there twice"),
        ("6.1,6.12", ["one"], None, "--name: 1 names for 1 topologies times 2 kernels"),
        ("6.1,6.12", ["one", "one"], None, "--name: 'one' is there twice"),
        ("6.1,6.12", [], 2222, "--ssh-port: one port cannot serve several guests"),
    ],
)
def test_bad_lists(lab_state: Path, kernels: str, names: list[str], port: int | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        requests(["uma-2g"], kernels, names, port)
