# SPDX-License-Identifier: GPL-2.0-only
"""Eras: the tools for old trees, options that they lack, and what their guests get."""

from __future__ import annotations

import base64
import hashlib
import lzma
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from numalab.cli import kernel as kernel_commands
from numalab.core import state
from numalab.core.errors import CommandFailed, DeadlinePassed, GuestError, HostError, InputError
from numalab.core.process import Deadline, Result
from numalab.guest import guest
from numalab.guest.guest import Guest
from numalab.host import ansible, apt, console, image, ssh
from numalab.host.image import Image
from numalab.kernel import boot as kernel_boot
from numalab.kernel import build as kernel_build
from numalab.kernel import era as kernel_era
from numalab.kernel import layout, recipe, source, toolchain
from numalab.kernel.build import BuildPlan, Built
from numalab.kernel.era import Container, Era
from numalab.kernel.patch import touched
from numalab.kernel.toolchain import Builder, Tools
from numalab.maintenance import prune
from numalab.model import catalog
from tests.unit.guest.test_guest import held
from tests.unit.makers import FakeHost, record

IMAGE = Image(name="debian12", id="0" * 16, directory="/images/x", root="PARTUUID=1", disk_bytes=1, inputs={})
OLD = Era(
    description="old",
    container="bullseye",
    compiler="gcc-9",
    flags=("-fno-pie", "-Wa,-mshared"),
    header="compiler-gcc4.h",
    lacks=("CONFIG_NEW*",),
)
GCC9 = "gcc-9 (Debian 9.3.0-22) 9.3.0"
BINUTILS = ("GNU assembler (GNU Binutils for Debian) 2.35.2", "GNU ld (GNU Binutils for Debian) 2.35.2")


@pytest.mark.parametrize("name", catalog.names("kernels/eras"))
def test_shipped_eras(name: str) -> None:
    era = kernel_era.era(name)
    where = kernel_era.container(str(era.container))
    assert era.compiler in where.packages
    used = [kernel for kernel in catalog.names("kernels") if recipe.load(kernel).recipe.era == name]
    assert used, "no kernel points to it"


def test_make_words() -> None:
    assert kernel_era.make_words(Era(description="today")) == ()
    assert kernel_era.make_words(OLD) == ("CC=gcc-9 -fno-pie -Wa,-mshared", "HOSTCC=gcc-9")


@pytest.mark.parametrize(
    ("compiler", "path"),
    [
        (GCC9, "include/linux/compiler-gcc9.h"),
        ("gcc (Debian 12.2.0-14+deb12u1) 12.2.0", "include/linux/compiler-gcc12.h"),
        ("gcc (Debian 10.2.1-6) 10.2.1 20210110", "include/linux/compiler-gcc10.h"),
        ("gcc (GCC) 4.9.2", None),
    ],
)
def test_a_header_for_a_compiler_that_is_too_young(compiler: str, path: str | None, tmp_path: Path) -> None:
    patch = kernel_era.shim(OLD, compiler)
    assert (touched(patch.text) if patch else None) == ((path,) if path else None)
    assert kernel_era.shim(Era(description="today"), compiler) is None
    if patch and path:
        subprocess.run(
            ["git", "apply", "-"],
            input=patch.text,
            text=True,
            cwd=tmp_path,
            check=True,
            env={"GIT_CEILING_DIRECTORIES": str(tmp_path.parent)},
        )
        assert (tmp_path / path).read_text() == "#include <linux/compiler-gcc4.h>\n"


def test_what_an_era_lacks_is_forgiven_and_nothing_else() -> None:
    lost = ["CONFIG_NEWER (requested y, got n)", "CONFIG_NUMA (requested y, got n)"]
    assert kernel_era.forgiven(OLD, lost) == (lost[:1], lost[1:])
    assert kernel_era.forgiven(None, lost) == ([], lost)


def test_containers_by_content() -> None:
    one = Container(description="a", suite="bullseye", packages=("gcc", "make"))
    assert one.id("x") == one.model_copy(update={"description": "b"}).id("x")
    assert (
        len(
            {
                one.id("x"),
                one.model_copy(update={"suite": "buster"}).id("x"),
                one.model_copy(update={"packages": ("gcc",)}).id("x"),
            }
        )
        == 3
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("compiler: clang\n", "compiler"),
        ("flags: ['-a b']\n", "flags"),
        ("machine: isapc\n", "machine"),
        ("header: ../x.h\n", "header"),
        ("mkfs_xfs: $(reboot)\n", "mkfs_xfs"),
        ("append: a'b\n", "append"),
        ("container: ../x\n", "container"),
        ("compilers: gcc\n", "compilers"),
    ],
)
def test_bad_eras(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "bad.yml").write_text(f"description: bad\n{text}")
    with pytest.raises(InputError, match=rf"bad\.yml:2: {message}"):
        kernel_era.era(f"{tmp_path}/bad.yml")


def test_an_era_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "k.yml").write_text(
        f"description: k\nsource: {{prebuilt: {{bzimage: {tmp_path}/k}}}}\nera: none\n"
    )
    (tmp_path / "k").write_bytes(b"kernel")
    with pytest.raises(InputError, match=r"no kernels/eras file .*none\.yml: there are 3\.16, "):
        kernel_boot.resolve(recipe.load(f"{tmp_path}/k.yml"), IMAGE)


