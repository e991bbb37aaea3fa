# SPDX-License-Identifier: GPL-2.0-only
"""Kernel recipes, configurations, patch headers and keys; errors that name the bad one."""

from __future__ import annotations

import re
import shutil
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from numalab.cli import kernel as kernel_commands
from numalab.core import paths
from numalab.core.errors import CommandFailed, HostError, InputError, LabError
from numalab.core.process import Deadline
from numalab.guest.provision import pairs
from numalab.host.image import Image
from numalab.kernel import boot, build, era, kconfig, recipe, source, toolchain
from numalab.kernel import patch as kernel_patch
from numalab.kernel.patch import Move, Patch
from numalab.kernel.toolchain import Tools
from numalab.model import catalog
from numalab.model.guest import Boot

BINUTILS = ("GNU assembler 2.40", "GNU ld 2.40")
IMAGE = Image(name="debian12", id="0" * 16, directory="/images/x", root="PARTUUID=1", disk_bytes=1, inputs={})
GOOD = """\
Subject: mm: do less
Set: less
Mirrors: 0123456789ab (undoes it)
Moves: numa_pte_updates up, pgfault unknown

Why.

diff --git a/mm/a.c b/mm/a.c
--- a/mm/a.c
+++ b/mm/a.c
@@ -1,2 +1,2 @@
-one
+two
 same
@@ -40,2 +40,2 @@ f()
-three
+four
 same
diff --git a/mm/new.h b/mm/new.h
new file mode 100644
--- /dev/null
+++ b/mm/new.h
@@ -0,0 +1 @@
+new
"""
BUILT = [name for name in catalog.names("kernels") if recipe.load(name).recipe.built]
FILES = sorted((paths.ROOT / "kernels/patches").rglob("*.patch"))


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """kernels(NAME, text=…, **{path: text}): writes files into a checkout of the test's own."""
    monkeypatch.setattr(paths, "ROOT", tmp_path)

    def write(**files: str) -> Path:
        for name, text in files.items():
            path = tmp_path / "kernels" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


@pytest.mark.parametrize("name", BUILT)
def test_shipped_recipes_lead_to_files(name: str) -> None:
    kernel = recipe.load(name)
    kernel_recipe = kernel.recipe
    lean = recipe.DISTRIBUTION not in kernel_recipe.config
    assert kernel_recipe.source.git is None or kernel_recipe.source.git.commit, (
        "a tag without its commit may be moved"
    )
    assert (
        kconfig.options(recipe.fragments(kernel))["CONFIG_NUMA_BALANCING" if lean else "CONFIG_EXT4_FS"]
        == "y"
    )
    for item in (*kernel_recipe.apply, *kernel_recipe.revert):
        if not (kernel_recipe.source.git and recipe.COMMIT.fullmatch(item)):
            # Without either, a git tree's Makefile has the series, here its tag.
            series = (
                kernel_recipe.of_series
                or re.findall(r"\d+\.\d+", str(kernel_recipe.source.git and kernel_recipe.source.git.rev))[0]
            )
            assert all(kernel_patch.touched(patch.text) for patch in recipe.patch_set(item, series, kernel))
    if kernel.era:
        assert era.container(str(kernel.era.container)).suite == "bullseye"


@pytest.mark.parametrize("path", FILES, ids=lambda path: "/".join(path.parts[-3:-1]))
def test_shipped_patches_say_what_they_do(path: Path) -> None:
    header = kernel_patch.header(path.read_text(), path.name)
    assert header.set == path.parent.parent.name
    assert bool(header.moves) == ("Moves: none" not in path.read_text())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("source: {}\n", "exactly one source must be given, not 0"),
        ('source: {debian-source: "6.1", debian-image: true}\n', "exactly one source must be given, not 2"),
        ('source: {debian-source: "6"}\n', "source.debian-source"),
        ("source: {debian-source: 6.1}\nconfig: base\n", "source.debian-source"),
        ('source: {debian-source: "6.1"}\n', "config: names of kernels/config"),
        ('source: {debian-source: "6.1"}\nconfig: [base, distribution]\n', "distribution comes first"),
        (
            'source: {debian-source: "6.1"}\nconfig: base\napply: [a]\nrevert: [a]\n',
            "apply: a is there twice",
        ),
        ('source: {debian-source: "6.1"}\nconfig: base\napply: [../a]\n', "is not a name"),
        ('source: {debian-source: "6.1"}\nconfig: base\npatch: [a]\n', "patch: Extra inputs"),
        ("source: {debian-image: true}\napply: [a]\n", "apply: a kernel that is not built here"),
        (
            "source: {tarball: {url: https://example.org/l.tar}}\nconfig: base\n",
            "sha256: a URL needs the checksum",
        ),
        ("source: {tarball: {path: a, url: file://b}}\nconfig: base\n", "give either path or url"),
        ("source: {tarball: {path: a, sha256: abc}}\nconfig: base\n", "source.tarball.sha256"),
        ("source: {git: {url: /linux}}\nconfig: base\n", "source.git.rev: Field required"),
        ("source: {git: {url: /linux, rev: --upload-pack=x}}\nconfig: base\n", "source.git.rev"),
    ],
)
def test_bad_recipes(kernels: Callable[..., Path], text: str, message: str) -> None:
    place = kernels(**{"bad.yml": f"description: bad\n{text}"})
    with pytest.raises(InputError) as caught:
        recipe.load("bad")
    assert message in str(caught.value).replace("bad.yml:", "", 1)
    assert f"{place}/kernels/bad.yml:" in str(caught.value)


