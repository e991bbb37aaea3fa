# SPDX-License-Identifier: GPL-2.0-only
"""Building kernels: a plan (source, configuration, ordered patches, tools), its key, and the build.

The plan is made here; Ansible carries it out on a builder (playbooks/kernel.yml). The result is kept under
the plan's key and never built again. Not here: what a recipe may contain (recipe), where sources come from
(source), what compiles (toolchain).
"""

from __future__ import annotations

import io
import json
import shutil
import struct
import tarfile
import time
from pathlib import Path

from numalab.core import state
from numalab.core.checksum import of_texts
from numalab.core.errors import CommandFailed, HostError, InputError
from numalab.core.log import note, step
from numalab.core.process import Deadline
from numalab.host.image import Image
from numalab.kernel import compiled, kconfig, layout, source, toolchain
from numalab.kernel import era as kernel_era
from numalab.kernel import patch as kernel_patch
from numalab.kernel.era import Era
from numalab.kernel.patch import Patch
from numalab.kernel.recipe import (
    DISTRIBUTION,
    Kernel,
    fragments,
    is_commit,
    patch_items,
    patch_set,
)
from numalab.kernel.source import Tree
from numalab.kernel.toolchain import Builder, Tools
from numalab.model.values import Stored, Value, first_line, jsonable

FORMAT = 2
"""Incremented when this module makes another kernel from the same recipe. The key includes the role's scripts
and the tools by itself, since format 2."""
BUILD_SECONDS = 6 * 3600.0
"""A lean kernel takes 7 minutes on two cores, a distribution's configuration hours."""
SCRIPTS = ("unpack.sh", "configure.sh", "olddefconfig.sh", "restore.sh", "variant.sh")
"""The role's scripts that affect the kernel. container.sh is part of the container's id instead."""
BUILD_HOST = "numalab"
TIMESTAMP = "Thu Jan  1 00:00:00 UTC 1970"
"""The build time of every kernel: a real one would differ between builds that are otherwise equal."""

FULL = 4 << 20
"""A build that fails with fewer bytes free failed because the disk is full, whatever its last output was."""
RESULT = ("bzImage", "config", "System.map", "build.log", "modules.tar")


class BuildPlan(Value):
    """Everything that a kernel is built from, as values."""

    name: str
    tree: Tree
    config: str
    """The requested configuration: fragments, alone or over the distribution's configuration."""
    distribution: str
    """The distribution's configuration, or ''."""
    patches: tuple[Patch, ...]
    tools: Tools
    era: Era | None = None
    builder: Builder | None = None
    """Who builds it; None: the first. It is not in the key: equal tools make equal kernels."""

    @property
    def build(self) -> str:
        """The build tree's name: one for each source, configuration and tool chain."""
        return f"{self.tree.id}-{of_texts(*self._options(), *self._tools())[:12]}"

    @property
    def key(self) -> str:
        """The result's name: equal keys mean equal kernels."""
        changes = [f"{'-' if patch.reverse else '+'}{patch.text}" for patch in self.patches]
        return of_texts(str(FORMAT), self.name, self.tree.id, *self._options(), *self._tools(), *changes)[:16]

    @property
    def make(self) -> tuple[str, ...]:
        """make's arguments for every target of this kernel."""
        return kernel_era.make_words(self.era) if self.era else ()

    def _tools(self) -> list[str]:
        """The tools that compile and link, and the scripts that call them."""
        scripts = [
            kernel_era.code(name) for name in (*SCRIPTS, *(["inside.sh"] if self.tools.container else []))
        ]
        return [
            self.tools.compiler,
            *self.tools.binutils,
            *filter(None, [self.tools.container]),
            *self.make,
            *scripts,
        ]

    def _options(self) -> list[str]:
        """The configuration's options; order and comments do not matter."""
        return [
            json.dumps(kconfig.options(text), sort_keys=True) for text in (self.config, self.distribution)
        ]


class Built(Stored):
    """A finished kernel. Its folder has bzImage, config, System.map, build.log and perhaps modules.tar."""

    name: str
    key: str
    directory: str
    release: str
    """Its uname -r."""
    seconds: float
    patches: tuple[str, ...]
    source: str
    compiler: str
    bzimage_bytes: int
    modules: bool

    def file(self, name: str) -> Path:
        """The path of one of its files."""
        return Path(self.directory) / name