def test_keys_change_with_the_era() -> None:
    tree = source.Tree(id="tar-1", tarball="/t", series="3.16")

    def plan(era: Era | None, tools: Tools) -> tuple[str, str]:
        build_plan = BuildPlan(
            name="k", tree=tree, config="CONFIG_A=y", distribution="", patches=(), tools=tools, era=era
        )
        return build_plan.key, build_plan.build

    bare, inside = (
        Tools(compiler=GCC9, binutils=BINUTILS),
        Tools(compiler=GCC9, binutils=BINUTILS, container="bullseye-1"),
    )
    keys = [
        plan(None, bare),
        plan(OLD, bare),
        plan(OLD, inside),
        plan(OLD.model_copy(update={"flags": ()}), inside),
    ]
    assert len(set(keys)) == len({build for _, build in keys}) == 4
    assert plan(OLD, inside) == plan(OLD.model_copy(update={"append": "quiet", "lacks": ()}), inside), (
        "what the guest gets is not in the kernel"
    )


def test_a_container_by_the_script_that_makes_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shutil.copytree(kernel_era.SCRIPTS, tmp_path / "files")
    before = kernel_era.container("bullseye").id("bullseye")
    monkeypatch.setattr(kernel_era, "SCRIPTS", tmp_path / "files")
    assert kernel_era.container("bullseye").id("bullseye") == before
    with (tmp_path / "files/container.sh").open("a") as handle:
        handle.write("true\n")
    assert kernel_era.container("bullseye").id("bullseye") != before


TOLD = "farm | CHANGED | rc=0 >>\n" + "\n".join([GCC9, *BINUTILS, ""])


