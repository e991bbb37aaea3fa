# SPDX-License-Identifier: GPL-2.0-only
"""lab.py kernel …: list, show, build, import and prune kernels. How one is built is in the room kernel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from numalab.cli.options import MINUTE
from numalab.cli.terminal import echo, limit
from numalab.core import paths, state
from numalab.core.errors import InputError
from numalab.host import image
from numalab.kernel import build as kernel_build
from numalab.kernel import era, recipe, source
from numalab.maintenance import prune
from numalab.model import catalog
from numalab.model.values import check_name

app = typer.Typer(no_args_is_help=True, help="Kernels: list, show, build and import them.")

ImageOption = Annotated[
    str, typer.Option("--image", metavar="I", help="whose configuration `config: distribution` means")
]
SourceOption = Annotated[
    str | None,
    typer.Option("--source", metavar="PATH", help="the Linux git tree of kernels that name none; remembered"),
]


def _image(name: str, image_name: str) -> image.Image | None:
    """The guest image, for kernels whose configuration is the image's; else None."""
    what = recipe.recipe(name)
    return (
        image.require(image_name, limit(MINUTE))
        if what.built and recipe.DISTRIBUTION in what.config
        else None
    )


def _use(source_tree: str | None, names: list[str]) -> None:
    """Use --source as the git tree; InputError unless one of the kernels needs one."""
    if source_tree is None:
        return
    if not any((git := recipe.recipe(name).source.git) and not git.url for name in names):
        raise InputError(
            f"--source {source_tree}: {', '.join(names)} comes from elsewhere (lab.py kernel show)"
        )
    source.use_git(source_tree, limit(MINUTE))


@app.command("list")
def list_kernels() -> None:
    """The kernels there are files for, and whether each is built."""
    for name in catalog.names("kernels"):
        what = recipe.recipe(name)
        life = "" if what.source.debian_image else "finished"
        if what.built:
            base = image.existing("debian12", limit(MINUTE)) if recipe.DISTRIBUTION in what.config else None
            try:
                asked = (
                    kernel_build.make_plan(name, base, limit(MINUTE), fetch=False)
                    if base or recipe.DISTRIBUTION not in what.config
                    else None
                )
                life = "built" if asked and kernel_build.existing(asked) else "not built"
            except InputError:  # `kernel show` has the details
                life = "no source"
        echo(f"{name:28} {life:10} {what.description}")


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(metavar="K")],
    image_name: ImageOption = "debian12",
    source_tree: SourceOption = None,
) -> None:
    """One kernel's file as the lab reads it, its era and patches, and what was built from it."""
    what = recipe.recipe(name)
    _use(source_tree, [name])
    told: dict[str, object] = {"recipe": what.model_dump(mode="json", exclude_none=True, by_alias=True)}
    if age := recipe.era_of(what):
        told["era"] = era.about(age)
    if what.built and (
        asked := kernel_build.make_plan(name, _image(name, image_name), limit(MINUTE), fetch=False)
    ):
        told |= {
            "source": asked.tree.id,
            "key": asked.key,
            "patches": [patch.label for patch in asked.patches],
        }
        built = kernel_build.existing(asked)
        told["built"] = built.model_dump(mode="json") if built else None
    echo(json.dumps(told, indent=1))


@app.command("build")
def build(
    names: Annotated[list[str], typer.Argument(metavar="NAME...")],
    image_name: ImageOption = "debian12",
    source_tree: SourceOption = None,
    only_configure: Annotated[
        bool, typer.Option("--only-configure", help="print the .config, checked, and compile nothing")
    ] = False,
) -> None:
    """Build kernels, unless what they are made of did not change."""
    for name in names:
        recipe.recipe(name)
    _use(source_tree, names)
    for name in names:
        base = _image(name, image_name)
        deadline = limit(kernel_build.BUILD_SECONDS)
        if only_configure:
            asked = kernel_build.make_plan(name, base, deadline, fetch=True)
            assert asked is not None  # it was fetched
            echo(kernel_build.configure(asked, deadline), nl=False)
        else:
            built = kernel_build.build(name, base, deadline)
            echo(f"{name} {built.key}: {built.release}: {built.file('bzImage')}")


@app.command("import")
def import_kernel(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    bzimage: Annotated[Path, typer.Argument(metavar="BZIMAGE")],
    modules: Annotated[
        Path | None,
        typer.Option("--modules", metavar="DIR", help="its /lib/modules/RELEASE, a folder or a tar"),
    ] = None,
) -> None:
    """Write kernels/NAME.yml for a kernel that somebody else built."""
    try:
        path = paths.ROOT / "kernels" / f"{check_name(name)}.yml"
    except ValueError as error:
        raise InputError(str(error)) from error
    if path.exists():
        raise InputError(f"{path} is there: choose another name")
    release = kernel_build.release(bzimage)
    if modules is not None and not modules.exists():
        raise InputError(f"--modules {modules}: there is no such folder or tar")
    given = {"bzimage": str(bzimage.absolute())} | ({"modules": str(modules.absolute())} if modules else {})
    # JSON is YAML, and quotes the paths.
    path.write_text(
        f"description: {json.dumps(f'{release}, built elsewhere')}\nsource: {json.dumps({'prebuilt': given})}\n"
    )
    recipe.recipe(name)
    echo(f"{path}: {release}: lab.py up --kernel {name}")


@app.command("prune")
def prune_kernels(
    really: Annotated[bool, typer.Option("--remove", help="remove them; otherwise they are listed")] = False,
) -> None:
    """Kernels, build trees, sources and containers that no file in kernels/ leads to: what removing them
    would free."""
    deadline = limit(10 * MINUTE)
    total = 0
    for path in prune.candidates(image.existing("debian12", deadline), deadline):
        used = prune.size(path, deadline)
        if not really or prune.remove(path):
            total += used
            echo(f"{used >> 20:8}M  {path.relative_to(state.directory())}")
    echo(f"{total >> 20:8}M  {'removed' if really else 'in all; lab.py kernel prune --remove'}")
