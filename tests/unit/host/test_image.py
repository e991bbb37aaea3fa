# SPDX-License-Identifier: GPL-2.0-only
"""Images are found by their inputs and used complete or not at all; every lack comes with its remedy."""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from numalab.core import paths, process, state
from numalab.core.errors import BootHung, CommandFailed, HostError, InputError
from numalab.core.process import Deadline
from numalab.host import base_guest, image
from numalab.host.image import FORMAT, Image
from numalab.model.units import GIB
from numalab.model.values import jsonable

NAME = "debian12"
FILES = {
    "disk.qcow2": b"QFI\xfb of a size",
    "vmlinuz": b"kernel",
    "initrd.img": b"initrd",
    "host_key.pub": b"key\n",
    "config": b"CONFIG_NUMA=y\n",
}


@pytest.fixture(autouse=True)
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of the test's own, whose files may be changed."""
    root = tmp_path / "checkout"
    for folder in ("images", "playbooks"):
        shutil.copytree(paths.ROOT / folder, root / folder)
    monkeypatch.setattr(paths, "ROOT", root)
    return root


def built(deadline: Deadline, base: Path | None = None) -> Path:
    """A complete image with the current inputs, as a build leaves it; returns its folder."""
    hashes = image.inputs(NAME, base, deadline)
    place = state.folder("images", NAME, uuid.uuid4().hex[:16])
    for name, body in FILES.items():
        (place / name).write_bytes(body)
    manifest = Image(
        name=NAME,
        id=place.name,
        directory=str(place),
        root="PARTUUID=1",
        disk_bytes=len(FILES["disk.qcow2"]),
        inputs=hashes,
    )
    (place / "manifest.json").write_text(json.dumps(jsonable(manifest)))
    return place


def test_inputs_are_the_files_that_matter(deadline: Deadline) -> None:
    hashes = image.inputs(NAME, None, deadline)
    assert {
        f"images/{NAME}.yml",
        "images/guest.pkr.hcl",
        "playbooks/guest.yml",
        "ssh key",
        "format",
    } <= set(hashes)
    assert any(name.startswith("playbooks/roles/guest/tasks/") for name in hashes)
    assert any(name.startswith("playbooks/roles/guest/files/") for name in hashes)
    assert hashes["format"] == str(FORMAT)
    assert "base" not in hashes


@pytest.mark.parametrize(
    "path",
    [
        f"images/{NAME}.yml",
        "images/guest.pkr.hcl",
        "playbooks/guest.yml",
        "playbooks/roles/guest/tasks/main.yml",
        "playbooks/roles/guest/files/new",
    ],
)
def test_a_changed_input_is_another_image(path: str, checkout: Path, deadline: Deadline) -> None:
    place = built(deadline)
    assert image.require(NAME, deadline).id == place.name
    with (checkout / path).open("a") as handle:
        handle.write("\n# changed\n")
    assert image.existing(NAME, deadline) is None
    with pytest.raises(
        HostError, match=f"image {NAME} is not built, or its inputs changed: lab.py image build {NAME}"
    ):
        image.require(NAME, deadline)


def test_another_key_is_another_image(lab_state: Path, deadline: Deadline) -> None:
    built(deadline)
    (lab_state / "ssh" / "id_ed25519.pub").write_text("another\n")
    assert image.existing(NAME, deadline) is None


@pytest.mark.parametrize(
    "path", ["images/other.yml", "playbooks/kernel.yml", "playbooks/roles/kernel/tasks/main.yml", "README.md"]
)
def test_what_is_no_input_changes_nothing(path: str, checkout: Path, deadline: Deadline) -> None:
    place = built(deadline)
    (checkout / path).parent.mkdir(parents=True, exist_ok=True)
    (checkout / path).write_text("anything: else\n")
    for file in (checkout / "playbooks").rglob("*"):
        file.touch()
    assert image.require(NAME, deadline).id == place.name