def make_plan(
    kernel: Kernel, image: Image | None, deadline: Deadline, *, fetch: bool, on: Builder | None = None
) -> BuildPlan | None:
    """Everything that building a kernel takes, on a builder (None: the first). None (only without
    `fetch`) when its source is not here."""
    config = fragments(kernel)
    tree = source.tree(kernel, deadline, fetch=fetch)
    tools = toolchain.tools(kernel.era, deadline, ask=fetch, on=on)
    if tree is None or tools is None:
        return None
    distribution = ""
    if DISTRIBUTION in kernel.recipe.config:
        if image is None:
            raise HostError(
                f"kernel {kernel.name} takes its configuration from the guest image: lab.py image build"
            )
        try:
            distribution = image.file("config").read_text()
        except OSError as error:
            raise HostError(
                f"kernel {kernel.name} takes its configuration from image {image.name}: {error}"
            ) from error
    patches = _patches(kernel, tree, deadline, fetch=fetch)
    if patches is None:
        return None
    if kernel.era and (header := kernel_era.shim(kernel.era, tools.compiler)):
        patches.append(header)
    if kernel.layout:
        patches.append(layout.patch(kernel.stem, kernel.layout))
    return BuildPlan(
        name=kernel.stem,
        tree=tree,
        config=config,
        distribution=distribution,
        patches=tuple(patches),
        era=kernel.era,
        tools=tools,
        builder=on,
    )


def _patches(kernel: Kernel, tree: Tree, deadline: Deadline, *, fetch: bool) -> list[Patch] | None:
    """A recipe's patches, in the order of recipe.patch_items. None (only without `fetch`) when a commit is
    not here yet."""
    patches = []
    for reverse, item in patch_items(kernel.recipe):
        if tree.git and is_commit(item):
            patch = source.commit_patch(tree, item, kernel, deadline, reverse=reverse, fetch=fetch)
            if patch is None:
                return None
            patches.append(patch)
        else:
            patches += patch_set(item, tree.series, kernel, reverse=reverse)
    return patches


def existing(plan: BuildPlan) -> Built | None:
    """The kernel of this plan, if it was built and is complete."""
    return at(state.folder("kernels") / f"{plan.name}-{plan.key}")


def at(place: Path) -> Built | None:
    """The finished kernel in a folder of the state directory's kernels, if it is there. HostError when it is
    broken."""
    if not place.is_dir():
        return None
    name = place.name.rpartition("-")[0]
    try:
        built = Built.from_json((place / "manifest.json").read_text()).model_copy(
            update={"directory": str(place)}
        )
        size = built.file("bzImage").stat().st_size
    except (OSError, ValueError) as error:
        raise HostError(
            f"kernel {name}: {place} is broken ({first_line(error)}): remove it, then lab.py kernel build"
            f" {name}"
        ) from error
    if size != built.bzimage_bytes:
        raise HostError(
            f"kernel {name}: {place}/bzImage has {size} bytes, not {built.bzimage_bytes}: remove {place}"
            " and build it again"
        )
    return built


def build(kernel: Kernel, image: Image | None, deadline: Deadline, *, on: Builder | None = None) -> Built:
    """The kernel, built (on a builder; None: the first) if it is not there, never in part.

    Raises InputError, CommandFailed, and HostError: also when it would not be the first builder's kernel,
    which `existing` looks for.
    """
    if not kernel.recipe.built:
        raise InputError(f"kernel {kernel.name} is not built here: its source is a finished kernel")
    known = make_plan(kernel, image, deadline, fetch=False)
    if known and (ready := existing(known)):
        return ready
    plan = make_plan(kernel, image, deadline, fetch=True)
    assert plan is not None  # it was fetched
    machine = on or toolchain.builder()
    suffix = toolchain.suffix(machine)
    if suffix:
        first, plan = plan, make_plan(kernel, image, deadline, fetch=True, on=machine)
        assert plan is not None  # as above
        if plan.key != first.key:
            raise HostError(
                f"builder {machine.host}: has {_versions(plan.tools)}, and {toolchain.builder().host}"
                f" {_versions(first.tools)}: it would make another kernel {kernel.name}"
            )
    # The second: another builder may make the same kernel, for another lab.py.
    with (
        state.lock(f"kernel-{plan.tree.id}{suffix}", deadline),
        state.lock(f"kernel-{plan.name}-{plan.key}", deadline),
        state.using(*_container(plan, machine)),
    ):
        if ready := existing(plan):
            return ready
        config = configure(plan, deadline)
        with state.making(state.folder("kernels") / f"{plan.name}-{plan.key}") as scratch:
            begin = time.monotonic()
            with step(f"kernel {kernel.build_name}: built on {machine.host}"):
                _play(plan, "build", scratch / "result.tar", deadline, config=config)
            return _keep(plan, scratch, time.monotonic() - begin)


