# SPDX-License-Identifier: GPL-2.0-only
"""lab.py kernel …: list, show, build, import and prune kernels. How one is built is in the room kernel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from numalab.cli.options import MINUTE, show_each
from numalab.cli.terminal import as_called, echo, limit
from numalab.core import paths
from numalab.core.errors import InputError
from numalab.core.log import note

if TYPE_CHECKING:
    from numalab.host import image
    from numalab.kernel.recipe import Kernel

app = typer.Typer(no_args_is_help=True, help="Kernels: list, show, build, import and prune them.")

ImageOption = Annotated[
    str,
    typer.Option(
        "--image", metavar="I", help="the image whose kernel's configuration `config: distribution` takes"
    ),
]
SourceOption = Annotated[
    str | None,
    typer.Option("--source", metavar="PATH", help="the Linux git tree of kernels that name none; remembered"),
]


def _image(kernel: Kernel, image_name: str) -> image.Image | None:
    """The guest image, for kernels whose configuration is the image's; else None."""
    from numalab.host import image

    return image.require(image_name, limit(MINUTE)) if kernel.needs_image else None


def _use(source_tree: str | None, kernels: list[Kernel]) -> None:
    """Use --source as the git tree; InputError unless one of the kernels needs one."""
    from numalab.kernel import source

    if source_tree is None:
        return
    if not any((git := kernel.recipe.source.git) and not git.url for kernel in kernels):
        names = ", ".join(kernel.name for kernel in kernels)
        raise InputError(f"--source {source_tree}: {names} comes from elsewhere (lab.py kernel show)")
    source.use_git(source_tree, limit(MINUTE))


@app.command("list")
def list_kernels() -> None:
    """List the kernels, and whether each is built."""
    from numalab.host import image
    from numalab.kernel import build as kernel_build
    from numalab.kernel import recipe

    def show(name: str) -> None:
        kernel = recipe.load(name)
        life = "" if kernel.recipe.source.debian_image else "finished"
        if kernel.recipe.built:
            base = image.existing("debian12", limit(MINUTE)) if kernel.needs_image else None
            try:
                plan = (
                    kernel_build.make_plan(kernel, base, limit(MINUTE), fetch=False)
                    if base or not kernel.needs_image
                    else None
                )
                life = "built" if plan and kernel_build.existing(plan) else "not built"
            except InputError:  # `kernel show` has the details
                life = "no source"
        echo(f"{name:28} {life:10} {kernel.recipe.description}")

    show_each("kernels", show)


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(metavar="K", help="name in kernels/ (see list)")],
    image_name: ImageOption = "debian12",
    source_tree: SourceOption = None,
) -> None:
    """Show a kernel: its file as the lab reads it, era, patches, builds."""
    from numalab.kernel import build as kernel_build
    from numalab.kernel import era, recipe

    kernel = recipe.load(name)
    _use(source_tree, [kernel])
    facts: dict[str, object] = {
        "recipe": kernel.recipe.model_dump(mode="json", exclude_none=True, by_alias=True)
    }
    if kernel.era:
        facts["era"] = era.as_data(kernel.era)
    plan = (
        kernel_build.make_plan(kernel, _image(kernel, image_name), limit(MINUTE), fetch=False)
        if kernel.recipe.built
        else None
    )
    if plan:
        facts |= {
            "source": plan.tree.id,
            "key": plan.key,
            "patches": [patch.label for patch in plan.patches],
        }
        built = kernel_build.existing(plan)
        facts["built"] = built.model_dump(mode="json") if built else None
    elif kernel.recipe.built:
        note(f"kernel {name}: not all that a build needs is here, so no key: lab.py kernel build")
    echo(json.dumps(facts, indent=1))


@app.command("build")
def build(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="in kernels/ (see list)")],
    image_name: ImageOption = "debian12",
    source_tree: SourceOption = None,
    only_configure: Annotated[
        bool, typer.Option("--only-configure", help="print the .config, checked, and compile nothing")
    ] = False,
) -> None:
    """Build kernels, unless what they are made of did not change."""
    from numalab.kernel import build as kernel_build
    from numalab.kernel import recipe

    kernels = [recipe.load(name) for name in names]
    _use(source_tree, kernels)
    for kernel in kernels:
        base = _image(kernel, image_name)
        deadline = limit(kernel_build.BUILD_SECONDS)
        if only_configure:
            plan = kernel_build.make_plan(kernel, base, deadline, fetch=True)
            assert plan is not None  # it was fetched
            echo(kernel_build.configure(plan, deadline), nl=False)
        else:
            built = kernel_build.build(kernel, base, deadline)
            echo(f"{kernel.name} {built.key}: {built.release}: {built.file('bzImage')}")


@app.command("import")
def import_kernel(
    name: Annotated[str, typer.Argument(metavar="NAME", help="what it is to be called")],
    bzimage: Annotated[
        Path, typer.Argument(metavar="BZIMAGE", help="such as arch/x86/boot/bzImage of a tree")
    ],
    modules: Annotated[
        Path | None,
        typer.Option("--modules", metavar="DIR", help="its /lib/modules/RELEASE, a folder or a tar"),
    ] = None,
) -> None:
    """Write kernels/NAME.yml for a kernel that somebody else built."""
    from numalab.kernel import build as kernel_build
    from numalab.kernel import recipe
    from numalab.model.values import check_name

    try:
        path = paths.own() / "kernels" / f"{check_name(name)}.yml"
    except ValueError as error:
        raise InputError(str(error)) from error
    if path.exists():
        raise InputError(f"{path} is there: choose another name")
    release = kernel_build.release(bzimage)
    if modules is not None and not modules.exists():
        raise InputError(f"--modules {modules}: there is no such folder or tar")
    prebuilt = {"bzimage": str(bzimage.absolute())} | (
        {"modules": str(modules.absolute())} if modules else {}
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    # JSON is YAML, and quotes the paths.
    path.write_text(
        f"description: {json.dumps(f'{release}, built elsewhere')}\nsource:"
        f" {json.dumps({'prebuilt': prebuilt})}\n"
    )
    recipe.load(name)
    echo(as_called(f"{path}: {release}: lab.py up --kernel {name}"))


@app.command("prune")
def prune_kernels(
    really: Annotated[bool, typer.Option("--remove", help="remove them; otherwise they are listed")] = False,
) -> None:
    """List or remove what no file in kernels/ leads to. Kernels, build trees, sources and containers,
    with what removing them would free."""
    from numalab.core import state
    from numalab.host import image
    from numalab.maintenance import prune

    deadline = limit(10 * MINUTE)
    total = 0
    for path in prune.candidates(image.existing("debian12", deadline), deadline):
        used = prune.size(path, deadline)
        if not really or prune.remove(path):
            total += used
            echo(f"{used >> 20:8}M  {path.relative_to(state.directory())}")
    echo(as_called(f"{total >> 20:8}M  {'removed' if really else 'in all; lab.py kernel prune --remove'}"))
