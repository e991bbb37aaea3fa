# SPDX-License-Identifier: GPL-2.0-only
"""Builds by Ansible of a tiny tree with Linux's make targets, and every way to interrupt or break them."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from numalab.core import checksum, paths, state
from numalab.core.errors import Cancelled, CommandFailed, HostError, InputError
from numalab.core.process import Deadline
from numalab.host import ansible
from numalab.kernel import boot, recipe
from numalab.kernel import build as kernel_build
from numalab.model.guest import Boot
from tests.vm.conftest import until

MAKEFILE = """\
VERSION = 6
PATCHLEVEL = 1
allnoconfig:
	grep -v LOST $(KCONFIG_ALLCONFIG) > $(O)/.config
olddefconfig:
	@! grep bad mm/Kconfig >&2
	sed s/^/CONFIG_/ mm/Kconfig >> $(O)/.config
$(O)/a.o: mm/a.c
	@echo '  CC a'; while grep -q sleep mm/a.c; do sleep 0.1; done
	@if grep -q broken mm/a.c; then echo 'mm/a.c:1:1: error: broken' >&2; exit 1; fi
	cp mm/a.c $@
	@if grep -q fills mm/a.c; then cat /dev/zero >> $@; fi
.DELETE_ON_ERROR:
$(O)/b.o: mm/b.c
	@echo '  CC b'
	cp mm/b.c $@
