# SPDX-License-Identifier: GPL-2.0-only
"""gc: what nobody owns is removed; what somebody may own, here or on another machine, stays."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from numalab.core import state
from numalab.core.errors import DeadlinePassed, HostError
from numalab.core.process import Deadline
from numalab.guest import guest
from numalab.host import disks, image
from numalab.host.domain import Mark, mark
from numalab.host.image import Image
from numalab.host.remote import Where
from numalab.maintenance import gc
from numalab.model.values import jsonable
from tests.unit.guest.test_guest import held
from tests.unit.makers import FakeHost, record


def put(
    name: str,
    *,
    host: FakeHost | None = None,
    maker: str | None = None,
    ready: bool = True,
    uri: str = FakeHost.uri,
    written: bool = True,
) -> Path:
    """A guest's folder as its maker (by default a dead process) left it; with a host, its domain too."""
    place = state.folder("guests") / name
    place.mkdir()
    known = guest.Maker(process=maker or gone_process(), node="iron", uri=uri)
    (place / "maker").write_text(json.dumps(jsonable(known)))
    guest_record = record(name, ready=ready, uri=uri)
    if written:
        (place / "guest.json").write_text(json.dumps(jsonable(guest_record), indent=1))
    if host:
        host.add(mark(guest_record.spec))
    return place


def gone_process() -> str:
    """A process of this machine and boot that has ended."""
    child = subprocess.Popen(["true"])
    child.wait()
    here = str(state.this_process()).split(".")
    return ".".join([*here[:2], str(child.pid), "1"])


def test_what_a_dead_maker_left_goes(lab_state: Path, deadline: Deadline) -> None:
    host = FakeHost()
    put("claimed", written=False)
    put("prepared", ready=False)
    put("started", ready=False, host=host)
    put("lost")
    (lab_state / "guests" / "empty").mkdir()
    gone = lab_state / "guests" / "gone"
    host.add(Mark(uuid="u", name="gone", directory=str(gone), lab=state.identity()))
    (lab_state / "images" / f".making-{gone_process()}-77-x").mkdir(parents=True)
    (lab_state / f".making-{gone_process()}-77-x.xfs").touch()
    earlier = lab_state / "runs" / f".making-{gone_process().split('.')[2]}-20150307T152000-a"
    claim = lab_state / "guests" / ".claim-abc"
    for path in (earlier, claim):  # of labs before 2026-11, which did not record the machine
        path.mkdir(parents=True)
        os.utime(path, (time.time() - 2 * state.DAY,) * 2)
    removed = gc.collect(host.real(), deadline)
    assert sorted(removed) == [
        "domain of gone: its guest is gone",
        "guest claimed: its up did not end",
        "guest empty: its up did not end",
        "guest lost: it was lost",
        "guest prepared: its up did not end",
        "guest started: its up did not end",
        "half-made 20150307T152000-a",
        "half-made abc",
        "half-made x",
        "half-made x.xfs",
    ]
    assert (guest.names(), host.domains, sorted(host.stopped)) == ([], {}, ["gone", "started"])
    assert not [path for path in lab_state.rglob("*") if path.name.startswith((".making", ".claim"))]
    assert gc.collect(host.real(), deadline) == []


def test_what_killed_pushes_left_on_the_hypervisor_goes(
    monkeypatch: pytest.MonkeyPatch, deadline: Deadline
) -> None:
    host = FakeHost()
    host.where = Where("there")
    monkeypatch.setattr(
        Where, "sweep", lambda where, deadline: [Path("/lab/cache/.part-x-y-probe.cpio")] if where.ssh else []
    )
    assert gc.collect(host.real(), deadline) == ["half-made /lab/cache/.part-x-y-probe.cpio on there"]