def test_names_that_lead_nowhere(kernels: Callable[..., Path]) -> None:
    kernels(
        **{
            "k.yml": 'description: k\nsource: {debian-source: "6.1"}\nconfig: [base]\napply: [less]\n',
            "config/lean.config": "",
            "patches/less/6.12/1.patch": GOOD,
            "patches/more/6.1/1.patch": GOOD,
        }
    )
    kernel = recipe.load("k")
    with pytest.raises(
        InputError, match=r"k\.yml: config: there is no kernels/config/base\.config: there are lean"
    ):
        recipe.fragments(kernel)
    with pytest.raises(InputError, match=r"k\.yml: patch set less has no patches for 6\.1, only for 6\.12"):
        recipe.patch_set("less", "6.1", kernel)
    with pytest.raises(InputError, match="there is no patch set kernels/patches/none: there are less, more"):
        recipe.patch_set("none", "6.1", kernel)
    with pytest.raises(InputError, match="series: is needed"):
        recipe.patch_set("less", None, kernel)
    with pytest.raises(InputError, match="is not the folder's name, more"):
        recipe.patch_set("more", "6.1", kernel)


@pytest.mark.parametrize("file", ["config/lean.config", "patches/set/6.1/1.patch"])
def test_a_file_that_is_not_utf8(kernels: Callable[..., Path], file: str) -> None:
    files = {
        "k.yml": 'description: k\nsource: {debian-source: "6.1"}\nconfig: [lean]\napply: [set]\n',
        "config/lean.config": "",
        "patches/set/6.1/1.patch": GOOD,
    }
    (kernels(**files) / "kernels" / file).write_bytes(b"# J\xf6rg\n")
    kernel = recipe.load("k")

    def read() -> None:
        recipe.fragments(kernel)
        recipe.patch_set("set", "6.1", kernel)

    with pytest.raises(InputError, match=rf"{Path(file).name}: is not UTF-8 at byte 3"):
        read()


def test_header() -> None:
    header = kernel_patch.header(GOOD, "a.patch")
    assert (header.subject, header.set, header.mirrors) == ("mm: do less", "less", "0123456789ab (undoes it)")
    assert header.moves == {"numa_pte_updates": Move.UP, "pgfault": Move.UNKNOWN}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("Subject: mm: do less\n", "", "Subject is missing"),
        (
            "Moves: numa_pte_updates up",
            "Moves: numa_pte_updates sideways",
            "'numa_pte_updates sideways' is not a counter and one of up, down",
        ),
        ("Set: less", "Set: ../x", "is not a name"),
        ("Set: less", "Author: me", "'Author: me' is no line of a header"),
        ("Set: less", "Set: less\nSet: more", "'Set: more' is no line of a header"),
    ],
)
def test_bad_headers(old: str, new: str, message: str) -> None:
    with pytest.raises(InputError, match=r"^a\.patch: header: ") as caught:
        kernel_patch.header(GOOD.replace(old, new), "a.patch")
    assert message in str(caught.value)


def test_touched_files() -> None:
    assert kernel_patch.touched(GOOD) == ("mm/a.c", "mm/new.h")
    assert kernel_patch.touched("diff --git a/x b/y\nrename from x\nrename to y\n") == ("x", "y")
    with pytest.raises(InputError, match="leads out of the tree"):
        kernel_patch.touched("--- a/../../etc/passwd\n+++ b/../../etc/passwd\n")


