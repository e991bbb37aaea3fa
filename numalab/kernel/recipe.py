# SPDX-License-Identifier: GPL-2.0-only
"""Kernel recipes: kernels/NAME.yml, with the fragments and patch sets that it names, -> values and texts.

A new kernel, fragment or patch set is new files, not new code. Not here: fetching a source (source), building
(build), booting (boot).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from numalab.core import paths
from numalab.core.errors import InputError
from numalab.kernel import patch
from numalab.kernel.era import Era, era
from numalab.kernel.patch import Patch
from numalab.model import catalog
from numalab.model.values import Name, Value, check_name

DISTRIBUTION = "distribution"
"""Stands in place of fragments for the configuration of the guest image's own kernel."""
COMMIT = re.compile(r"[0-9a-f]{7,40}")

Series = Annotated[str, Field(pattern=r"^\d+\.\d+$")]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Names = Annotated[
    tuple[Name, ...], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
]


class Prebuilt(Value):
    """A bzImage that was built elsewhere; `modules` is a folder or tar of /lib/modules/RELEASE."""

    bzimage: str
    modules: str | None = None


class Tarball(Value):
    """A kernel source as a tar file: a path, or a URL with the checksum that the download must have."""

    path: str | None = None
    url: Annotated[str, Field(pattern="^(https?|file)://")] | None = None
    sha256: Sha256 | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if bool(self.path) == bool(self.url):
            raise ValueError("give either path or url")
        if self.url and not self.sha256:
            raise ValueError("sha256: a URL needs the checksum of what must come from there")
        return self


class Git(Value):
    """A commit of a git repository; without `url`, of the one that LAB_LINUX_GIT names."""

    url: str | None = None
    rev: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/^~-]*$")]
    commit: Annotated[str, Field(pattern="^[0-9a-f]{7,40}$")] | None = None
    """The commit that `rev` must be; otherwise a tag was moved."""


class Source(Value):
    """Where a kernel comes from: exactly one of these; `suite` goes with debian-source."""

    debian_image: bool | None = Field(default=None, alias="debian-image")
    debian_source: Series | None = Field(default=None, alias="debian-source")
    suite: Annotated[str, Field(pattern="^[a-z]+(-backports)?$")] | None = None
    """The Debian release that has the source package, such as testing, where the host's own has not."""
    git: Git | None = None
    tarball: Tarball | None = None
    prebuilt: Prebuilt | None = None

    @model_validator(mode="before")
    @classmethod
    def _one(cls, data: Any) -> Any:
        names = [name for name, value in data.items() if value] if isinstance(data, dict) else []
        if "suite" in names:
            names.remove("suite")
            if not {"debian-source", "debian_source"} & set(names):
                raise ValueError("suite: is where a debian-source comes from, and there is none")
        if isinstance(data, dict) and len(names) != 1:
            raise ValueError(
                f"exactly one source must be given, not {len(names)}: debian-image, debian-source, git,"
                " tarball or prebuilt"
            )
        return data


class KernelRecipe(Value):
    """kernels/NAME.yml. `series` selects a patch set's series; a debian-source has its own."""

    description: str
    source: Source
    config: Names = ()
    apply: Names = ()
    revert: Names = ()
    series: Series | None = None
    era: Name | None = None
    """kernels/eras/NAME.yml: what it takes to build and boot this kernel today."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if not self.built and (self.apply or self.revert):
            raise ValueError("apply: a kernel that is not built here cannot be patched")
        if self.built and not self.config:
            raise ValueError(f"config: names of kernels/config/*.config, or {DISTRIBUTION}")
        if DISTRIBUTION in self.config and len(self.config) > 1 and self.config[0] != DISTRIBUTION:
            raise ValueError(f"config: {DISTRIBUTION} comes first; fragments are laid over it")
        if doubles := [
            name for name in (*self.apply, *self.revert) if (*self.apply, *self.revert).count(name) > 1
        ]:
            raise ValueError(f"apply: {doubles[0]} is there twice")
        return self

    @property
    def built(self) -> bool:
        """Whether it is built from source."""
        return not (self.source.debian_image or self.source.prebuilt)

    @property
    def of_series(self) -> str | None:
        """The series of a patch set that fits, as far as the recipe says: 6.1."""
        return self.series or self.source.debian_source


class Kernel(Value):
    """A kernel: its recipe and its era, read once."""

    name: str
    """As a person gives it: NAME of kernels/NAME.yml, or a path."""
    recipe: KernelRecipe
    era: Era | None = None
    """None for today's kernels."""
    layout: Annotated[int, Field(ge=0)] = 0
    """Which of several builds that differ in layout only (numalab.kernel.layout); 0: the one without pads."""

    @property
    def build_name(self) -> str:
        """Its name, and the number of its layout if it is one of several builds."""
        return f"{self.name} (layout {self.layout})" if self.layout else self.name

    @property
    def file(self) -> str:
        """The recipe's file, as errors name it."""
        return self.name if "/" in self.name else f"kernels/{self.name}.yml"

    @property
    def stem(self) -> str:
        """Its name in file names, releases and commands."""
        return stem(self.name)

    @property
    def needs_image(self) -> bool:
        """Whether it is built with the configuration that the guest image's own kernel has."""
        return self.recipe.built and DISTRIBUTION in self.recipe.config