def _container(plan: BuildPlan, machine: Builder) -> list[Path]:
    """The folder of the plan's container, where this machine has it: kernel prune leaves it meanwhile."""
    if not plan.tools.container or not machine.local:
        return []
    place = state.folder("containers") / plan.tools.container
    return [place] if place.exists() else []


def _versions(tools: Tools) -> str:
    return ", ".join((tools.compiler, *tools.binutils))


def configure(plan: BuildPlan, deadline: Deadline) -> str:
    """The .config of a plan. InputError names each requested option that is not in it."""
    place = state.folder("configs") / plan.build
    if (
        place.exists()
        and kernel_era.forgiven(plan.era, kconfig.lost(plan.config, place.read_text(errors="replace")))[1]
    ):
        note(f"{place} is damaged: the kernel is configured again")
        place.unlink()
    if not place.exists():
        with step(f"kernel {plan.name}: configured"):
            fresh = state.scratch(place)
            _play(plan, "configure", fresh, deadline)
        text = fresh.read_text()
        lacking, gone = kernel_era.forgiven(plan.era, kconfig.lost(plan.config, text))
        if lacking:
            note(
                f"kernel {plan.name}: its era lacks"
                f" {', '.join(line.split()[0].removeprefix('CONFIG_') for line in lacking)}"
            )
        if gone:
            fresh.unlink()
            raise InputError(
                f"kernel {plan.name}: options that were asked for did not survive olddefconfig:"
                f" {', '.join(gone)}"
            )
        state.sync(fresh)
        fresh.replace(place)
        state.sync(place.parent)
    return place.read_text()


def _keep(plan: BuildPlan, scratch: Path, seconds: float) -> Built:
    """The builder's result -> a finished kernel with its manifest."""
    with tarfile.open(scratch / "result.tar") as archive:
        # Members are chosen here. Debian 12's Python 3.11.2 has no filter="data"; later ones want a word.
        archive.extraction_filter = lambda member, _: member
        archive.extractall(
            scratch, members=[member for member in archive if member.isfile() and member.name in RESULT]
        )
    (scratch / "result.tar").unlink()
    text = version(scratch / "bzImage")
    options = (scratch / "config").read_text(errors="replace")
    if gone := kernel_era.forgiven(plan.era, kconfig.lost(plan.config, options))[1]:
        raise InputError(
            f"kernel {plan.name}: with its patches, options that were asked for do not survive olddefconfig:"
            f" {', '.join(gone)}"
        )
    built_release = release(scratch / "bzImage")
    if not built_release.endswith(_local_version(plan.name)):
        raise HostError(f"kernel {plan.name}: what was built calls itself {built_release}")
    if not text.startswith(f"{built_release} ({plan.key}@{BUILD_HOST}) "):
        raise HostError(
            f"kernel {plan.name}: what was built is another kernel: it carries {text!r}, and not the key"
            f" {plan.key}: build it again"
        )
    built = Built(
        name=plan.name,
        key=plan.key,
        directory=str(state.folder("kernels") / f"{plan.name}-{plan.key}"),
        release=built_release,
        seconds=round(seconds, 1),
        patches=tuple(f"{'-' if patch.reverse else '+'} {patch.label}" for patch in plan.patches),
        source=plan.tree.id,
        compiler=plan.tools.compiler,
        bzimage_bytes=(scratch / "bzImage").stat().st_size,
        modules=(scratch / "modules.tar").exists(),
    )
    (scratch / "manifest.json").write_text(json.dumps(jsonable(built), indent=1))
    return built


def _local_version(name: str) -> str:
    return f"-numalab-{name}"