def test_nothing_else_is_touched(lab_state: Path, tmp_path: Path, deadline: Deadline) -> None:
    host, me = FakeHost(), str(state.this_process())
    put("up", host=host)
    put("made-now", maker=me, ready=False, host=host)
    put("lost-but-in-use", maker=me)  # by an experiment, which still has to read its console
    put("claimed-now", maker=me, written=False)
    put("elsewhere", uri="qemu+ssh://other/system")
    host.add(
        Mark(
            uuid="1",
            name="foreign",
            directory=str(tmp_path / "another-lab" / "guests" / "foreign"),
            lab="another",
        )
    )
    host.add(
        Mark(
            uuid="2",
            name="twin",
            directory=str(lab_state / "guests" / "twin"),
            lab="the same path on another machine",
        )
    )
    kept = [
        lab_state / "images" / f".making-{state.this_process()}-7-x",
        lab_state / "runs" / ".making-aaaaaa.bbbbbb.1.2-7-x",
    ]
    for path in kept:
        path.mkdir(parents=True)
    (state.folder("pool", "up-2") / "500TB.raw").touch()
    put_away = state.folder("runs", "2015-03")
    (put_away / "20150307T152000-a").mkdir()
    (put_away / "20150307T152000-a" / "run.json").touch()
    by_date = state.folder("runs", "20150307T000000-all")
    (put_away / "20150307T152000-a").rename(by_date / "20150307T152000-a")
    (state.folder("runs") / "lost+found").mkdir()
    for path in (
        *state.folder("runs").rglob("run.json"),
        by_date / "20150307T152000-a",
        *state.folder("runs").iterdir(),
    ):
        os.utime(path, (time.time() - 2 * state.DAY,) * 2)
    kept += [put_away, by_date / "20150307T152000-a" / "run.json", state.folder("runs") / "lost+found"]
    (state.folder("runs") / "20150307T152000-xfsrepair").mkdir()
    names, domains = guest.names(), dict(host.domains)
    assert gc.collect(host.real(), deadline) == []
    assert (guest.names(), host.domains, host.stopped) == (names, domains, [])
    assert all(path.exists() for path in kept)
    assert (lab_state / "pool" / "up-2" / "500TB.raw").exists()
    assert (lab_state / "runs" / "20150307T152000-xfsrepair").exists()


@pytest.mark.parametrize("text", ["", "not JSON", '{"format": 99}', "later"])
def test_a_guest_whose_record_cannot_be_read_stays(
    text: str, lab_state: Path, deadline: Deadline, caplog: pytest.LogCaptureFixture
) -> None:
    """Another checkout may have written it."""
    host = FakeHost()
    place = put("g", host=host)
    (place / "guest.json").write_text(
        json.dumps(jsonable(record("g")) | {"colour": "blue"}) if text == "later" else text
    )
    (lab_state / "images" / "debian12" / ("e" * 16)).mkdir(parents=True)
    assert gc.collect(host.real(), deadline) == []
    assert (host.names, place.exists()) == (["g"], True)
    assert f"guest g: left alone: {place / 'guest.json'}: not a guest's record: " in caplog.text
    assert "no image is removed: what guest g stands on cannot be read" in caplog.text


def test_a_guest_of_another_machine_stays(deadline: Deadline, caplog: pytest.LogCaptureFixture) -> None:
    """One state directory on two machines: this one has neither the guest's domain nor its maker."""
    place = put("g", maker="aaaaaa.bbbbbb.1.2")
    assert gc.collect(FakeHost().real(), deadline) == []
    assert place.exists()
    assert (
        "guest g: left alone: another machine (iron) made it: run lab.py gc there, or, if it is no more,"
        f" remove {place}" in caplog.text
    )


@pytest.mark.parametrize("text", ['{"format": 99}', "", "{}", '{"process": "x", "node": "n", "uri": "u"}'])
def test_a_guest_whose_maker_cannot_be_read_stays(
    text: str, deadline: Deadline, caplog: pytest.LogCaptureFixture
) -> None:
    """The maker may run, and on another machine."""
    host = FakeHost()
    place = put("g", host=host, ready=False)
    (place / "maker").write_text(text)
    assert gc.collect(host.real(), deadline) == []
    assert (host.names, place.exists()) == (["g"], True)
    assert f"guest g: left alone: {place / 'maker'}: not a guest's maker: " in caplog.text
    with pytest.raises(HostError):
        guest.elsewhere(record("g"))