def test_base(tmp_path: Path, deadline: Deadline) -> None:
    base = tmp_path / "cloud.qcow2"
    with pytest.raises(InputError, match=f"^base {base}: No such file"):
        image.existing(NAME, deadline, base)
    base.write_bytes(b"one")
    first = image.inputs(NAME, base, deadline)
    base.write_bytes(b"two")
    assert len({first["base"], image.inputs(NAME, base, deadline)["base"]}) == 2
    assert {key: value for key, value in first.items() if key != "base"} == image.inputs(NAME, None, deadline)


def test_the_base_of_another_image_stays(monkeypatch: pytest.MonkeyPatch, deadline: Deadline) -> None:
    """An image's name may be the beginning of another's: NAME-lean."""
    monkeypatch.setattr(
        image, "_base_disk", lambda image_recipe, scratch, deadline: (scratch / "base.qcow2").touch()
    )
    monkeypatch.setattr(image, "_overlay_files", lambda _: {})
    mine, lean = (state.folder("bases", f"{name}-{'0' * 16}") for name in (NAME, f"{NAME}-lean"))
    hexadecimal = state.folder("bases", f"{NAME}-{'a' * 16}-{'0' * 16}")
    made = image._base(NAME, image.recipe(NAME), deadline)
    assert {path.name for path in made.parent.iterdir()} == {made.name, lean.name, hexadecimal.name}
    assert not mine.exists()


def test_an_image_over_a_cloud_image_is_one_that_up_finds(tmp_path: Path, deadline: Deadline) -> None:
    """`image build --base FILE` is of use only if `up` boots what it built."""
    (tmp_path / "cloud.qcow2").write_bytes(b"cloud")
    place = built(deadline, tmp_path / "cloud.qcow2")
    assert image.require(NAME, deadline).id == place.name


def test_a_moved_state_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deadline: Deadline) -> None:
    place = built(deadline)
    shutil.move(state.directory(), tmp_path / "moved")
    monkeypatch.setenv("LAB_STATE", str(tmp_path / "moved"))
    assert (
        image.require(NAME, deadline).file("disk.qcow2")
        == tmp_path / "moved" / "images" / NAME / place.name / "disk.qcow2"
    )


@pytest.mark.parametrize(
    "harm",
    [
        "truncate disk.qcow2",
        "unlink disk.qcow2",
        "unlink vmlinuz",
        "unlink initrd.img",
        "unlink host_key.pub",
    ],
)
def test_a_broken_image_names_its_mend(harm: str, deadline: Deadline) -> None:
    damage, name = harm.split()
    path = built(deadline) / name
    if damage == "unlink":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1])
    for ask in (image.existing, image.require):
        with pytest.raises(HostError, match=rf"lab.py image build --force {NAME}"):
            ask(NAME, deadline)


@pytest.mark.parametrize("manifest", ["", "{}", "[]", '{"inputs": 3}', '{"format": 99}'])
def test_another_images_manifest_does_no_harm(manifest: str, deadline: Deadline) -> None:
    """An older or newer lab's manifest is no image of these inputs."""
    old = built(deadline)
    (old / "manifest.json").write_text(manifest)
    assert image.existing(NAME, deadline) is None
    place = built(deadline)
    assert image.require(NAME, deadline).id == place.name


def test_a_half_made_image_is_none(deadline: Deadline) -> None:
    place = built(deadline)
    place.rename(place.with_name(f".making-1-{place.name}"))
    assert image.existing(NAME, deadline) is None


def test_a_build_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch, deadline: Deadline) -> None:
    def packer(*_: object) -> None:
        scratch = next(state.folder("images", NAME).glob(".making-*"))
        (scratch / "disk.qcow2").write_bytes(b"half")
        raise CommandFailed("packer")

    monkeypatch.setattr(image, "_base", lambda *_: state.folder("bases"))
    monkeypatch.setattr(image, "_packer", packer)
    with pytest.raises(CommandFailed):
        image.build(NAME, accelerator="tcg", deadline=deadline)
    assert list(state.folder("images", NAME).iterdir()) == []