@pytest.fixture
def farm(lab_state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A builder on another machine that prints its tools; the list has a line for each call."""
    (tmp_path / "inventory.ini").write_text("[builders]\nfarm\n")
    monkeypatch.setattr(ansible, "INVENTORY", tmp_path / "inventory.ini")
    commands: list[str] = []

    def run(words: list[str], **_: object) -> Result:
        commands.append(str(words[-1]))
        return Result((), 0, TOLD, "", 0.0)

    monkeypatch.setattr(toolchain, "run", run)
    return commands


def test_a_builder_elsewhere_is_asked_once(farm: list[str]) -> None:
    deadline = Deadline.after(10)
    assert toolchain.tools(None, deadline, ask=False) is None, "not known yet, and nobody may be asked"
    tools = toolchain.tools(None, deadline, ask=True)
    assert tools == Tools(compiler=GCC9, binutils=BINUTILS)
    assert toolchain.tools(None, deadline, ask=False) == tools
    assert farm == [toolchain.ask_tools(None)]


@pytest.mark.parametrize("damage", ["", GCC9, f"{GCC9}\n\n\n", "\n".join([GCC9, BINUTILS[0]]), b"\xff\xfe"])
def test_a_damaged_memory_of_tools_is_made_anew(
    farm: list[str], caplog: pytest.LogCaptureFixture, damage: str | bytes
) -> None:
    deadline = Deadline.after(10)
    tools = toolchain.tools(None, deadline, ask=True)
    (memory,) = state.folder("cache").glob("tools-*")
    memory.write_bytes(damage if isinstance(damage, bytes) else damage.encode())
    assert toolchain.tools(None, deadline, ask=False) is None
    assert f"{memory} is damaged" in caplog.text
    assert toolchain.tools(None, deadline, ask=True) == tools
    assert toolchain.tools(None, deadline, ask=False) == tools


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        (
            'farm | UNREACHABLE! => {\n    "changed": false,\n    "msg": "Task failed: ssh: port 1: Connection \\"refused\\"",'
            '\n    "unreachable": true\n}\n',
            'ssh: port 1: Connection "refused"',
        ),
        (
            f"farm | FAILED | rc=127 >>\n{GCC9}\n/bin/sh: 1: ld: not found\nnon-zero return code\n",
            "/bin/sh: 1: ld: not found",
        ),
        ("", "no output"),
    ],
)
def test_a_builder_that_does_not_answer(
    farm: list[str], monkeypatch: pytest.MonkeyPatch, printed: str, reason: str
) -> None:
    monkeypatch.setattr(toolchain, "run", lambda *_, **__: Result((), 4, printed, "", 0.0))
    with pytest.raises(HostError, match=f"^builder farm: {re.escape(reason)}$"):
        toolchain.tools(None, Deadline.after(10), ask=True)


def test_a_builder_without_a_linker(farm: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        toolchain, "run", lambda *_, **__: Result((), 0, f"farm | CHANGED | rc=0 >>\n{GCC9}\n", "", 0.0)
    )
    with pytest.raises(HostError, match="builder farm: gcc, as and ld do not print their versions"):
        toolchain.tools(None, Deadline.after(10), ask=True)


def test_a_memory_of_tools_of_another_format_is_not_read(
    farm: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert toolchain.tools(None, Deadline.after(10), ask=True)
    monkeypatch.setattr(toolchain, "MEMORY_FORMAT", toolchain.MEMORY_FORMAT + 1)
    assert toolchain.tools(None, Deadline.after(10), ask=False) is None


def test_a_play_that_was_ended_leaves_nothing(lab_state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither folders nor files (a container's tar) are left; other plays' stay."""

    def playbook(name: str, *, variables: dict[str, object], **_: object) -> None:
        for place in ("builds/{}tree", "containers/{}bullseye"):
            state.folder(*place.format(variables["kernel_scratch"]).split("/"))
        (state.folder("containers") / f"{variables['kernel_scratch']}bullseye.tar").touch()
        raise CommandFailed("ended")

    other = state.folder("containers") / ".making-aaaaaa.bbbbbb.1.2-x-bullseye.tar"
    other.touch()
    monkeypatch.setattr(toolchain, "builder", lambda: Builder("localhost", local=True))
    monkeypatch.setattr(ansible, "playbook", playbook)
    with pytest.raises(CommandFailed, match="ended"):
        toolchain.play("build", {}, lab_state / "log", Deadline.after(10))
    assert list(lab_state.glob("*/.making-*")) == [other]


@pytest.mark.parametrize("versions", ["", f"{GCC9}\n", None])
def test_a_damaged_container_is_made_anew(
    lab_state: Path, monkeypatch: pytest.MonkeyPatch, versions: str | None
) -> None:
    name = kernel_era.container("bullseye").id("bullseye")
    memory = state.folder("containers", name) / "versions"
    if versions is not None:
        memory.write_text(versions)

    def play(tag: str, variables: dict[str, object], log: Path, deadline: Deadline, **_: object) -> None:
        assert not memory.exists(), "container.sh takes it for whole"
        Path(str(variables["kernel_out"])).write_text("\n".join([GCC9, *BINUTILS, ""]))

    monkeypatch.setattr(toolchain, "play", play)
    assert toolchain.tools(OLD, Deadline.after(10), ask=False) is None
    assert toolchain.tools(OLD, Deadline.after(10), ask=True) == Tools(
        compiler=GCC9, binutils=BINUTILS, container=name
    )


def test_a_compiler_that_the_container_lacks(lab_state: Path) -> None:
    name = kernel_era.container("bullseye").id("bullseye")
    assert toolchain.tools(OLD, Deadline.after(10), ask=False) is None, "nobody made the container"
    (state.folder("containers", name) / "versions").write_text(
        "\n".join(["gcc (Debian 10.2.1-6) 10.2.1 20210110", GCC9, *BINUTILS, ""])
    )
    assert toolchain.tools(OLD, Deadline.after(10), ask=False) == Tools(
        compiler=GCC9, binutils=BINUTILS, container=name
    )
    with pytest.raises(InputError, match=r"kernels/containers/bullseye\.yml: packages: bring no gcc-4"):
        toolchain.tools(OLD.model_copy(update={"compiler": "gcc-4"}), Deadline.after(10), ask=False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "[hypervisors]\nh\n[builders]\n# none\nfarm ansible_user=me ; mine\nlocalhost\n",
            Builder("farm", local=False),
        ),
        ("[builders]\nlocalhost ansible_connection=local\n", Builder("localhost", local=True)),
        (
            "[far]\nb\n[builders:children]\nsmall\nfar\n[small:children]\nbuilders\n",
            Builder("b", local=False),
        ),
        ("[far]\nb\n[builders:children]\nfar\n[builders]\na\n", Builder("a", local=False)),
    ],
)
def test_who_builds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, expected: Builder) -> None:
    (tmp_path / "inventory.ini").write_text(text)
    monkeypatch.setattr(ansible, "INVENTORY", tmp_path / "inventory.ini")
    assert toolchain.builder() == expected