def load(name: str) -> Kernel:
    """Read and check kernels/NAME.yml, and the era that it names. Raises InputError."""
    recipe = catalog.load(KernelRecipe, catalog.find("kernels", name))
    return Kernel(name=name, recipe=recipe, era=era(recipe.era) if recipe.era else None)


def in_series(name: str, series: str) -> str | None:
    """A kernel's counterpart in another series, by name: 6.1-stagger-before -> 6.12-stagger-before; None
    without one.

    Raises InputError when the series has no kernel at all.
    """
    known = catalog.names("kernels")
    if series not in known:
        raise InputError(
            f"series {series}: there is no kernels/{series}.yml: {catalog.there_are(known, series)}",
            field="series",
        )
    other = f"{series}{name.removeprefix(load(name).recipe.of_series or '')}"
    return other if other in known else None


def stem(name: str) -> str:
    """A kernel's name in file names, releases and commands; for a path, its file's stem."""
    try:
        return check_name(Path(name).name.removesuffix(".yml"))
    except ValueError as error:
        raise InputError(str(error)) from error


def fragments(kernel: Kernel) -> str:
    """The texts of a recipe's fragments, concatenated: later lines win.

    A distribution's configuration gets distribution.config on top, which makes it fit for a lab guest.
    """
    texts = []
    for fragment in kernel.recipe.config:
        path = paths.find(f"kernels/config/{fragment}.config")
        if not path.is_file():
            known = ", ".join(catalog.names("kernels/config", ".config"))
            raise InputError(
                f"{kernel.file}: config: there is no kernels/config/{fragment}.config: there are {known}"
            )
        texts.append(_text(path))
    return "\n".join(texts)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{paths.label(path)}: is not UTF-8 at byte {error.start}: iconv(1) converts it"
        ) from error


def patch_items(recipe: KernelRecipe) -> list[tuple[bool, str]]:
    """(whether to revert, patch set or commit): what the recipe applies, then what it reverts, in order."""
    return [(False, item) for item in recipe.apply] + [(True, item) for item in recipe.revert]


def is_commit(item: str) -> bool:
    """Whether an item of a git source's recipe is a commit of it. A patch set of that name goes first."""
    return bool(COMMIT.fullmatch(item)) and not paths.find(f"kernels/patches/{item}").exists()


def patch_files(set_name: str, series: str | None, kernel: Kernel) -> list[Path]:
    """The patches of a set for one series, in order. InputError names the kernel's recipe."""
    place = paths.find(f"kernels/patches/{set_name}")
    there = sorted(path.name for path in place.iterdir() if path.is_dir()) if place.is_dir() else []
    if not there:
        sets = sorted({path.name for root in paths.roots() for path in (root / "kernels/patches").glob("*/")})
        raise InputError(
            f"{kernel.file}: there is no patch set kernels/patches/{set_name}: there are"
            f" {', '.join(sets) or 'none'}"
        )
    if series is None:
        raise InputError(f"{kernel.file}: series: is needed to choose among {set_name}'s: {', '.join(there)}")
    files = sorted((place / series).glob("*.patch"))
    if not files:
        raise InputError(
            f"{kernel.file}: patch set {set_name} has no patches for {series}, only for {', '.join(there)}"
        )
    return files


def patch_set(set_name: str, series: str | None, kernel: Kernel, *, reverse: bool = False) -> list[Patch]:
    """A set's patches for the builder, sorted by name; in reverse order with `reverse`."""
    patches = []
    for path in patch_files(set_name, series, kernel):
        text, label = _text(path), paths.label(path)
        if patch.header(text, label).set != set_name:
            raise InputError(f"{label}: header: Set: is not the folder's name, {set_name}")
        patches.append(Patch(label=label, text=text, reverse=reverse))
    return patches[::-1] if reverse else patches