def packer(_name: str, _what: object, _disk: object, scratch: Path, *_: object) -> None:
    """Leaves what Packer would."""
    (scratch / "disk.qcow2").write_bytes(b"disk")
    for name in ("vmlinuz", "initrd.img", "host_key.pub", "root"):
        (scratch / name).write_bytes(b"x")


@pytest.mark.parametrize("hangs", [1, 2])
def test_a_build_whose_guest_hung_is_begun_again(
    hangs: int,
    program: Callable[[str, str], Path],
    monkeypatch: pytest.MonkeyPatch,
    deadline: Deadline,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Once, with its console kept; Packer refuses a folder that it left."""
    begun = state.folder("bases") / "begun"
    stuck = "[  484.7] INFO: task kworker/u4:1:25 blocked for more than 362 seconds."
    program("setpriv", 'while [ "$1" != -- ]; do shift; done; shift; exec "$@"')
    program(
        "packer",
        f"""console=$(grep -o 'file:[^"]*' "$4" | cut -d: -f2); scratch=$(dirname "$4"); echo x >> {begun}
        mkdir "$scratch/packer" || exit 1
        if [ $(wc -l < {begun}) -le {hangs} ]; then echo '{stuck}' > "$console"; exec sleep 600; fi
        for file in packer/disk.qcow2 vmlinuz initrd.img host_key.pub root; do echo x > "$scratch/$file"; done""",
    )
    monkeypatch.setattr(image, "_base", lambda *_: state.folder("bases"))
    hung = "the guest hung under emulation: its task kworker/u4:1:25 waits for more than 362 s"
    kept = state.folder("logs") / f"hung-console-{NAME}.log"
    if hangs == 1:
        assert image.build(NAME, accelerator="tcg", deadline=deadline).name == NAME
    else:
        with pytest.raises(BootHung, match=re.escape(f"image {NAME}: {hung} ({kept})")):
            image.build(NAME, accelerator="tcg", deadline=deadline)
    assert kept.read_text() == f"{stuck}\n"
    assert [record.message for record in caplog.records if "begun again" in record.message] == [
        f"image {NAME}: {hung} ({kept}); begun again"
    ]


def test_a_build_is_done_once(monkeypatch: pytest.MonkeyPatch, deadline: Deadline) -> None:
    built_by: list[Path] = []

    def build(*words: Any) -> None:
        packer(*words)
        built_by.append(words[3])

    monkeypatch.setattr(image, "_base", lambda *_: state.folder("bases"))
    monkeypatch.setattr(image, "_packer", build)
    first = image.build(NAME, accelerator="tcg", deadline=deadline)
    assert image.build(NAME, accelerator="tcg", deadline=deadline) == image.require(NAME, deadline) == first
    assert len(built_by) == 1


def test_an_id_names_one_build_for_ever(monkeypatch: pytest.MonkeyPatch, deadline: Deadline) -> None:
    """--force makes another image, which is used from then on; users of the first keep it until gc."""
    monkeypatch.setattr(image, "_base", lambda *_: state.folder("bases"))
    monkeypatch.setattr(image, "_packer", packer)
    first = image.build(NAME, accelerator="tcg", deadline=deadline)
    second = image.build(NAME, accelerator="tcg", deadline=deadline, force=True)
    assert first.id != second.id
    assert first.inputs == second.inputs
    assert image.require(NAME, deadline) == second
    assert image.pinned(NAME, first.id) == first
    assert image.current(NAME, deadline) == {second.id}
    shutil.rmtree(first.directory)
    with pytest.raises(
        HostError, match=f"image {NAME}: {first.directory} is gone: lab.py image build {NAME}"
    ):
        image.pinned(NAME, first.id)


def test_of_several_cloud_images_the_last_asked_for_is_used(tmp_path: Path, deadline: Deadline) -> None:
    bases = [tmp_path / "one.qcow2", tmp_path / "two.qcow2"]
    places = []
    for age, base in enumerate(bases):
        base.write_text(base.name)
        places.append(built(deadline, base))
        os.utime(places[-1] / "manifest.json", (age, age))
    assert image.require(NAME, deadline).id == places[1].name
    image.build(NAME, accelerator="tcg", deadline=deadline, base=bases[0])
    assert image.require(NAME, deadline).id == places[0].name


def test_a_playbook_that_is_not_there(checkout: Path) -> None:
    path = checkout / "images" / f"{NAME}.yml"
    path.write_text(path.read_text().replace("playbook: guest.yml", "playbook: gone.yml"))
    with pytest.raises(InputError, match=f"{NAME}.yml: playbook: there is no playbooks/gone.yml"):
        image.recipe(NAME)


def test_packers_ansible_gets_literals(
    tmp_path: Path, program: Callable[[str, str], Path], deadline: Deadline
) -> None:
    """No text of an image's recipe is a template to Ansible; one that Packer would evaluate is refused."""
    scratch, seen = tmp_path / "scratch", tmp_path / "seen"
    scratch.mkdir()
    program("packer", f'cp "$4" {seen}; mkdir {scratch}/packer; : > {scratch}/packer/disk.qcow2')
    program("setpriv", 'while [ "$1" != -- ]; do shift; done; shift; exec "$@"')
    image_recipe = image.recipe("debian12")
    image._packer("debian12", image_recipe, tmp_path / "base", scratch, "tcg", [], None, deadline)
    assert json.loads(seen.read_text())["ansible_vars"] == f"@{scratch}/vars.yml"
    variables = (scratch / "vars.yml").read_text()
    assert variables.count("!unsafe") == len(image_recipe.packages) + 1
    with pytest.raises(InputError, match="Packer takes for a template"):
        image._packer("debian12", image_recipe, tmp_path / "{{ pwd }}", scratch, "tcg", [], None, deadline)


PLAYED = """\
==> qemu.guest: Executing Ansible: ansible-playbook
    qemu.guest: TASK [guest : Packages of the image] *******
    qemu.guest: ok: [default]
    qemu.guest: TASK [guest : Units [all]] ***
"""


def tasks_of_the_role() -> int:
    return (paths.ROOT / "playbooks/roles/guest/tasks/main.yml").read_text().count("\n- name: ")


def test_the_task_that_runs_is_told(
    tmp_path: Path,
    program: Callable[[str, str], Path],
    deadline: Deadline,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By Packer's log, while it runs: this one waits until it is told."""
    scratch, heard = tmp_path / "scratch", tmp_path / "heard"
    scratch.mkdir()
    said: list[str] = []

    def hear(line: str) -> None:
        said.append(line)
        heard.touch()

    monkeypatch.setattr(image, "moving", hear)
    program(
        "packer",
        f"cat <<'END'\n{PLAYED}END\nwhile [ ! -e {heard} ]; do sleep 0.05; done\n"
        f"mkdir {scratch}/packer; : > {scratch}/packer/disk.qcow2",
    )
    program("setpriv", 'while [ "$1" != -- ]; do shift; done; shift; exec "$@"')
    image._packer(NAME, image.recipe(NAME), tmp_path / "base", scratch, "tcg", [], None, deadline)
    assert set(said) == {f"task 2 of {tasks_of_the_role()}: Units [all]"}


def test_the_task_that_ansible_runs_is_told_without_packer(
    tmp_path: Path, deadline: Deadline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one of an earlier build's log; a task beyond what the playbook names has no total."""
    said: list[str] = []
    monkeypatch.setattr(image, "moving", said.append)
    (tmp_path / "seed").mkdir()
    (state.folder("logs") / f"ansible-qemu-{NAME}.log").write_text("TASK [earlier] ***\n")

    def provision(*, log: Path, watch: Callable[[], None], **_: Any) -> None:
        watch()
        for count in (1, tasks_of_the_role() + 1):
            log.with_name(f"ansible-{log.name}").write_text("TASK [guest : Menu] ***\nok\n" * count)
            watch()

    monkeypatch.setattr(base_guest, "provision", provision)
    watched: list[int] = []
    image._by_itself(
        NAME,
        image.recipe(NAME),
        tmp_path / "base",
        tmp_path,
        "tcg",
        [],
        lambda: watched.append(1),
        deadline,
    )
    assert said == [f"task 1 of {tasks_of_the_role()}: Menu", f"task {tasks_of_the_role() + 1}: Menu"]
    assert len(watched) == 3, "the console is watched too"


def test_what_mmdebstrap_does_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(image, "moving", said.append)
    log = tmp_path / "log"
    image._tell_stage(log)
    log.write_text("I: automatically chosen mode: root\n")
    image._tell_stage(log)
    log.write_text(
        "I: running apt-get update...\nI: installing essential packages...\nI: running special hook: x /\n"
    )
    image._tell_stage(log)
    assert said == ["installing essential packages"]


def test_a_recipe_without_a_suite_needs_a_cloud_image(checkout: Path, deadline: Deadline) -> None:
    file = checkout / f"images/{NAME}.yml"
    file.write_text(re.sub("^suite:.*\n", "", file.read_text(), flags=re.MULTILINE))
    with pytest.raises(InputError, match=f"{NAME}.yml has no suite.*cloud image") as caught:
        image.build(NAME, accelerator="tcg", deadline=deadline)
    assert caught.value.field == "base"
    assert not list(state.folder("images", NAME).iterdir()), "nothing is left"


LURE = "{{ lookup('pipe', 'id') }}"


@pytest.mark.parametrize("change", [{"suite": LURE}, {"packages": [LURE]}, {"disk": LURE}])
def test_a_recipe_has_no_room_for_a_template(change: dict[str, object]) -> None:
    good = {
        "description": LURE,
        "suite": "bookworm",
        "disk": "16GiB",
        "playbook": "guest.yml",
        "packages": ["gcc"],
    }
    assert image.ImageRecipe.model_validate(good).description == LURE, "is only shown"
    with pytest.raises(ValueError, match=next(iter(change))):
        image.ImageRecipe.model_validate(good | change)


@pytest.mark.parametrize(("own", "size"), [(1 * GIB, 16 * GIB), (32 * GIB, 32 * GIB)])
def test_a_cloud_image_gets_the_disk_of_the_recipe(
    own: int,
    size: int,
    program: Callable[[str, str], Path],
    deadline: Deadline,
    monkeypatch: pytest.MonkeyPatch,
    lab_state: Path,
    tmp_path: Path,
) -> None:
    """The user's file is not written, and its size stays where it is more."""
    program("packer", "exit 0")
    base = tmp_path / "cloud.img"
    process.run(["qemu-img", "create", "-q", "-f", "qcow2", base, str(own)], deadline=deadline)
    before = base.read_bytes()

    def leave(_name: str, _recipe: object, disk: Path, scratch: Path, *_: object) -> None:
        shutil.copy(disk, scratch / "disk.qcow2")
        for file in (*image.FILES, "root"):
            if file != "disk.qcow2":
                (scratch / file).write_bytes(b"x")

    monkeypatch.setattr(image, "_packer", leave)
    built = image.build("ubuntu2404", accelerator="tcg", deadline=deadline, base=base)
    info = process.run(["qemu-img", "info", "--output=json", built.file("disk.qcow2")], deadline=deadline)
    assert json.loads(info.stdout)["virtual-size"] == size
    assert base.read_bytes() == before
    assert not (Path(built.directory) / "base.qcow2").exists()
