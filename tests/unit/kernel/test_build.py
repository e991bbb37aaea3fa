# SPDX-License-Identifier: GPL-2.0-only
"""Kernels by name: the files that boot, and the error when they are missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from numalab.core.errors import HostError, InputError
from numalab.host.image import Image
from numalab.kernel import boot as kernel_boot
from numalab.kernel import recipe
from numalab.model import catalog
from numalab.model.guest import Boot

IMAGE = Image(name="debian12", id="0" * 16, directory="/images/x", root="PARTUUID=1", disk_bytes=1, inputs={})


def write(tmp_path: Path, source: str) -> str:
    path = tmp_path / "mine.yml"
    path.write_text(f"description: mine\nsource: {source}\n")
    return str(path)


def test_the_images_own() -> None:
    assert kernel_boot.resolve(recipe.load("debian"), IMAGE) == Boot(
        name="debian", kernel="/images/x/vmlinuz", initrd="/images/x/initrd.img"
    )


def test_prebuilt(tmp_path: Path) -> None:
    name = write(tmp_path, f"{{prebuilt: {{bzimage: {tmp_path}/bzImage}}}}")
    with pytest.raises(InputError, match=f"source.prebuilt.bzimage: there is no {tmp_path}/bzImage"):
        kernel_boot.resolve(recipe.load(name), IMAGE)
    (tmp_path / "bzImage").write_bytes(b"kernel")
    kernel = recipe.load(name)
    boot = kernel_boot.resolve(kernel, IMAGE)
    assert (boot.kernel, boot.initrd) == (f"{tmp_path}/bzImage", None)
    first = kernel_boot.digest(kernel, boot)
    (tmp_path / "bzImage").write_bytes(b"another")
    assert kernel_boot.digest(kernel, boot) != first


@pytest.mark.parametrize("archived", [False, True], ids=["folder", "tar"])
def test_other_modules_are_another_kernel(tmp_path: Path, archived: bool) -> None:
    modules, other = tmp_path / "modules", tmp_path / "elsewhere"
    (modules / "kernel").mkdir(parents=True)
    other.mkdir()
    (modules / "build").symlink_to(other)
    given = tmp_path / "modules.tar" if archived else modules
    (tmp_path / "bzImage").write_bytes(b"kernel")
    name = write(tmp_path, f"{{prebuilt: {{bzimage: {tmp_path}/bzImage, modules: {given}}}}}")

    def digest(code: str) -> str:
        (modules / "kernel/xfs.ko").write_text(code)
        if archived:
            given.write_text(code)
        kernel = recipe.load(name)
        return kernel_boot.digest(kernel, kernel_boot.resolve(kernel, IMAGE))

    first = digest("old")
    assert digest("new") != first
    (other / "vmlinux").touch()
    assert digest("old") == first, "a tree that the guest does not get counts"


@pytest.mark.parametrize("source", ["{}", "{debian-image: true, git: {url: x}}", "{debian-image: false}"])
def test_exactly_one_source(source: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"mine\.yml:2: source: exactly one source must be given"):
        recipe.load(write(tmp_path, source))


@pytest.mark.parametrize("name", catalog.names("kernels"))
def test_every_kernel_boots_or_says_why_not(name: str) -> None:
    try:
        assert kernel_boot.resolve(recipe.load(name), IMAGE).kernel
    except (HostError, InputError) as error:
        assert name in str(error)  # noqa: PT017