@pytest.mark.parametrize(
    ("output", "refusal"),
    [
        (
            "error: patch failed: mm/a.c:40\nerror: mm/a.c: patch does not apply\n",
            "less: hunk 2 of 2 (line 40) of mm/a.c does not apply",
        ),
        (
            "error: mm/new.h: already exists in working directory\n",
            "less: all of mm/new.h does not apply: already exists in working directory",
        ),
        (
            "error: mm/a.c: No such file or directory\n",
            "less: all of mm/a.c does not apply: No such file or directory",
        ),
        ("error: corrupt patch at line 12\n", "less: not a patch: corrupt patch at line 12"),
        ("fatal: something else\n", None),
    ],
)
def test_refusals(output: str, refusal: str | None) -> None:
    assert kernel_patch.refusal(output, Patch(label="less", text=GOOD)) == refusal


def test_options() -> None:
    requested = 'CONFIG_A=y\n# comment\n# CONFIG_B is not set\nCONFIG_C="text"\nCONFIG_A=m\n'
    assert kconfig.options(requested) == {"CONFIG_A": "m", "CONFIG_B": "n", "CONFIG_C": '"text"'}
    assert kconfig.lost(requested, 'CONFIG_A=m\nCONFIG_C="text"\n') == []
    assert kconfig.lost(requested, "# CONFIG_A is not set\nCONFIG_B=y\n") == [
        "CONFIG_A (requested m, got n)",
        "CONFIG_B (requested n, got y)",
        'CONFIG_C (requested "text", got n)',
    ]


def test_options_in_force() -> None:
    """Neither the build's name, nor its tools' versions, nor the order, nor what is not set."""
    built = (
        '# Linux/x86 6.1.0 Kernel Configuration\nCONFIG_CC_VERSION_TEXT="gcc 12"\nCONFIG_GCC_VERSION=120200\n'
        'CONFIG_LOCALVERSION="-numalab"\n# CONFIG_LOCALVERSION_AUTO is not set\nCONFIG_BUILD_SALT="6.1"\n'
        "CONFIG_A=y\nCONFIG_HAVE_ASM_MODVERSIONS=y\n"
    )
    again = "CONFIG_HAVE_ASM_MODVERSIONS=y\nCONFIG_A=y\n# CONFIG_B is not set\n"
    options = kconfig.in_force(built)
    assert options == {"CONFIG_A": "y", "CONFIG_HAVE_ASM_MODVERSIONS": "y"}
    assert kconfig.digest(options) == kconfig.digest(kconfig.in_force(again))
    assert kconfig.digest(options) != kconfig.digest(options | {"CONFIG_A": "m"})


def plan(**changes: object) -> build.BuildPlan:
    fields: dict[str, object] = {
        "name": "k",
        "tree": source.Tree(id="tar-1", tarball="/t", series="6.1"),
        "config": "CONFIG_A=y",
        "distribution": "",
        "patches": (Patch(label="less", text=GOOD), Patch(label="more", text="+")),
        "tools": Tools(compiler="gcc 12", binutils=BINUTILS),
    }
    return build.BuildPlan.model_validate(fields | changes)


def test_keys_change_with_what_a_kernel_is_made_of_and_with_nothing_else() -> None:
    same = plan()
    for changes in (
        {"tree": source.Tree(id="tar-1", tarball="/elsewhere", series="6.12")},
        {"config": "# why\nCONFIG_A=m\nCONFIG_A=y\n"},
        {"patches": (Patch(label="renamed", text=GOOD), Patch(label="more", text="+"))},
    ):
        assert (plan(**changes).key, plan(**changes).build) == (same.key, same.build)
    other = [
        plan(name="j"),
        plan(tree=source.Tree(id="tar-2", tarball="/t", series="6.1")),
        plan(config="CONFIG_A=m"),
        plan(distribution="CONFIG_D=y"),
        plan(patches=()),
        plan(patches=same.patches[::-1]),
        plan(patches=(Patch(label="less", text=GOOD, reverse=True), same.patches[1])),
        plan(tools=Tools(compiler="gcc 13", binutils=BINUTILS)),
    ]
    assert len({same.key, *(one.key for one in other)}) == len(other) + 1
    assert same.build == plan(patches=(), name="j").build, "variants share a build tree"
    builds = [
        plan(config="CONFIG_A=m"),
        plan(tools=Tools(compiler="gcc 13", binutils=BINUTILS)),
        plan(distribution="CONFIG_D=y"),
    ]
    assert len({same.build, *(one.build for one in builds)}) == 4


