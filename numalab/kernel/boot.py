# SPDX-License-Identifier: GPL-2.0-only
"""A kernel by name -> the files that a guest boots, and what else its era needs: command line, environment,
machine.

Not here: building it (build).
"""

from __future__ import annotations

import base64
import hashlib
import os
import tarfile
from pathlib import Path

from numalab.core.errors import HostError, InputError
from numalab.core.process import Deadline
from numalab.host.image import Image
from numalab.kernel.build import existing, make_plan, release
from numalab.kernel.recipe import era_of, recipe, shown
from numalab.model.guest import Boot
from numalab.model.topology import Topology

SEED_BYTES = 64
"""Bytes of entropy on the command line; systemd credits all of them."""


def resolve(name: str, image: Image) -> Boot:
    """The files to boot, with command line and environment of its era. HostError when it is not built."""
    boot, age = _files(name, image), era_of(recipe(name))
    if age is None:
        return boot
    words = age.append.split()
    if age.random_seed:
        words.append(f"systemd.random_seed={base64.b64encode(os.urandom(SEED_BYTES)).decode()}")
    return boot.model_copy(update={"cmdline": " ".join(words), "environment": age.environment})


def fitted(name: str, shape: Topology) -> Topology:
    """The topology on a machine type that the kernel's era supports, with fake nodes as in that era."""
    age = era_of(recipe(name))
    return (
        shape.model_copy(update={"machine": age.machine or shape.machine, "deals_cpus": age.deals_cpus})
        if age
        else shape
    )


def _files(name: str, image: Image) -> Boot:
    """The files that boot this kernel."""
    what = recipe(name)
    if what.source.debian_image:
        path = image.file("vmlinuz")
        return Boot(name=name, kernel=str(path), initrd=str(image.file("initrd.img")), release=_told(path))
    if what.source.prebuilt:
        path = Path(what.source.prebuilt.bzimage).expanduser()
        if not path.is_file():
            raise InputError(f"{shown(name)}: source.prebuilt.bzimage: there is no {path}")
        return Boot(name=name, kernel=str(path.absolute()), release=_told(path))
    asked = make_plan(name, image, Deadline.after(60), fetch=False)
    built = existing(asked) if asked else None
    if built is None:
        raise HostError(
            f"kernel {name} is not built, or what it is made of changed: lab.py kernel build {name}"
        )
    return Boot(name=name, kernel=str(built.file("bzImage")), release=built.release)


def modules(boot: Boot, scratch: Path) -> Path | None:
    """A tar with the folder RELEASE of a kernel's modules, or None. A new one goes to `scratch`."""
    given = recipe(boot.name).source.prebuilt
    if given is None:
        beside = Path(boot.kernel or "").with_name("modules.tar")
        return beside if boot.kernel and beside.is_file() else None
    if not given.modules:
        return None
    path = Path(given.modules).expanduser()
    if not path.exists():
        raise InputError(f"{shown(boot.name)}: source.prebuilt.modules: there is no {path}")
    if path.is_dir():
        with tarfile.open(scratch / "modules.tar", "w") as archive:
            # build and source are links to trees that the guest does not have
            archive.add(
                path,
                boot.release,
                filter=lambda member: None if Path(member.name).name in ("build", "source") else member,
            )
        return scratch / "modules.tar"
    return path


def _told(path: Path) -> str:
    """The release of a kernel built elsewhere; '' for a format without one, such as a PVH vmlinux."""
    try:
        return release(path)
    except InputError:
        return ""


def digest(boot: Boot) -> str:
    """The hash of the kernel and its initrd, for records."""
    found = hashlib.sha256()
    for path in filter(None, (boot.kernel, boot.initrd)):
        found.update(Path(path).read_bytes())
    return found.hexdigest()[:16]