def test_a_copys_guests_are_the_originals(
    lab_state: Path, monkeypatch: pytest.MonkeyPatch, deadline: Deadline, caplog: pytest.LogCaptureFixture
) -> None:
    """`cp -a` of a state directory while a guest is up; the copy's record names the original's domain."""
    host = FakeHost()
    put("g", host=host, ready=False)
    copy = lab_state.with_name("copy")
    shutil.copytree(lab_state, copy)
    monkeypatch.setenv("LAB_STATE", str(copy))
    assert gc.collect(host.real(), deadline) == []
    assert (host.names, (copy / "guests" / "g").exists()) == (["g"], True)
    assert (
        f"guest g: left alone: it is a guest of the lab in {lab_state}, of which {copy} is a copy, or was moved:"
        f" if it is no more, remove {copy / 'guests' / 'g'}" in caplog.text
    )


def test_the_same_state_directory_by_another_path(
    lab_state: Path, monkeypatch: pytest.MonkeyPatch, deadline: Deadline
) -> None:
    host = FakeHost()
    put("g", host=host)
    link = lab_state.with_name("link")
    link.symlink_to(lab_state)
    monkeypatch.setenv("LAB_STATE", str(link))
    assert guest.ours(guest.read("g"))


@pytest.mark.parametrize("stray", [False, True])
def test_what_cannot_be_ended_stops_nothing_else(
    stray: bool, monkeypatch: pytest.MonkeyPatch, deadline: Deadline, caplog: pytest.LogCaptureFixture
) -> None:
    host = FakeHost()
    if stray:
        host.add(Mark(uuid="u", name="a", directory=str(state.folder("guests") / "a"), lab=state.identity()))
    else:
        put("a", ready=False, host=host)
    put("b", ready=False, written=False)

    def stuck(*_: object, **__: object) -> None:
        raise HostError("libvirt: Failed to terminate process 7 with SIGKILL: Device or resource busy")

    monkeypatch.setattr(FakeHost, "stop", stuck)
    assert gc.collect(host.real(), deadline) == ["guest b: its up did not end"]
    what = "domain of a" if stray else "guest a"
    assert f"{what}: left alone: libvirt: Failed to terminate process 7" in caplog.text