@pytest.mark.parametrize(
    "binutils", [("GNU assembler 2.41", "GNU ld 2.40"), ("GNU assembler 2.40", "GNU ld 2.41")]
)
def test_another_binutils_is_another_kernel(binutils: tuple[str, str]) -> None:
    other = plan(tools=Tools(compiler="gcc 12", binutils=binutils))
    assert other.key != plan().key
    assert other.build != plan().build, "objects of two linkers would be in one build tree"


@pytest.mark.parametrize(
    ("script", "inside", "outside"),
    [
        ("configure.sh", True, True),
        ("variant.sh", True, True),
        ("unpack.sh", True, True),
        ("restore.sh", True, True),
        ("inside.sh", True, False),
    ],
)
def test_the_roles_scripts_are_in_the_key(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    script: str,
    inside: bool,
    outside: bool,
) -> None:
    """A changed command makes another kernel; a comment does not; nor inside.sh without a container."""
    shutil.copytree(era.SCRIPTS, tmp_path / "files")
    monkeypatch.setattr(era, "SCRIPTS", tmp_path / "files")

    def keys() -> tuple[str, str]:
        tools = Tools(compiler="gcc 12", binutils=BINUTILS)
        return plan(tools=tools.model_copy(update={"container": "bullseye-1"})).key, plan(tools=tools).key

    before = keys()
    with (tmp_path / "files" / script).open("a") as handle:
        handle.write("# a comment\n")
    assert keys() == before
    with (tmp_path / "files" / script).open("a") as handle:
        handle.write("true\n")
    after = keys()
    assert (after[0] != before[0], after[1] != before[1]) == (inside, outside)


@pytest.mark.parametrize(
    ("local", "words", "error"),
    [
        (True, "Segmentation fault", HostError),
        (False, "Segmentation fault", CommandFailed),
        (True, "cc1: No space left on device", HostError),
        (False, "cc1: No space left on device", HostError),
    ],
)
def test_which_disk_is_full(
    local: bool,
    words: str,
    error: type[LabError],
    tmp_path: Path,
    lab_state: Path,
    monkeypatch: pytest.MonkeyPatch,
    deadline: Deadline,
) -> None:
    """A full disk on this machine explains nothing about a builder on another."""

    def play(*_: object, **__: object) -> None:
        raise CommandFailed("make failed", evidence=words)

    monkeypatch.setattr(toolchain, "play", play)
    monkeypatch.setattr(toolchain, "builder", lambda: toolchain.Builder("farm", local=local))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1 << 40, 0, 0))
    with pytest.raises(LabError) as raised:
        build._play(plan(), "build", tmp_path / "out", deadline)
    assert type(raised.value) is error
    if error is HostError:
        assert f"the disk is full ({lab_state if local else 'farm'})" in str(raised.value)


def kept(tmp_path: Path, text: str, config: str = "CONFIG_A=y\n") -> build.Built:
    """What build keeps of a result whose bzImage contains this text."""
    bzimage(tmp_path / "bzImage", "", version=text)
    (tmp_path / "config").write_text(config)
    with tarfile.open(tmp_path / "result.tar", "w") as archive:
        for name in ("bzImage", "config"):
            archive.add(tmp_path / name, name)
    return build._keep(plan(), tmp_path, 1.0)


def test_an_option_that_a_patch_takes_away_is_named(lab_state: Path, tmp_path: Path) -> None:
    """The tree without the patch had it, and was configured so."""
    with pytest.raises(InputError, match=r"kernel k: with its patches, options .*: CONFIG_A \(requested y"):
        kept(tmp_path, f"6.1.2-numalab-k ({plan().key}@numalab) #1", config="# CONFIG_A is not set\n")


def test_a_kernel_with_another_key_is_refused(lab_state: Path, tmp_path: Path) -> None:
    """A result of another or an older lab: same name, same release, other content."""
    key = plan().key
    assert kept(tmp_path, f"6.1.2-numalab-k ({key}@numalab) #1").release == "6.1.2-numalab-k"
    for text in (
        f"6.1.2-numalab-k ({'0' * 16}@numalab) #1",
        f"6.1.2-numalab-k (root@{key}) #1",
        "6.1.2-numalab-k",
    ):
        with pytest.raises(
            HostError, match=rf"kernel k: what was built is another kernel: .*not the key {key}"
        ):
            kept(tmp_path, text)