bzImage: $(O)/a.o $(O)/b.o
	@for option in $$(cat mm/Kconfig); do grep -qx CONFIG_$$option $(O)/.config || exit 1; done
	mkdir -p $(O)/arch/x86/boot
	touch $(O)/System.map
	python3 head.py "6.1.0$(LOCALVERSION) ($(KBUILD_BUILD_USER)@$(KBUILD_BUILD_HOST))" $(O)/a.o $(O)/b.o $(wildcard mm/*.h) > $(O)/arch/x86/boot/bzImage
modules:
modules_install:
	mkdir -p $(INSTALL_MOD_PATH)/lib/modules/6.1.0$(LOCALVERSION)/kernel
	touch $(INSTALL_MOD_PATH)/lib/modules/6.1.0$(LOCALVERSION)/kernel/m.ko
"""
HEAD = """\
import pathlib, struct, sys
head = bytearray(0x300)
head[0x202:0x206] = b"HdrS"
struct.pack_into("<H", head, 0x20E, 0x100)
parts = [sys.argv[1].encode() + b" #1\\0", *(pathlib.Path(name).read_bytes() for name in sys.argv[2:])]
sys.stdout.buffer.write(head + b"".join(parts))
"""
TREE = {
    "Makefile": MAKEFILE,
    "head.py": HEAD,
    "mm/a.c": "one\ntwo\nthree\n",
    "mm/b.c": "b\n",
    "mm/Kconfig": "",
}
HEADER = "Subject: s\nSet: {0}\nMirrors: nothing\nMoves: pgfault up\n\n"


def change(old: str, new: str) -> str:
    """A patch to mm/a.c's second line."""
    return f"--- a/mm/a.c\n+++ b/mm/a.c\n@@ -1,3 +1,3 @@\n one\n-{old}\n+{new}\n three\n"


PATCHES = {
    "more": change("two", "TWO"),
    "adds": "--- /dev/null\n+++ b/mm/new/new.h\n@@ -0,0 +1 @@\n+new\n",
    "misfit": change("nowhere", "x"),
    "broken": change("two", "broken"),
    "hangs": change("two", "sleep"),
    "fills": change("two", "fills"),
    "option": "--- a/mm/Kconfig\n+++ b/mm/Kconfig\n@@ -0,0 +1 @@\n+NEW=y\n",
    "bad-option": "--- a/mm/Kconfig\n+++ b/mm/Kconfig\n@@ -0,0 +1 @@\n+bad syntax\n",
}


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """lab(NAME, apply=…, config=…) writes a recipe and builds it, in the test's own state and checkout."""
    monkeypatch.setenv("LAB_STATE", str(tmp_path / "state"))
    (tmp_path / "playbooks").symlink_to(paths.ROOT / "playbooks")
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    monkeypatch.setattr(ansible, "INVENTORY", tmp_path / "inventory.ini")
    files = {f"linux/{name}": text for name, text in TREE.items()} | {
        "inventory.ini": "[builders]\nlocalhost ansible_connection=local\n"
    }
    files |= {
        f"kernels/patches/{name}/6.1/1.patch": HEADER.format(name) + text for name, text in PATCHES.items()
    }
    files |= {
        f"kernels/config/{name}.config": f"CONFIG_{option}\n"
        for name, option in (("lean", "A=y"), ("m", "M=m"))
    }
    files |= {"kernels/config/lost.config": "CONFIG_LOST=y\nCONFIG_B=y\n"}
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    with tarfile.open(tmp_path / "linux.tar", "w") as archive:
        archive.add(tmp_path / "linux", "linux-6.1")

    def build(
        name: str, *apply: str, config: str = "lean", cancel: threading.Event | None = None, source: str = ""
    ) -> kernel_build.Built:
        source = source or f"{{tarball: {{path: {tmp_path}/linux.tar}}}}"
        text = (
            f"description: d\nsource: {source}\nconfig: {config}\nseries: '6.1'\napply:"
            f" [{', '.join(apply)}]\n"
        )
        (tmp_path / "kernels" / f"{name}.yml").write_text(text)
        return kernel_build.build(recipe.load(name), None, Deadline.after(600, cancel))

    return build


def tree() -> dict[str, str]:
    """The unpacked source's files."""
    place = next(
        path
        for path in state.folder("sources").iterdir()
        if path.is_dir() and not path.name.endswith(".applied")
    )
    return {str(path.relative_to(place)): path.read_text() for path in place.rglob("*") if path.is_file()}


def test_stock_and_variants(lab: Callable[..., kernel_build.Built], monkeypatch: pytest.MonkeyPatch) -> None:
    stock = lab("stock")
    assert stock.release == "6.1.0-numalab-stock"
    assert stock.file("config").read_text().strip() == "CONFIG_A=y"
    assert "CC b" in stock.file("build.log").read_text()

    both = lab("both", "more", "adds")
    assert both.file("bzImage").read_bytes().endswith(b"one\nTWO\nthree\nb\n")
    assert tree() == TREE, "the patches are still in the tree"
    log = both.file("build.log").read_text()
    assert "CC a" in log
    assert "CC b" not in log, "what no patch touched was compiled again"

    again = lab("again")
    assert again.file("bzImage").read_bytes().endswith(b"one\ntwo\nthree\nb\n"), (
        "the variant's object is in a later kernel"
    )
    assert "CC b" not in again.file("build.log").read_text()

    monkeypatch.setattr(ansible, "playbook", lambda *_, **__: pytest.fail("a known kernel was built again"))
    assert lab("both", "more", "adds") == both


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk: needs root")
@pytest.mark.parametrize("apply", [("more",), ("fills",)], ids=["before make", "in make"])
def test_a_full_disk(lab: Callable[..., kernel_build.Built], tmp_path: Path, apply: tuple[str, ...]) -> None:
    """On a disk of its own, filled by somebody else before the build or by the build itself."""
    place = tmp_path / "state"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", place], check=True)
    try:
        lab("stock")
        ballast = place / "ballast"
        if "fills" not in apply:
            subprocess.run(["dd", "if=/dev/zero", f"of={ballast}"], capture_output=True, check=False)
        with pytest.raises(HostError, match=rf"{place}.*: (make room|.*No space left on device)"):
            lab("bad", *apply)
        ballast.unlink(missing_ok=True)
        good = lab("good", "more")
        assert good.file("bzImage").read_bytes().endswith(b"one\nTWO\nthree\nb\n")
        assert tree() == TREE
    finally:
        subprocess.run(["umount", place], check=True)


def test_modules(lab: Callable[..., kernel_build.Built], tmp_path: Path) -> None:
    assert not lab("without").modules
    built = lab("with", config="[lean, m]")
    archive = boot.modules(
        recipe.load("with"), Boot(name="with", kernel=str(built.file("bzImage"))), tmp_path
    )
    assert archive is not None
    with tarfile.open(archive) as opened:
        assert "./6.1.0-numalab-with/kernel/m.ko" in opened.getnames()


def test_a_patch_that_does_not_apply(lab: Callable[..., kernel_build.Built]) -> None:
    with pytest.raises(
        InputError, match=r"patches/misfit/6\.1/1\.patch: hunk 1 of 1 \(line 1\) of mm/a\.c does not apply"
    ):
        lab("bad", "adds", "misfit")
    assert tree() == TREE
    assert not list(state.folder("kernels").iterdir())


def test_an_option_that_does_not_survive(lab: Callable[..., kernel_build.Built]) -> None:
    with pytest.raises(
        InputError, match=r"did not survive olddefconfig: CONFIG_LOST \(requested y, got n\)$"
    ):
        lab("bad", config="[lean, lost]")


def test_a_patch_with_an_option(lab: Callable[..., kernel_build.Built]) -> None:
    """The option has its default before anything is compiled, and only in this variant."""
    lab("stock")
    assert lab("with", "option").file("config").read_text().split() == ["CONFIG_A=y", "CONFIG_NEW=y"]
    assert lab("without", "more").file("config").read_text().split() == ["CONFIG_A=y"]
    with pytest.raises(CommandFailed, match="bad syntax"):
        lab("bad", "bad-option")
    assert tree() == TREE


def test_a_compiler_error(lab: Callable[..., kernel_build.Built]) -> None:
    with pytest.raises(CommandFailed, match=r"Patched, compiled, .*mm/a\.c:1:1: error: broken"):
        lab("bad", "broken")
    assert tree() == TREE
    assert lab("good", "more").release.endswith("-good")


def test_a_killed_build(lab: Callable[..., kernel_build.Built]) -> None:
    """kill -9 in the build tree leaves journal and half-made objects; the next build repairs them."""
    lab("stock")
    cancel = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(lab, "victim", "hangs", cancel=cancel)
        until(lambda: _in_tree("grep -q sleep"), "make runs in the tree", 60)
        subprocess.run(["kill", "-9", *map(str, _in_tree(""))], check=False)
        cancel.set()
        with pytest.raises((Cancelled, CommandFailed)):
            future.result()
    assert tree() != TREE, "the test came too late"
    (next(state.folder("builds").iterdir()) / "b.o").write_text("half")
    good = lab("good", "more")
    assert good.file("bzImage").read_bytes().endswith(b"one\nTWO\nthree\nb\n")
    assert tree() == TREE


def test_ctrl_c(lab: Callable[..., kernel_build.Built]) -> None:
    """Nothing goes on compiling in the background."""
    cancel = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(lab, "victim", "hangs", cancel=cancel)
        until(lambda: _in_tree("grep -q sleep"), "make runs in the tree", 60)
        cancel.set()
        with pytest.raises(Cancelled):
            future.result()
    until(lambda: not _in_tree(""), "make has ended", 60)
    # A killed builder leaves its journal, and the next build repairs the tree.
    assert lab("good", "more").file("bzImage").read_bytes().endswith(b"one\nTWO\nthree\nb\n")
    assert tree() == TREE


def test_two_at_once(lab: Callable[..., kernel_build.Built]) -> None:
    with ThreadPoolExecutor(2) as pool:
        one, two = pool.map(lambda words: lab(*words), [("one", "more"), ("two", "adds")])
    assert one.file("bzImage").read_bytes().endswith(b"TWO\nthree\nb\n")
    assert two.file("bzImage").read_bytes().endswith(b"two\nthree\nb\n")
    assert tree() == TREE


def test_git(lab: Callable[..., kernel_build.Built], tmp_path: Path) -> None:
    """A tag builds; commits are applied and reverted by name; a moved tag is an error."""
    place = tmp_path / "linux"

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", place, "-c", "user.name=x", "-c", "user.email=x@x", *words],
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "first")
    (place / "mm/a.c").write_text("one\nTWO\nthree\n")
    git("commit", "-qam", "second")
    git("tag", "v1")
    commit = git("rev-parse", "HEAD").strip()
    (place / "mm/a.c").write_text("not committed\n")
    source = f"{{git: {{url: {place}, rev: v1, commit: {commit}}}}}"
    assert lab("tag", source=source).file("bzImage").read_bytes().endswith(b"one\nTWO\nthree\nb\n")
    path = tmp_path / "kernels/reverted.yml"
    path.write_text(f"description: d\nsource: {source}\nconfig: lean\nrevert: ['{commit[:12]}']\n")
    built = kernel_build.build(recipe.load("reverted"), None, Deadline.after(60))
    assert built.file("bzImage").read_bytes().endswith(b"one\ntwo\nthree\nb\n")
    git("commit", "-qam", "third")
    git("tag", "-f", "v1")
    with pytest.raises(InputError, match=f"not {commit}: was the tag moved"):
        lab("tag", source=source)
    with pytest.raises(InputError, match="has no commit v2"):
        lab("tag", source=source.replace("v1", "v2"))


def test_a_url(lab: Callable[..., kernel_build.Built], tmp_path: Path) -> None:
    url = (tmp_path / "linux.tar").as_uri()
    with pytest.raises(InputError, match=f"has checksum .*, not {'ab' * 32}: nothing of it is used"):
        lab("url", source=f"{{tarball: {{url: '{url}', sha256: {'ab' * 32}}}}}")
    assert not list(state.folder("downloads").iterdir())
    good = checksum.sha256(tmp_path / "linux.tar")
    assert lab("url", source=f"{{tarball: {{url: '{url}', sha256: '{good}'}}}}").release.endswith("-url")


def test_a_builder_elsewhere(lab: Callable[..., kernel_build.Built], tmp_path: Path) -> None:
    """Over SSH, in a folder of its own: source, configuration and patches go there, the kernel comes back."""
    with _farm(tmp_path):
        built = lab("far", "more")
    assert built.file("bzImage").read_bytes().endswith(b"one\nTWO\nthree\nb\n")
    assert (tmp_path / "far/sources").is_dir()
    assert not (tmp_path / "state/sources").exists()
    assert not list((tmp_path / "far/jobs").iterdir())
    assert lab("far", "more") == built, "a known kernel needs its builder"


@contextmanager
def _farm(tmp_path: Path) -> Iterator[None]:
    """A builder that is reached by SSH."""
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name], check=True)
    words: list[str | Path] = [
        sys.executable,
        Path(__file__).with_name("sshd.py"),
        tmp_path / "host",
        tmp_path / "user.pub",
    ]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            (tmp_path / "inventory.ini").write_text(
                f"[builders]\nfarm ansible_host=127.0.0.1 ansible_port={int(server.stdout.readline())}"
                f" ansible_user=root ansible_ssh_private_key_file={tmp_path}/user kernel_root={tmp_path}/far"
                f" ansible_python_interpreter={sys.executable} ansible_ssh_common_args='-o"
                " StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null'\n"
            )
            yield
        finally:
            server.kill()


def test_two_labs_on_one_builder(lab: Callable[..., kernel_build.Built], tmp_path: Path) -> None:
    """Both have sent their job to one build tree before the first builds: each gets its own kernel."""
    with _farm(tmp_path):
        lab("stock")  # the tree is there and configured
        (lock,) = (tmp_path / "far/sources").glob("*.lock")
        with lock.open() as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            labs = [_another_lab(lab, tmp_path / name, name) for name in ("more", "adds")]
            until(lambda: _waiting_for(lock) == 2, "two labs wait for the tree", 120)
            fcntl.flock(held, fcntl.LOCK_UN)  # closing is not enough: both processes have it open
        for other in labs:
            other.join(120)
    assert (tmp_path / "more/kernel").read_bytes().endswith(b"TWO\nthree\nb\n")
    assert (tmp_path / "adds/kernel").read_bytes().endswith(b"two\nthree\nb\n")
    assert not list((tmp_path / "far/jobs").iterdir())


def _another_lab(lab: Callable[..., kernel_build.Built], place: Path, patch: str) -> BaseProcess:
    """A process with its own state directory that builds a kernel and copies it to place/kernel."""

    def build() -> None:
        os.environ["LAB_STATE"] = str(place)
        bzimage = lab(patch, patch).file("bzImage").read_bytes()
        (place / "kernel").write_bytes(bzimage)

    process = multiprocessing.get_context("fork").Process(target=build)
    process.start()
    return process


def _waiting_for(lock: Path) -> int:
    """How many flock(1) processes wait for this file."""
    commands = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            commands.append(path.read_bytes().split(b"\0"))
    return sum(words[0].endswith(b"flock") and str(lock).encode() in words for words in commands)


def test_two_labs_unpack_at_once(lab: Callable[..., kernel_build.Built], tmp_path: Path) -> None:
    with _farm(tmp_path):
        labs = [_another_lab(lab, tmp_path / f"state-{number}", "more") for number in range(2)]
        for other in labs:
            other.join(120)
    first, second = (tmp_path / f"state-{number}/kernel" for number in range(2))
    assert first.read_bytes() == second.read_bytes()


def test_configured_after_a_kill(lab: Callable[..., kernel_build.Built], tmp_path: Path) -> None:
    """A configuration is cached: one from a tree with a killed build's patches would be wrong for all."""
    lab("stock")
    (place,) = (path for path in state.folder("sources").iterdir() if path.is_dir())
    journal = place.with_name(f"{place.name}.applied")
    (journal / "files").mkdir(parents=True)
    (journal / "files/Makefile").write_text(MAKEFILE)
    (journal / "touched").write_text("Makefile\n")
    half_removed = place.with_name(f"{place.name}.applied.done")
    half_removed.mkdir()
    (place / "Makefile").write_text(
        MAKEFILE.replace("grep -v LOST $(KCONFIG_ALLCONFIG)", "(echo CONFIG_ODD=y; cat $(KCONFIG_ALLCONFIG))")
    )
    assert "ODD" not in lab("with", config="[lean, m]").file("config").read_text()
    assert not journal.exists()
    assert not half_removed.exists()


def _in_tree(program: str) -> list[int]:
    """Processes of a program with their working directory in this test's state."""
    processes = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if (path / "cwd").readlink().is_relative_to(state.directory()) and program in (
                path / "cmdline"
            ).read_text().replace("\0", " "):
                processes.append(int(path.name))
        except OSError:
            continue
    return processes