def test_all_who_build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each once, in order, those of child groups last; each but the first has logs and locks of its own."""
    (tmp_path / "inventory.ini").write_text(
        "[far]\nb\nc\n[builders:children]\nfar\n[builders]\na ansible_connection=local\nb\n"
    )
    monkeypatch.setattr(ansible, "INVENTORY", tmp_path / "inventory.ini")
    everybody = toolchain.builders()
    assert everybody == (Builder("a", local=True), Builder("b", local=False), Builder("c", local=False))
    suffixes = [toolchain.suffix(one) for one in everybody]
    assert suffixes[0] == ""
    assert len(set(suffixes)) == 3


@pytest.mark.parametrize(
    "text", ["", "[builders]\n", "[hypervisors]\nh\n", "[builders:children]\nbuilders\nfar\n"]
)
def test_nobody_builds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    (tmp_path / "inventory.ini").write_text(text)
    monkeypatch.setattr(ansible, "INVENTORY", tmp_path / "inventory.ini")
    with pytest.raises(InputError, match=r"inventory\.ini: the group \[builders\] has no host: "):
        toolchain.builder()


def test_what_the_guest_gets(tmp_path: Path) -> None:
    (tmp_path / "k").write_bytes(b"kernel")
    name = f"{tmp_path}/k.yml"
    Path(name).write_text(f'description: k\nsource: {{prebuilt: {{bzimage: {tmp_path}/k}}}}\nera: "3.16"\n')
    boot = kernel_boot.resolve(recipe.load(name), IMAGE)
    words = dict(word.split("=", 1) for word in boot.cmdline.split())
    assert words["clocksource"] == "hpet"
    assert len(base64.b64decode(words["systemd.random_seed"])) == kernel_boot.SEED_BYTES
    assert kernel_boot.resolve(recipe.load(name), IMAGE).cmdline != boot.cmdline, (
        "every guest has the same entropy"
    )
    assert boot.environment["LAB_MKFS_XFS"].endswith("-i sparse=0")
    shape = catalog.topology("4socket")
    fitted = kernel_boot.fitted(recipe.load(name), shape)
    assert (shape.machine, fitted.machine, kernel_boot.fitted(recipe.load("debian"), shape)) == (
        "q35",
        "pc",
        shape,
    )
    assert (shape.deals_cpus, fitted.deals_cpus) == (False, True)


def test_variables_for_every_command(lab_state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (lab_state / "guests" / "g").mkdir(parents=True)
    guest_record = record("g")
    boot = guest_record.spec.boot.model_copy(update={"environment": {"LAB_MKFS_XFS": "-m crc=0 -n ftype=0"}})
    guest_record = guest_record.model_copy(
        update={"spec": guest_record.spec.model_copy(update={"boot": boot})}
    )

    def execute(self: ssh.Ssh, command: str, *, deadline: Deadline, **_: object) -> Result:
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
        return Result((command,), done.returncode, done.stdout, done.stderr, 0.0)

    monkeypatch.setattr(ssh.Ssh, "execute", execute)
    result = Guest(guest_record, FakeHost().real()).execute(
        "echo mkfs.xfs ${LAB_MKFS_XFS:--m crc=1} /dev/vdb", deadline=Deadline.after(10)
    )
    assert result.stdout == "mkfs.xfs -m crc=0 -n ftype=0 /dev/vdb\n"
    result = Guest(record("g"), FakeHost().real()).execute(
        "echo mkfs.xfs ${LAB_MKFS_XFS:--m crc=1} /dev/vdb", deadline=Deadline.after(10)
    )
    assert result.stdout == "mkfs.xfs -m crc=1 /dev/vdb\n"


@pytest.mark.parametrize(
    ("printed", "error", "message"),
    [
        (
            "",
            GuestError,
            (
                r"guest g: its kernel printed nothing and used only 0\.7 s of processor time: it hangs before"
                r" its first line.*-Wa,-mshared"
            ),
        ),
        ("\r\n", GuestError, "printed nothing"),
        ("[    0.000000] Linux version 3.19.0\n", DeadlinePassed, "waiting for SSH"),
    ],
)
def test_a_silent_boot(
    lab_state: Path, monkeypatch: pytest.MonkeyPatch, printed: str, error: type[Exception], message: str
) -> None:
    def wait(self: ssh.Ssh, deadline: Deadline, **_: object) -> None:
        raise DeadlinePassed("guest g: waiting for SSH on port 2222: the time limit passed")

    monkeypatch.setattr(ssh.Ssh, "wait", wait)
    (lab_state / "guests" / "g").mkdir(parents=True)
    waiting = Guest(record("g"), FakeHost().real())
    waiting.console_log.write_text(printed)
    with pytest.raises(error, match=message):
        waiting.reach(Deadline.after(10))


def test_a_busy_silence() -> None:
    """A kernel without a console that KVM runs needs few seconds until user space."""
    for seconds in (3.0, 250.0):
        assert "without a console" in console.silence("g", seconds)
        assert "mshared" not in console.silence("g", seconds)


@pytest.fixture
def linux(tmp_path: Path) -> Path:
    """A git tree."""
    place = tmp_path / "linux"
    place.mkdir()
    (place / "Makefile").write_text("VERSION = 3\nPATCHLEVEL = 19\n")
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"], ["tag", "v3.19"]):
        subprocess.run(["git", "-C", place, "-c", "user.name=x", "-c", "user.email=x@x", *words], check=True)
    return place


def from_source(**source: object) -> recipe.Kernel:
    """Kernel 3.19 from another source."""
    kernel = recipe.load("3.19")
    changed = kernel.recipe.model_copy(
        update={"source": recipe.Source.model_validate(source), "series": "3.19"}
    )
    return kernel.model_copy(update={"recipe": changed})


def test_a_git_tree_is_said_once(linux: Path, lab_state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAB_LINUX_GIT", raising=False)
    deadline, kernel = (
        Deadline.after(60),
        from_source(git=recipe.Git(rev="v3.19")),
    )
    with pytest.raises(
        InputError,
        match=(
            r"kernels/3\.19\.yml: comes from a Linux git tree: say where one is, in LAB_LINUX_GIT or to"
            r" lab.py kernel build"
        ),
    ):
        source.tree(kernel, deadline, fetch=True)
    with pytest.raises(InputError, match=r"^source tree .*: is no git tree"):
        source.use_git(str(lab_state), deadline)
    source.use_git(str(linux), deadline)
    tree = source.tree(kernel, deadline, fetch=True)
    assert tree is not None
    assert (tree.series, tree.git) == ("3.19", str(linux))
    with pytest.raises(
        InputError,
        match=(
            r"kernels/3\.19\.yml: source\.git\.commit: v3\.19 of .* is .*, not bfa76d4.*: was the tag moved"
        ),
    ):
        source.tree(recipe.load("3.19"), deadline, fetch=True)
    monkeypatch.setenv("LAB_LINUX_GIT", "/elsewhere")
    with pytest.raises(InputError, match="but LAB_LINUX_GIT is /elsewhere, and goes first"):
        source.use_git(str(linux), deadline)


def test_a_source_package_of_another_suite(
    lab_state: Path, program: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """From package lists of its own: the host's sources.list is not used or changed."""
    monkeypatch.setattr(source, "USR_SRC", tmp_path / "none")
    monkeypatch.setattr(apt, "KEYS", tmp_path)
    log = tmp_path / "asked"
    program(
        "apt-get",
        f'echo "$@" >> {log}; cat "${{2#*=}}" >> {log}; case "$*" in *" download "*) touch linux.deb;; esac',
    )
    program("dpkg-deb", 'mkdir -p "$3/usr/src" && echo tree > "$3/usr/src/linux-source-5.10.tar.xz"')
    tree = source.tree(recipe.load("5.10"), Deadline.after(30), fetch=True)
    assert tree is not None
    assert tree.id.startswith("debian-5.10-")
    lines = log.read_text().splitlines()
    assert [line.split()[-1] for line in lines if line.startswith("-o")] == ["update", "linux-source-5.10"]
    assert all(
        f"Dir::State={lab_state}/" in line and "Dir::Etc::SourceParts=" in line
        for line in lines
        if line.startswith("-o")
    )
    assert f"deb [signed-by={tmp_path}] {apt.MIRROR}/debian-security bullseye-security main" in lines
    file = lab_state / "downloads/linux-source-5.10/linux-source-5.10.tar.xz"
    assert sorted(path.name for path in file.parent.iterdir()) == [file.name, f"{file.name}.sha256"]
    assert source.tree(recipe.load("5.10"), Deadline.after(30), fetch=False) == tree