def bzimage(path: Path, release: str, version: str = "") -> Path:
    """A file with the header of a bzImage."""
    head = bytearray(0x400)
    head[0x202:0x206] = b"HdrS"
    struct.pack_into("<H", head, 0x20E, 0x100)
    head[0x300:] = (version or f"{release} (somebody@somewhere) #1").encode() + b"\0"
    path.write_bytes(head)
    return path


def test_release_of_a_bzimage(tmp_path: Path) -> None:
    assert build.release(bzimage(tmp_path / "k", "6.1.2-mine")) == "6.1.2-mine"
    (tmp_path / "k").write_bytes(b"ELF" * 1000)
    with pytest.raises(InputError, match="is not a bzImage"):
        build.release(tmp_path / "k")
    with pytest.raises(InputError, match="No such file"):
        build.release(tmp_path / "none")


def test_modules_of_a_prebuilt_kernel(kernels: Callable[..., Path], tmp_path: Path) -> None:
    place = kernels(
        **{
            "p.yml": (
                f"description: p\nsource: {{prebuilt: {{bzimage: {tmp_path}/k, modules: {tmp_path}/m}}}}\n"
            ),
            "../m/kernel/a.ko": "",
        }
    )
    (place / "m/build").symlink_to("/usr/src/linux")
    archive = boot.modules(
        recipe.load("p"), Boot(name="p", kernel=str(tmp_path / "k"), release="6.1.2-mine"), tmp_path
    )
    assert archive is not None
    with tarfile.open(archive) as opened:
        assert set(opened.getnames()) == {"6.1.2-mine", "6.1.2-mine/kernel", "6.1.2-mine/kernel/a.ko"}


def test_sources_that_are_not_there(
    kernels: Callable[..., Path], tmp_path: Path, program: Callable[[str, str], Path]
) -> None:
    program("apt-get", "echo 'E: Unable to locate package linux-source-9.9' >&2; exit 100")
    kernels(
        **{
            "deb.yml": 'description: d\nsource: {debian-source: "9.9"}\nconfig: base\n',
            "tar.yml": f"description: t\nsource: {{tarball: {{path: {tmp_path}/none}}}}\nconfig: base\n",
            "sum.yml": (
                f"description: t\nsource: {{tarball: {{path: {tmp_path}/sum, sha256: {'a0' * 32}}}}}\nconfig:"
                " base\n"
            ),
            "git.yml": f"description: g\nsource: {{git: {{url: {tmp_path}/none, rev: v1}}}}\nconfig: base\n",
            "../sum": "text",
        }
    )
    deadline = Deadline.after(30)
    for name, error, message in (
        ("deb", HostError, "there is no Debian package linux-source-9.9 to be had .*Unable to locate"),
        ("tar", InputError, r"tar\.yml: source\.tarball\.path: there is no "),
        ("sum", InputError, r"sum\.yml: source\.tarball\.sha256: .* has 982d9e3eb996"),
        ("git", InputError, r"git\.yml: source\.git\.url: there is no repository"),
    ):
        with pytest.raises(error, match=message):
            source.tree(recipe.load(name), deadline, fetch=True)
    assert source.tree(recipe.load("deb"), deadline, fetch=False) is None


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("sysctl", "kernel.numa_balancing"),
        ("sysctl", "=1"),
        ("sysctl", "a b=1"),
        ("sysctl", "kernel.x=a'b"),
        ("knob", "scan_speed=1"),
        ("sysctl", "a="),
    ],
)
def test_settings_that_are_none(field: str, text: str) -> None:
    with pytest.raises(InputError, match=f"^{field} "):
        pairs(field, [text])


def test_import(kernels: Callable[..., Path], tmp_path: Path) -> None:
    kernels(**{"../m/modules.dep": ""})
    kernel_commands.import_kernel("mine", bzimage(tmp_path / "k", "6.1.2-mine"), tmp_path / "m")
    kernel = recipe.load("mine")
    assert kernel.recipe.source.prebuilt == recipe.Prebuilt(bzimage=f"{tmp_path}/k", modules=f"{tmp_path}/m")
    assert boot.resolve(kernel, IMAGE).release == "6.1.2-mine"
    for name, file, message in (
        ("mine", "k", "is there: choose another name"),
        ("../x", "k", "is not a name"),
        ("new", "m/modules.dep", "is not a bzImage"),
    ):
        with pytest.raises(InputError, match=message):
            kernel_commands.import_kernel(name, tmp_path / file)
    with pytest.raises(InputError, match=r"--modules .*: there is no such"):
        kernel_commands.import_kernel("new", tmp_path / "k", tmp_path / "none")
    assert not (tmp_path / "kernels/new.yml").exists()
