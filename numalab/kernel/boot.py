# SPDX-License-Identifier: GPL-2.0-only
"""A kernel -> the files that a guest boots, and what else its era needs: command line, environment, machine.

Not here: building it (build).
"""

from __future__ import annotations

import base64
import hashlib
import os
import tarfile
from pathlib import Path

from numalab.core import checksum, state
from numalab.core.errors import HostError, InputError
from numalab.core.process import Deadline
from numalab.host.image import Image
from numalab.kernel.build import at, existing, make_plan, release
from numalab.kernel.recipe import Kernel
from numalab.model.guest import Boot
from numalab.model.topology import Topology

SEED_BYTES = 64
"""Bytes of entropy on the command line; systemd credits all of them."""

NOT_IN_GUESTS = frozenset(("build", "source"))
"""Links in a folder of modules, to trees that a guest does not have."""


def resolve(kernel: Kernel, image: Image, build: str = "") -> Boot:
    """The files to boot, with command line and environment of its era: of a build (NAME-KEY, a folder of the
    state directory's kernels), or the one that the recipe leads to. HostError when it is not there."""
    boot, era = _files(kernel, image, build), kernel.era
    if era is None:
        return boot
    words = era.append.split()
    if era.random_seed:
        words.append(f"systemd.random_seed={base64.b64encode(os.urandom(SEED_BYTES)).decode()}")
    return boot.model_copy(update={"cmdline": " ".join(words), "environment": era.environment})


def fitted(kernel: Kernel, shape: Topology) -> Topology:
    """The topology on a machine type that the kernel's era supports, with fake nodes as in that era."""
    era = kernel.era
    return (
        shape.model_copy(update={"machine": era.machine or shape.machine, "deals_cpus": era.deals_cpus})
        if era
        else shape
    )


def _files(kernel: Kernel, image: Image, build: str) -> Boot:
    """The files that boot this kernel."""
    name, source = kernel.name, kernel.recipe.source
    if source.debian_image:
        path, initrd = image.file("vmlinuz"), image.file("initrd.img")
        return Boot(name=name, kernel=str(path), initrd=str(initrd), release=_release_or_empty(path))
    if source.prebuilt:
        path = Path(source.prebuilt.bzimage).expanduser()
        if not path.is_file():
            raise InputError(f"{kernel.file}: source.prebuilt.bzimage: there is no {path}")
        return Boot(name=name, kernel=str(path.absolute()), release=_release_or_empty(path))
    if build:
        built = at(state.folder("kernels") / build)
        if built is None:
            raise HostError(f"kernel {name}: {state.folder('kernels') / build} is gone")
        return Boot(name=name, kernel=str(built.file("bzImage")), release=built.release)
    plan = make_plan(kernel, image, Deadline.after(60), fetch=False)
    built = existing(plan) if plan else None
    if built is None:
        of_image = f" --image {image.name}" if kernel.needs_image else ""
        raise HostError(
            f"kernel {kernel.build_name} is not built, or what it is made of changed: lab.py kernel build"
            f" {name}{of_image}"
        )
    return Boot(name=name, kernel=str(built.file("bzImage")), release=built.release)


def modules(kernel: Kernel, boot: Boot, scratch: Path) -> Path | None:
    """A tar with the folder RELEASE of a kernel's modules, or None. A new one goes to `scratch`."""
    place = _modules_place(kernel, boot)
    if place is None or not place.is_dir():
        return place
    with tarfile.open(scratch / "modules.tar", "w") as archive:
        archive.add(
            place,
            boot.release,
            filter=lambda member: None if Path(member.name).name in NOT_IN_GUESTS else member,
        )
    return scratch / "modules.tar"


def modules_checksum(kernel: Kernel, boot: Boot) -> str:
    """The checksum of what `modules` gives a guest, without the files' dates; '' without modules."""
    place = _modules_place(kernel, boot)
    if place is None:
        return ""
    if not place.is_dir():
        return checksum.sha256(place)
    sha256 = hashlib.sha256()
    for path in sorted(place.rglob("*")):
        name = path.relative_to(place)
        if path.is_file() and NOT_IN_GUESTS.isdisjoint(name.parts):
            with path.open("rb") as handle:
                sha256.update(f"{name} {hashlib.file_digest(handle, 'sha256').hexdigest()}\n".encode())
    return sha256.hexdigest()


def _modules_place(kernel: Kernel, boot: Boot) -> Path | None:
    """A tar or a folder with a kernel's modules. InputError when the recipe's is not there."""
    prebuilt = kernel.recipe.source.prebuilt
    if prebuilt is None:
        beside = Path(boot.kernel or "").with_name("modules.tar")
        return beside if boot.kernel and beside.is_file() else None
    if not prebuilt.modules:
        return None
    path = Path(prebuilt.modules).expanduser()
    if not path.exists():
        raise InputError(f"{kernel.file}: source.prebuilt.modules: there is no {path}")
    return path


def _release_or_empty(path: Path) -> str:
    """The release of a kernel built elsewhere; '' for a format without one, such as a PVH vmlinux."""
    try:
        return release(path)
    except InputError:
        return ""


def digest(kernel: Kernel, boot: Boot) -> str:
    """The hash of the kernel, its initrd, and the modules of a kernel built elsewhere, for records. Modules
    of a kernel that the lab built are as its build is, and those of an image's own as the image is."""
    sha256 = hashlib.sha256()
    for file in filter(None, (boot.kernel, boot.initrd)):
        sha256.update(Path(file).read_bytes())
    if kernel.recipe.source.prebuilt:
        sha256.update(modules_checksum(kernel, boot).encode())
    return sha256.hexdigest()[:16]