def test_a_step_that_is_refused_stops_no_other(
    lab_state: Path, deadline: Deadline, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What was removed before is told."""

    def refused(*_: object) -> Iterator[str]:
        yield "ready state a1: its image is gone"
        raise HostError("libvirt does not answer")

    monkeypatch.setattr(gc, "_stale_states", refused)
    monkeypatch.setattr(disks, "sweep_pool", lambda _: ["storage pool: empty"])
    (lab_state / "runs").mkdir(exist_ok=True)
    assert gc.collect(FakeHost().real(), deadline) == [
        "ready state a1: its image is gone",
        "storage pool: empty",
    ]
    assert "ready states: left alone: libvirt does not answer" in caplog.text


def test_a_guest_of_an_earlier_lab(deadline: Deadline, caplog: pytest.LogCaptureFixture) -> None:
    """Its maker's machine is not recorded: without a domain here, it may be another machine's."""
    host = FakeHost()
    place = put("g")
    (place / "maker").write_text("77 88")
    assert gc.collect(host.real(), deadline) == []
    assert place.exists()
    assert "guest g: left alone: a lab before 2026-11 made it" in caplog.text


def test_a_guest_that_libvirt_has_forgotten_stays(
    deadline: Deadline, caplog: pytest.LogCaptureFixture
) -> None:
    """A session has another libvirtd where XDG_RUNTIME_DIR differs."""
    host = FakeHost()
    place = put("g")
    host.forgotten = {record("g").spec.uuid: 77}
    assert gc.collect(host.real(), deadline) == []
    assert place.exists()
    assert (
        "guest g: left alone: its QEMU (process 77) runs, but libvirt at test:///fake does not know it"
        in caplog.text
    )


def test_a_second_domain_of_a_guest_goes(deadline: Deadline) -> None:
    """A start that libvirt was too slow for may take effect after its `up` failed and another succeeded."""
    host = FakeHost()
    place = put("g", host=host)
    late = Mark(uuid="late", name="g", directory=str(place), lab=state.identity())
    host.domains["late"] = late
    assert gc.collect(host.real(), deadline) == ["domain of g: its guest is gone"]
    assert host.marks(deadline) == [mark(record("g").spec)]


@pytest.mark.parametrize("part", ["boot", "started"])
def test_a_maker_is_known_by_more_than_its_number(part: str, deadline: Deadline) -> None:
    """A process id that was reused, or is from before the machine's restart, is not the maker's."""
    words = str(state.this_process()).split(".")
    words[1 if part == "boot" else 3] = "abcdef" if part == "boot" else "1"
    put("g", maker=".".join(words), ready=False)
    assert gc.collect(FakeHost().real(), deadline) == ["guest g: its up did not end"]


@pytest.mark.parametrize("maker_lives", [True, False])
def test_an_experiments_guest_ends_with_the_experiment(maker_lives: bool, deadline: Deadline) -> None:
    """After a kill -9 of `run` nobody else would end it; a guest of `up` belongs to a person."""
    host = FakeHost()
    place = put("g", host=host, maker=str(state.this_process()) if maker_lives else None)
    (place / "guest.json").write_text(json.dumps(jsonable(record("g").model_copy(update={"kept": False}))))
    removed = gc.collect(host.real(), deadline)
    assert removed == ([] if maker_lives else ["guest g: what it was for has ended"])
    assert host.names == (["g"] if maker_lives else [])


def test_a_guest_that_somebody_works_on_stays(deadline: Deadline, caplog: pytest.LogCaptureFixture) -> None:
    """`provision --boot grub` restarts it: for a moment its record is ready and its domain does not exist."""
    place, host = put("g"), FakeHost()
    host.add(Mark(uuid="another", name="g", directory=str(place), lab=state.identity()))
    with held("guest-g"):
        assert gc.collect(host.real(), deadline) == []
        assert place.exists()
    assert caplog.text.count("guest g: left alone: another lab.py works on it") == 1
    assert gc.collect(FakeHost().real(), deadline) == ["guest g: it was lost"]


@pytest.mark.parametrize("stray", [False, True])
def test_a_libvirt_that_does_not_answer_in_time_is_told(
    stray: bool, monkeypatch: pytest.MonkeyPatch, deadline: Deadline
) -> None:
    """Only a busy guest's lock may time out silently."""

    def slow(*_: object, **__: object) -> None:
        raise DeadlinePassed("stopping g: libvirt did not answer in time")

    host = FakeHost()
    if stray:
        host.add(Mark(uuid="u", name="g", directory=str(state.folder("guests") / "g"), lab=state.identity()))
    else:
        put("g", ready=False, host=host)
    monkeypatch.setattr(FakeHost, "stop", slow)
    with pytest.raises(DeadlinePassed, match="libvirt did not answer"):
        gc.collect(host.real(), deadline)


def test_what_becomes_ready_meanwhile_stays(monkeypatch: pytest.MonkeyPatch, deadline: Deadline) -> None:
    """A guest that gc saw half made, and that its maker has finished and left since."""
    host = FakeHost()
    put("a", ready=False)
    remove = guest.remove

    def finish(place: Path, *words: object) -> None:
        remove(place, host.real(), deadline)
        put("b", host=host)

    monkeypatch.setattr(guest, "remove", finish)
    monkeypatch.setattr(guest, "names", lambda: ["a", "b"])
    assert gc.collect(host.real(), deadline) == ["guest a: its up did not end"]
    assert host.names == ["b"]


def test_a_domain_of_the_same_name_in_another_folder_stays(deadline: Deadline) -> None:
    host = FakeHost()
    put("g", ready=False)
    host.add(Mark(uuid="theirs", name="g", directory="/another/lab/guests/g", lab="another"))
    assert gc.collect(host.real(), deadline) == ["guest g: its up did not end"]
    assert (host.names, host.stopped) == (["g"], [])


def test_a_state_directory_that_is_not_mounted_owns_nothing(lab_state: Path, deadline: Deadline) -> None:
    """An empty folder in its place: all guests' folders are missing, and their domains must stay."""
    host = FakeHost()
    put("g", host=host)
    away = lab_state.rename(lab_state.with_name("unmounted"))
    assert gc.collect(host.real(), deadline) == []
    assert host.names == ["g"]
    assert away.exists()


def images(monkeypatch: pytest.MonkeyPatch, *ids: str) -> Path:
    """Finished images with these ids; the first is that of the current inputs."""
    monkeypatch.setattr(image, "inputs", lambda *_: {"recipe": ids[0]})
    folder = state.folder("images", "debian12")
    for id in ids:
        (folder / id).mkdir()
        manifest = Image(name="debian12", id=id, directory="", root="", disk_bytes=1, inputs={"recipe": id})
        (folder / id / "manifest.json").write_text(json.dumps(jsonable(manifest)))
    return folder


def test_images_that_are_used_stay(monkeypatch: pytest.MonkeyPatch, deadline: Deadline) -> None:
    host = FakeHost()
    put("g", host=host)
    folder = images(monkeypatch, "f" * 16, record("g").image_id, "e" * 16, "d" * 16)
    (folder / ".making-aaaaaa.bbbbbb.1.2-7-x").mkdir()
    with state.using(folder / ("d" * 16)):  # an experiment's of another checkout, between two boots
        assert gc.collect(host.real(), deadline) == [
            f"image debian12/{'e' * 16}: no longer current, and nobody uses it"
        ]
    assert {path.name for path in folder.iterdir()} == {
        "f" * 16,
        "0" * 16,
        "d" * 16,
        ".making-aaaaaa.bbbbbb.1.2-7-x",
    }
    assert gc.collect(host.real(), deadline) == [
        f"image debian12/{'d' * 16}: no longer current, and nobody uses it"
    ]


def test_an_image_that_cannot_be_read_stays(
    monkeypatch: pytest.MonkeyPatch, deadline: Deadline, caplog: pytest.LogCaptureFixture
) -> None:
    folder = images(monkeypatch, "f" * 16, "e" * 16)
    (folder / ("e" * 16) / "manifest.json").write_text('{"format": 99}')
    assert gc.collect(FakeHost().real(), deadline) == []
    assert (
        f"{folder / ('e' * 16)}: left alone: manifest.json cannot be read: format 99: a newer numalab"
        " wrote it" in caplog.text
    )


def test_a_run_without_its_record(lab_state: Path, deadline: Deadline) -> None:
    """Left by a lab before 2026-11 that was killed, or just being copied here by another machine."""
    old, fresh, whole = (
        state.folder("runs", name)
        for name in ("20150307T152000-old", "20150307T152000-fresh", "20150307T152000-whole")
    )
    for place in (old, fresh, whole):
        (place / "stdout").touch()
    (whole / "run.json").touch()
    for path in (old / "stdout", old, whole / "stdout", whole):
        os.utime(path, (time.time() - 2 * state.DAY,) * 2)
    assert gc.collect(FakeHost().real(), deadline) == ["run 20150307T152000-old: its measurement did not end"]
    assert not old.exists()
    assert fresh.exists()
    assert whole.exists()