@pytest.mark.parametrize(
    ("suite", "secured"), [("testing", True), ("sid", False), ("bookworm-backports", False)]
)
def test_a_recipe_names_the_suite_of_its_source(
    program: Callable[[str, str], Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    suite: str,
    secured: bool,
) -> None:
    monkeypatch.setattr(source, "USR_SRC", tmp_path / "none")
    log = tmp_path / "lists"
    program("apt-get", f'cat "${{2#*=}}" >> {log}; case "$*" in *" download "*) touch linux.deb;; esac')
    program("dpkg-deb", 'mkdir -p "$3/usr/src" && echo tree > "$3/usr/src/linux-source-7.2.tar.xz"')
    file = tmp_path / "new.yml"
    file.write_text(f'description: new\nsource: {{debian-source: "7.2", suite: {suite}}}\nconfig: [base]\n')
    tree = source.tree(recipe.load(str(file)), Deadline.after(30), fetch=True)
    assert tree is not None
    assert tree.series == "7.2"
    lines = log.read_text()
    assert f"{apt.MIRROR}/debian {suite} main" in lines
    assert (f"{apt.MIRROR}/debian-security {suite}-security main" in lines) is secured


def test_a_host_without_the_package_takes_its_release(
    program: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Debian 13 has no linux-source-6.1, and its apt would give linux-source-6.12 for the name."""
    monkeypatch.setattr(source, "USR_SRC", tmp_path / "none")
    log = tmp_path / "calls"
    program(
        "apt-get",
        f'echo "$@" >> {log}; case "$*" in *Dir::State=*" download "*) touch linux.deb;; *Dir::State=*) ;;'
        " *) echo 'E: Unable to locate package'; exit 100;; esac",
    )
    program("dpkg-deb", 'mkdir -p "$3/usr/src" && echo tree > "$3/usr/src/linux-source-6.1.tar.xz"')
    tree = source.tree(recipe.load("6.1"), Deadline.after(30), fetch=True)
    assert tree is not None
    assert tree.series == "6.1"
    own, update, download = log.read_text().splitlines()
    assert own == "-o APT::Cmd::Pattern-Only=true download -q linux-source-6.1"
    assert update.endswith(" update")
    assert download.endswith(" -o APT::Cmd::Pattern-Only=true download -q linux-source-6.1")


def test_a_suite_goes_with_a_source_package_alone(tmp_path: Path) -> None:
    file = tmp_path / "new.yml"
    file.write_text("description: new\nsource: {git: {rev: v7.2}, suite: testing}\nconfig: [base]\n")
    with pytest.raises(InputError, match="suite: is where a debian-source comes from"):
        recipe.load(str(file))


@pytest.mark.parametrize("record", [True, False], ids=["with its checksum", "of an older lab"])
def test_a_truncated_source_package_is_downloaded_again(
    lab_state: Path,
    program: Callable[[str, str], Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    record: bool,
) -> None:
    monkeypatch.setattr(source, "USR_SRC", tmp_path / "none")
    (tmp_path / "tree.xz").write_bytes(lzma.compress(b"tree" * 1000))
    program("apt-get", 'case "$*" in *" download "*) touch linux.deb;; esac')
    program(
        "dpkg-deb", f'mkdir -p "$3/usr/src" && cp {tmp_path}/tree.xz "$3/usr/src/linux-source-5.10.tar.xz"'
    )
    kernel, deadline = recipe.load("5.10"), Deadline.after(30)
    whole = source.tree(kernel, deadline, fetch=True)
    file = lab_state / "downloads/linux-source-5.10/linux-source-5.10.tar.xz"
    if not record:
        file.with_name(f"{file.name}.sha256").unlink()
        assert source.tree(kernel, deadline, fetch=False) == whole, "what xz finds whole is whole"
        file.with_name(f"{file.name}.sha256").unlink()
    file.write_bytes(file.read_bytes()[:-20])
    assert source.tree(kernel, deadline, fetch=False) is None
    assert source.tree(kernel, deadline, fetch=True) == whole
    assert f"{file} is damaged: it is downloaded again" in caplog.text


def test_a_truncated_archive_is_made_again(
    linux: Path, lab_state: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kernel = from_source(git=recipe.Git(url=str(linux), rev="v3.19"))
    whole = source.tree(kernel, Deadline.after(60), fetch=True)
    assert whole is not None
    tarball, content = Path(whole.tarball), Path(whole.tarball).read_bytes()
    assert source.tree(kernel, Deadline.after(60), fetch=False) == whole
    tarball.write_bytes(content[:100])
    assert source.tree(kernel, Deadline.after(60), fetch=True) == whole
    assert tarball.read_bytes() == content
    assert f"{tarball} is damaged: it is made again" in caplog.text


def test_a_truncated_tarball_is_downloaded_again(
    lab_state: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "linux.tar").write_bytes(b"tar" * 100)
    digest = hashlib.sha256(b"tar" * 100).hexdigest()
    tarball = recipe.Tarball(url=(tmp_path / "linux.tar").as_uri(), sha256=digest)
    kernel = from_source(tarball=tarball)
    whole = source.tree(kernel, Deadline.after(60), fetch=True)
    assert whole is not None
    Path(whole.tarball).write_bytes(b"tar")
    assert source.tree(kernel, Deadline.after(60), fetch=False) is None
    assert source.tree(kernel, Deadline.after(60), fetch=True) == whole
    assert "is damaged: it is downloaded again" in caplog.text


def test_a_tarballs_bytes_are_told(lab_state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(source, "moving", said.append)
    content = b"tar" * (1 << 20)
    (tmp_path / "linux.tar").write_bytes(content)
    tarball = recipe.Tarball(
        url=(tmp_path / "linux.tar").as_uri(), sha256=hashlib.sha256(content).hexdigest()
    )
    assert source.tree(from_source(tarball=tarball), Deadline.after(60), fetch=True)
    assert said == ["1 of 3 MiB", "2 of 3 MiB", "3 of 3 MiB"]


def commit(place: Path, name: str, content: bytes) -> str:
    """The id of a new commit that adds this file."""
    (place / name).write_bytes(content)
    for words in (["add", "-A"], ["-c", "user.name=x", "-c", "user.email=x@x", "commit", "-qm", name]):
        subprocess.run(["git", "-C", place, *words], check=True)
    return source.git(place, ["rev-parse", "HEAD"], Deadline.after(60)).stdout.strip()


def test_what_a_url_has_got_since(linux: Path, lab_state: Path) -> None:
    """A tag or a commit that the clone lacks is fetched, and without `fetch` is not here yet."""
    url, deadline = linux.as_uri(), Deadline.after(60)
    first = from_source(git=recipe.Git(url=url, rev="v3.19"))
    assert source.tree(first, deadline, fetch=True)
    fix = commit(linux, "fix", b"fix\n")
    subprocess.run(["git", "-C", linux, "tag", "v3.19.1"], check=True)
    later = from_source(git=recipe.Git(url=url, rev="v3.19.1"))
    tree = source.tree(first, deadline, fetch=False)
    assert tree
    assert source.commit_patch(tree, fix, first, deadline, reverse=False, fetch=False) is None
    assert source.tree(later, deadline, fetch=False) is None
    patch = source.commit_patch(tree, fix, first, deadline, reverse=False, fetch=True)
    assert patch
    assert "+fix" in patch.text
    assert source.tree(later, deadline, fetch=True)
    with pytest.raises(InputError, match="has no commit v9"):
        source.tree(from_source(git=recipe.Git(url=url, rev="v9")), deadline, fetch=True)


def test_a_commit_that_is_not_utf8(linux: Path, lab_state: Path) -> None:
    old = commit(linux, "old", b"/* J\xf6rg */\n")
    kernel = from_source(git=recipe.Git(url=str(linux), rev="v3.19"))
    tree = source.tree(kernel, Deadline.after(60), fetch=True)
    assert tree
    with pytest.raises(InputError, match=f"commit {old}: has lines that are not UTF-8"):
        source.commit_patch(tree, old, kernel, Deadline.after(60), reverse=False, fetch=True)


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", "the connection ended after 4 of 9 bytes"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhalf", "IncompleteRead"),
        (b"", "closed connection without response"),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", "Not Found"),
    ],
)
def test_a_download_that_breaks_off(lab_state: Path, answer: bytes, line: str) -> None:
    """It is no wrong checksum: the pool tries it again."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with server.accept()[0] as connection:
                connection.recv(1000)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/linux.tar"
        kernel = from_source(tarball=recipe.Tarball(url=url, sha256="0" * 64))
        with pytest.raises(HostError, match=f"{url}: .*{line}"):
            source.tree(kernel, Deadline.after(60), fetch=True)
        thread.join()
    assert not list((lab_state / "downloads").iterdir())


@pytest.mark.parametrize("damage", [b"", b"\0" * 20, b"\xff\xfe"])
def test_a_damaged_memory_of_the_git_tree(
    linux: Path,
    lab_state: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    damage: bytes,
) -> None:
    monkeypatch.delenv("LAB_LINUX_GIT", raising=False)
    source.use_git(str(linux), Deadline.after(60))
    (lab_state / "cache/linux-git").write_bytes(damage)
    assert source.linux_git() is None
    assert "cache/linux-git is damaged: lab.py kernel build must be told the source tree again" in caplog.text


def test_a_damaged_configuration_is_made_again(
    lab_state: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    build_plan = BuildPlan(
        name="k",
        tree=source.Tree(id="tar-1", tarball="/t", series="6.1"),
        config="CONFIG_A=y",
        distribution="",
        patches=(),
        tools=Tools(compiler="gcc", binutils=BINUTILS),
    )
    monkeypatch.setattr(
        kernel_build, "_play", lambda plan, tag, out, deadline: out.write_text("CONFIG_A=y\n")
    )
    place = state.folder("configs") / build_plan.build
    place.write_text("")
    assert kernel_build.configure(build_plan, Deadline.after(10)) == "CONFIG_A=y\n"
    assert f"{place} is damaged" in caplog.text


def test_source_is_for_git_kernels(linux: Path, lab_state: Path) -> None:
    with pytest.raises(InputError, match=r"--source /linux: 6\.1, 6\.12 comes from elsewhere"):
        kernel_commands._use("/linux", [recipe.load("6.1"), recipe.load("6.12")])
    kernel_commands._use(str(linux), [recipe.load("6.1"), recipe.load("3.19")])
    assert source.linux_git() == str(linux)


def built(place: Path, number: int) -> None:
    """The manifest of a kernel's build with this layout."""
    (place / "bzImage").write_text("x")
    known = Built(
        name="6.1",
        key=place.name.rpartition("-")[2],
        directory=str(place),
        release="6.1",
        seconds=1,
        patches=(f"+ layout {number}",),
        source="s",
        compiler="gcc",
        bzimage_bytes=1,
        modules=False,
    )
    (place / "manifest.json").write_text(known.model_dump_json())


def plan_of(name: str, tree: str, tools: Tools) -> BuildPlan:
    """A kernel without patches, of the series of its name, from the source with the id `tree`."""
    return BuildPlan(
        name=name,
        tree=source.Tree(id=tree, tarball="/usr/src/x", series=name),
        config="",
        distribution="",
        patches=(),
        tools=tools,
    )


def test_prune(lab_state: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What a recipe leads to stays, and so does what it may lead to when its source is not available."""
    now = plan_of("6.1", f"debian-6.1-{'a' * 16}", Tools(compiler="gcc", binutils=BINUTILS))

    def plan(kernel: recipe.Kernel, *_: object, **__: object) -> BuildPlan | None:
        source = kernel.recipe.source
        if source.git:
            raise InputError("no tree")
        pads = (layout.patch(kernel.name, kernel.layout),) if kernel.layout else ()
        mine = now.model_copy(update={"name": kernel.name, "patches": pads})
        return mine if source.debian_source == "6.1" else None

    def tree(kernel: recipe.Kernel, *_: object, **__: object) -> source.Tree | None:
        """The 7.2 tree: the only source here that is known without a builder's tools."""
        if kernel.recipe.source.debian_source != "7.2":
            return None
        tarball = lab_state / "downloads" / "linux-source-7.2-testing" / "linux-source-7.2.tar.xz"
        return source.Tree(id=f"debian-7.2-{'7' * 16}", tarball=str(tarball), series="7.2")

    monkeypatch.setattr(kernel_build, "make_plan", plan)
    monkeypatch.setattr(source, "tree", tree)
    monkeypatch.setattr(guest, "names", lambda: ["g"])
    monkeypatch.setattr(
        guest,
        "read",
        lambda _: record("g").model_copy(
            update={
                "spec": (
                    record("g").spec.model_copy(
                        update={
                            "boot": (
                                record("g").spec.boot.model_copy(
                                    update={"kernel": f"{lab_state}/kernels/mine-{'2' * 16}/bzImage"}
                                )
                            )
                        }
                    )
                )
            }
        ),
    )
    git = recipe.load("3.19").recipe.source.git
    assert git is not None
    commit = str(git.commit)[:16]
    stays = [
        f"kernels/6.1-{now.key}",
        f"kernels/3.19-{'1' * 16}",
        f"kernels/mine-{'2' * 16}",
        f"builds/{now.build}",
        f"builds/git-{commit}-{'3' * 12}",
        f"configs/{now.build}",
        f"sources/{now.tree.id}",
        f"sources/{now.tree.id}.lock",
        f"sources/git-{commit}",
        f"sources/debian-5.10-{'4' * 16}",
        f"containers/{kernel_era.container('bullseye').id('bullseye')}",
        f"downloads/git-{commit}{'5' * 24}-{'6' * 16}.tar",
        "downloads/linux-source-7.2-testing",
        "kernels/.making-1-x",
    ]
    goes = [
        f"kernels/6.1-{'0' * 16}",
        f"kernels/gone-{'0' * 16}",
        f"builds/{now.tree.id}-{'0' * 12}",
        f"builds/debian-6.1-{'b' * 16}-{'0' * 12}",
        f"configs/git-{'0' * 16}-{'0' * 12}",
        f"sources/debian-6.1-{'b' * 16}",
        f"sources/debian-6.1-{'b' * 16}.lock",
        f"containers/bullseye-{'0' * 16}",
        f"downloads/git-{'0' * 40}.tar",
    ]
    for name in (*stays, *goes):
        (lab_state / name).mkdir(parents=True)
    # Builds of `run --builds`: of today's recipe, and of one that has changed since.
    laid_out = now.model_copy(update={"patches": (layout.patch("6.1", 2),)})
    for number, key in ((2, laid_out.key), (1, "8" * 16)):
        place = lab_state / "kernels" / f"6.1-{key}"
        place.mkdir()
        built(place, number)
        (stays if number == 2 else goes).append(f"kernels/{place.name}")
    paths = prune.candidates(None, Deadline.after(60))
    assert sorted(str(path.relative_to(lab_state)) for path in paths) == sorted(goes)
    assert all(prune.remove(path) for path in paths)
    assert all((lab_state / name).exists() for name in stays)
    assert not any((lab_state / name).exists() for name in goes)


@pytest.mark.parametrize("really", [False, True])
def test_prune_removes_what_it_lists_only_when_told_to(
    really: bool, lab_state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = state.folder("kernels", f"gone-{'0' * 16}")
    monkeypatch.setattr(image, "existing", lambda *_: None)
    monkeypatch.setattr(prune, "candidates", lambda *_: [gone])
    kernel_commands.prune_kernels(really)
    out = capsys.readouterr().out
    assert (gone.exists(), f"kernels/{gone.name}" in out) == (not really, True)
    assert ("removed" if really else "kernel prune --remove") in out


def test_prune_leaves_a_container_in_which_something_is_built(
    lab_state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolchain, "builders", lambda: (Builder("localhost", local=True),))
    tools = Tools(compiler=GCC9, binutils=BINUTILS, container="bullseye-0")
    plan = plan_of("3.16", f"git-{'a' * 16}", tools)
    here, there = Builder("localhost", local=True), Builder("farm", local=False)
    assert kernel_build._container(plan, here) == [], "the role makes it"
    place, lock = state.folder("containers", "bullseye-0"), state.folder("containers") / "bullseye-0.lock"
    lock.touch()
    assert kernel_build._container(plan, there) == []
    assert kernel_build._container(plan, here) == [place]
    with state.using(place):
        assert not prune.remove(place)
        assert not prune.remove(lock), "container.sh locks it"
        assert place.exists()
        assert lock.exists()
    assert prune.remove(place)
    assert prune.remove(lock)


def test_prune_leaves_what_is_in_use(lab_state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that another lab.py builds from, here or on another builder, and a kernel that an experiment's next boot needs."""
    name = f"debian-6.1-{'b' * 16}"
    (lab_state / "sources" / name).mkdir(parents=True)
    (lab_state / "kernels" / "mine-1").mkdir(parents=True)
    monkeypatch.setattr(prune, "LOCK_SECONDS", 0.1)
    farm = Builder("farm", local=False)
    monkeypatch.setattr(toolchain, "builders", lambda: (Builder("localhost", local=True), farm))
    for suffix in ("", toolchain.suffix(farm)):
        with held(f"kernel-{name}{suffix}"):
            assert not prune.remove(lab_state / "sources" / name)
    with state.using(lab_state / "kernels" / "mine-1"):
        assert not prune.remove(lab_state / "kernels" / "mine-1")
    assert (lab_state / "sources" / name).exists()
    assert (lab_state / "kernels" / "mine-1").exists()


def test_prune_and_a_guest_that_cannot_be_read(lab_state: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Half a guest needs no kernel; one whose record another checkout wrote may need any."""
    gone = state.folder("kernels", "mine-1")
    half = state.folder("guests", "half")
    assert prune.candidates(None, Deadline.after(60)) == [gone]
    (half / "guest.json").write_text('{"format": 99}')
    assert prune.candidates(None, Deadline.after(60)) == []
    assert "no kernel is listed: which one guest half stands on cannot be read" in caplog.text
