"""Kernels by name: kernels/NAME.yml -> what a guest boots.

Only kernels that need no build are resolved so far: the image's own and prebuilt ones.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from numalab.catalog import find, load
from numalab.errors import HostError, InputError
from numalab.image import Image
from numalab.model import Boot, Value


class Prebuilt(Value):
    """A bzImage that somebody built; modules is a folder or tar of /lib/modules/RELEASE."""

    bzimage: str
    modules: str | None = None


class Source(Value):
    """Where a kernel comes from: exactly one of these."""

    debian_image: bool | None = Field(default=None, alias="debian-image")
    debian_source: str | None = Field(default=None, alias="debian-source")
    git: dict[str, str] | None = None
    tarball: dict[str, str] | None = None
    prebuilt: Prebuilt | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        given = [name for name, value in self if value]
        if len(given) != 1:
            raise ValueError(f"exactly one source must be given, not {len(given)}: debian-image, debian-source, git, tarball or prebuilt")
        return self


class KernelRecipe(Value):
    """kernels/NAME.yml."""

    description: str
    source: Source
    config: str | tuple[str, ...] = ()
    apply: tuple[str, ...] = ()
    revert: tuple[str, ...] = ()


def recipe(name: str) -> KernelRecipe:
    """kernels/NAME.yml, checked."""
    return load(KernelRecipe, find("kernels", name))


def resolve(name: str, image: Image) -> Boot:
    """The files to boot this kernel from, without a command line."""
    what = recipe(name)
    if what.source.debian_image:
        return Boot(name=name, kernel=str(image.file("vmlinuz")), initrd=str(image.file("initrd.img")))
    if what.source.prebuilt:
        path = Path(what.source.prebuilt.bzimage).expanduser()
        if not path.is_file():
            raise InputError(f"kernels/{name}.yml: source.prebuilt.bzimage: there is no {path}")
        return Boot(name=name, kernel=str(path.absolute()))
    raise HostError(f"kernel {name} is built from source, which this lab cannot do yet: use one with a prebuilt or debian-image source")


def digest(boot: Boot) -> str:
    """The hash of the kernel and its initrd, for records."""
    found = hashlib.sha256()
    for path in filter(None, (boot.kernel, boot.initrd)):
        found.update(Path(path).read_bytes())
    return found.hexdigest()[:16]