def _play(plan: BuildPlan, tag: str, out: Path, deadline: Deadline, *, config: str = "") -> None:
    """Run playbooks/kernel.yml for a plan, to build the `config` that it has made before. Raises InputError
    for a patch that does not apply."""
    builder = plan.builder or toolchain.builder()
    log = state.folder("logs") / f"kernel-{plan.name}-{tag}{toolchain.suffix(builder)}.log"
    job = out.with_name(f"{out.name}.job")
    try:
        _job(plan, job, kconfig.has_modules(config))
        variables: dict[str, object] = {
            "kernel_source": plan.tree.id,
            "kernel_tarball": plan.tree.tarball,
            "kernel_build": plan.build,
            "kernel_job": str(job),
            "kernel_tools": [plan.tools.compiler, *plan.tools.binutils],
            "kernel_allconfig": not plan.distribution,
            "kernel_out": str(out),
            "kernel_ask_tools": toolchain.ask_tools(plan.era),
            **toolchain.container_variables(plan.era),
        }
        watch = None
        if tag == "build" and builder.local:
            make_log = state.folder("builds") / plan.build / "build.log"
            about = compiled.expected(config, state.folder("kernels"))
            watch = compiled.Compiled(make_log, time.time(), about).tell
        toolchain.play(tag, variables, log, deadline, on=builder, watch=watch)
    except CommandFailed as error:
        for index, patch in enumerate(plan.patches):
            if f"refused: {index:04}.patch" in error.evidence:
                raise InputError(
                    f"kernel {plan.name}: {kernel_patch.refusal(error.evidence, patch) or error}",
                    evidence=error.evidence,
                ) from error
        full_here = builder.local and shutil.disk_usage(state.directory()).free < FULL
        if full_here or "No space left on device" in error.evidence:
            place = state.directory() if builder.local else builder.host
            raise HostError(
                f"kernel {plan.name}: the disk is full ({place}): make room (lab.py kernel prune, lab.py gc),"
                " then build it again",
                evidence=error.evidence,
            ) from error
        raise CommandFailed(f"kernel {plan.name}: {error}", evidence=error.evidence) from error
    finally:
        job.unlink(missing_ok=True)


def _job(plan: BuildPlan, path: Path, modules: bool) -> None:
    """Write the tar that the builder works from."""
    arguments = [
        f"LOCALVERSION={_local_version(plan.name)}",
        "KBUILD_BUILD_VERSION=1",
        f"KBUILD_BUILD_TIMESTAMP={TIMESTAMP}",
        f"KBUILD_BUILD_USER={plan.key}",
        f"KBUILD_BUILD_HOST={BUILD_HOST}",
        *plan.make,
        "bzImage",
        *(["modules"] if modules else []),
    ]
    touched = sorted({file for patch in plan.patches for file in kernel_patch.touched(patch.text)})
    files = {
        "all.config": plan.distribution + "\n" + plan.config,
        "arguments": "".join(f"{word}\n" for word in arguments),
        "make": "".join(f"{word}\n" for word in plan.make),
        "touched": "".join(f"{file}\n" for file in touched),
        "order": "".join(
            f"{'-' if patch.reverse else '+'} {index:04}.patch\n" for index, patch in enumerate(plan.patches)
        ),
        **{f"{index:04}.patch": patch.text for index, patch in enumerate(plan.patches)},
        **{script.name: script.read_text() for script in kernel_era.SCRIPTS.glob("*.sh")},
    }
    with tarfile.open(path, "w") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))


def release(bzimage: Path) -> str:
    """The uname -r of a bzImage, from its header. InputError when the file is no bzImage."""
    return version(bzimage).split(" ")[0]


def version(bzimage: Path) -> str:
    """A bzImage's version string: RELEASE (USER@HOST) #VERSION. InputError when the file is no bzImage.

    Documentation/arch/x86/boot.rst: HdrS is at 0x202; the word at 0x20e plus 0x200 is the string's offset.
    """
    try:
        with bzimage.open("rb") as handle:
            head = handle.read(0x10000)
        if head[0x202:0x206] == b"HdrS" and (offset := struct.unpack_from("<H", head, 0x20E)[0]):
            return head[offset + 0x200 :].split(b"\0")[0].decode()
    except (OSError, struct.error, UnicodeDecodeError) as error:
        raise InputError(f"{bzimage}: {error}") from error
    raise InputError(f"{bzimage}: is not a bzImage")
