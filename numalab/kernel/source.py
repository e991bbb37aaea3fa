# SPDX-License-Identifier: GPL-2.0-only
"""Kernel sources: whatever a recipe names becomes one tar file here, with an id that depends on its content.

Downloads are kept in the state directory: downloads/ has tar files, git/ clones of URLs. Unpacking is the
builder's work (playbooks/roles/kernel), once for each id. Not here: the recipe's fields (recipe), patches
from files (patch).
"""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import shutil
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from numalab.core import checksum, state
from numalab.core.errors import CommandFailed, HostError, InputError
from numalab.core.log import moving, note, step
from numalab.core.process import Deadline, Result, need, run
from numalab.host import apt
from numalab.kernel.era import container
from numalab.kernel.patch import Patch
from numalab.kernel.recipe import COMMIT, Git, Kernel, Tarball
from numalab.model.units import show_part
from numalab.model.values import Value

USR_SRC = Path("/usr/src")
"""Where Debian's linux-source packages install their tar files."""

RELEASES = {"5.10": "bullseye", "6.1": "bookworm", "6.12": "trixie"}
"""The Debian release whose kernel a series is, for hosts whose own apt has no package of it."""


class Tree(Value):
    """A source as the builder gets it."""

    id: str
    """Identifies the content: equal ids are equal trees."""
    tarball: str
    series: str | None
    """The series of a patch set that fits: 6.1."""
    git: str | None = None
    """The repository of a git source, from which upstream commits can be taken."""


def tree(kernel: Kernel, deadline: Deadline, *, fetch: bool) -> Tree | None:
    """A kernel's source. Without `fetch` nothing is downloaded or made: None when it is not here."""
    source, era = kernel.recipe.source, kernel.era
    if source.debian_source:
        suite = source.suite or (container(era.container).suite if era and era.container else None)
        return _debian(source.debian_source, suite, deadline, fetch, named=bool(source.suite))
    if source.tarball:
        return _tarball(kernel, source.tarball, deadline, fetch)
    if source.git:
        return _git(kernel, source.git, deadline, fetch)
    raise InputError(f"kernel {kernel.name} is not built from source")


def _debian(series: str, suite: str | None, deadline: Deadline, fetch: bool, *, named: bool) -> Tree | None:
    """linux-source-SERIES: the tar file of the installed package, or of one that is downloaded, from any
    suite, and unpacked without root. `named`: the recipe names the suite, so no other's will do."""
    file = f"linux-source-{series}.tar.xz"
    path = USR_SRC / file
    if named or not path.is_file():
        folder = f"linux-source-{series}" + (f"-{suite}" if named else "")
        path = state.folder("downloads") / folder / file
        if not _whole(path, deadline):
            if not fetch:
                return None
            path = _apt(series, path, suite, deadline)
    return Tree(id=f"debian-{series}-{checksum.sha256(path)[:16]}", tarball=str(path), series=series)


def _whole(path: Path, deadline: Deadline) -> bool:
    """Whether a downloaded .xz exists and is intact, by the checksum beside it.

    Earlier labs wrote no checksum; then xz checks the file once.
    """
    record = path.with_name(f"{path.name}.sha256")
    if not path.is_file():
        return False
    if record.exists():
        return record.read_text(errors="replace").strip() == checksum.sha256(path)
    if run([need("xz", "xz-utils"), "-t", path], deadline=deadline, check=False).status:
        return False
    state.write(record, checksum.sha256(path) + "\n")
    return True


def _apt(series: str, path: Path, suite: str | None, deadline: Deadline) -> Path:
    """Download Debian's source package and extract its tar file, to `path`."""
    package, place, file = f"linux-source-{series}", path.parent, path.name
    with state.lock(f"download-{place.name}", deadline):
        if _whole(place / file, deadline):  # another lab.py has made it meanwhile
            return place / file
        if (place / file).exists():
            note(f"{place / file} is damaged: it is downloaded again")
        with step(f"{package}: downloaded"), state.making(place) as scratch:
            try:
                tree = _unpacked(package, series, suite, scratch, deadline)
                (tree / "usr/src" / file).rename(scratch / file)
            except (CommandFailed, FileNotFoundError) as error:
                raise HostError(
                    f"there is no Debian package {package} to be had ({error}): "
                    + (f"does {suite} have it?" if suite else "apt-get update, or install it")
                ) from error
            for path in scratch.iterdir():
                if path.name != file:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            state.write(scratch / f"{file}.sha256", checksum.sha256(scratch / file) + "\n")
    return place / file


def _unpacked(package: str, series: str, suite: str | None, scratch: Path, deadline: Deadline) -> Path:
    """A folder with the files of the package from `suite`; without one, from the host's apt, or else from the
    series' release."""
    if not suite:
        try:
            return apt.unpack(package, [], scratch, deadline)
        except CommandFailed:
            if not (suite := RELEASES.get(series)):
                raise
    return apt.unpack(package, apt.lists(suite, scratch, deadline), scratch, deadline)


def _tarball(kernel: Kernel, requested: Tarball, deadline: Deadline, fetch: bool) -> Tree | None:
    """A tar file by path or URL; its checksum must be the recipe's."""
    if requested.path:
        path = Path(requested.path).expanduser()
        if not path.is_file():
            raise InputError(f"{kernel.file}: source.tarball.path: there is no {path}")
        path = path.absolute()
    else:
        assert requested.url  # the recipe's validator requires it
        assert requested.sha256
        path = state.folder("downloads") / f"{requested.sha256[:16]}-{Path(requested.url).name}"
        if not path.is_file() or checksum.sha256(path) != requested.sha256:
            if not fetch:
                return None
            if path.exists():
                note(f"{path} is damaged: it is downloaded again")
            _download(requested.url, requested.sha256, path, deadline)
    digest = checksum.sha256(path)
    if requested.sha256 and digest != requested.sha256:
        raise InputError(f"{kernel.file}: source.tarball.sha256: {path} has {digest}, not {requested.sha256}")
    return Tree(id=f"tar-{digest[:16]}", tarball=str(path), series=kernel.recipe.series)


def _download(url: str, sha256: str, path: Path, deadline: Deadline) -> None:
    """Fetch a file whose checksum is known; it gets its name once it is complete and correct."""
    received = 0
    part = state.scratch(path)
    digest = hashlib.sha256()
    try:
        with (
            step(f"{url}: downloaded"),
            urllib.request.urlopen(url, timeout=60) as stream,
            part.open("wb") as out,
        ):
            size = stream.headers.get("Content-Length", "")
            whole = int(size) if size.isdecimal() else 0
            while block := stream.read(1 << 20):
                deadline.check(f"downloading {url}")
                digest.update(block)
                out.write(block)
                received += len(block)
                moving(show_part(received, whole))
        if received < whole:
            raise HostError(f"{url}: the connection ended after {received} of {size} bytes")
        if digest.hexdigest() != sha256:
            raise InputError(f"{url}: has checksum {digest.hexdigest()}, not {sha256}: nothing of it is used")
        state.sync(part)
        part.rename(path)
        state.sync(path.parent)
    except (urllib.error.URLError, TimeoutError, ConnectionError, http.client.HTTPException) as error:
        why = getattr(error, "reason", "") or str(error) or type(error).__name__
        raise HostError(f"{url}: {why}") from error
    finally:
        part.unlink(missing_ok=True)


def linux_git() -> str | None:
    """The git tree of kernels that name none: LAB_LINUX_GIT, or the last one given to `use_git`."""
    memory = state.folder("cache") / "linux-git"
    if (configured := os.environ.get("LAB_LINUX_GIT")) or not memory.exists():
        return configured
    place = memory.read_text(errors="replace")
    if not place.strip() or "\0" in place or "\ufffd" in place:
        note(f"{memory} is damaged: lab.py kernel build must be told the source tree again")
        return None
    return place


def use_git(where: str, deadline: Deadline) -> None:
    """Use this git tree (a path or a URL) from now on. InputError when it does not exist."""
    if "://" not in where:
        place = Path(where).expanduser().absolute()
        if not place.is_dir() or git(place, ["rev-parse", "--git-dir"], deadline, check=False).status:
            raise InputError(f"source tree {where}: is no git tree", field="source_tree")
        where = str(place)
    if (known := os.environ.get("LAB_LINUX_GIT")) and known != where:
        raise InputError(
            f"source tree {where}: but LAB_LINUX_GIT is {known}, and goes first: unset it",
            field="source_tree",
        )
    state.write(state.folder("cache") / "linux-git", where)


def _git(kernel: Kernel, requested: Git, deadline: Deadline, fetch: bool) -> Tree | None:
    """A commit, archived once. Tags are resolved every time, so a moved tag is another commit."""
    where = requested.url or linux_git()
    if not where:
        raise InputError(
            f"{kernel.file}: comes from a Linux git tree: say where one is, in LAB_LINUX_GIT or to lab.py"
            " kernel build",
            field="source_tree",
        )
    local = Path(where).expanduser()
    if "://" not in where and not local.is_dir():
        raise InputError(f"{kernel.file}: source.git.url: there is no repository {local}")
    repository = (
        local.absolute()
        if local.is_dir()
        else state.folder("git") / hashlib.sha256(where.encode()).hexdigest()[:16]
    )
    if not local.is_dir() and fetch:
        _mirror(where, repository, requested.rev, deadline)
    elif not repository.is_dir():
        return None
    commit = _commit(repository, requested.rev, deadline)
    if commit is None and not fetch and _is_mirror(repository):
        return None  # a fetch may bring it
    if commit is None:
        raise InputError(f"{kernel.file}: source.git.rev: {where} has no commit {requested.rev}")
    if requested.commit and not commit.startswith(requested.commit):
        raise InputError(
            f"{kernel.file}: source.git.commit: {requested.rev} of {where} is {commit[:12]}, not"
            f" {requested.commit}: was the tag moved?"
        )
    tarball = next(
        filter(_named_by_content, sorted(state.folder("downloads").glob(f"git-{commit}-*.tar"))), None
    )
    if tarball is None:
        if not fetch:
            return None
        tarball = _archive(repository, commit, deadline)
    version = git(repository, ["show", f"{commit}:Makefile"], deadline).stdout
    numbers = [
        match[1] if (match := re.search(rf"^{key} = (\d+)", version, re.MULTILINE)) else ""
        for key in ("VERSION", "PATCHLEVEL")
    ]
    return Tree(
        id=f"git-{commit[:16]}",
        tarball=str(tarball),
        series=kernel.recipe.series or ".".join(numbers),
        git=str(repository),
    )


def _named_by_content(tarball: Path) -> bool:
    """Whether an archive has the checksum in its name; if not, it was damaged and is made again."""
    if tarball.stem.endswith(checksum.sha256(tarball)[:16]):
        return True
    note(f"{tarball} is damaged: it is made again")
    tarball.unlink()
    return False


def _archive(repository: Path, commit: str, deadline: Deadline) -> Path:
    """git archive of a commit -> downloads/git-COMMIT-CHECKSUM.tar. Warns of uncommitted changes."""
    if git(
        repository, ["status", "--porcelain", "--untracked-files=no"], deadline, check=False
    ).stdout.strip():
        note(f"{repository} has changes that are not committed: built is commit {commit[:12]}, without them")
    part = state.scratch(state.folder("downloads") / f"git-{commit}.tar")
    try:
        with step(f"git archive of {commit[:12]}"):
            git(repository, ["archive", "--format=tar", "--prefix=linux/", "-o", part, commit], deadline)
        state.sync(part)
        tarball = part.with_name(f"git-{commit}-{checksum.sha256(part)[:16]}.tar")
        part.rename(tarball)
        state.sync(tarball.parent)
        return tarball
    finally:
        part.unlink(missing_ok=True)


def _mirror(url: str, place: Path, rev: str, deadline: Deadline) -> None:
    """A bare clone of a URL, fetched again only for a revision that it lacks."""
    with state.lock(f"git-{place.name}", deadline):
        if not place.is_dir():
            with step(f"{url}: cloned"), state.making(place) as scratch:
                run([need("git", "git"), "clone", "-q", "--bare", "--", url, scratch], deadline=deadline)
        else:
            _fetch(place, rev, deadline)


def _fetch(mirror: Path, rev: str, deadline: Deadline) -> None:
    """Fetch what is new, for a revision that the clone lacks."""
    if _commit(mirror, rev, deadline) is None:
        with step(f"{rev}: fetched"):
            git(mirror, ["fetch", "-q", "--tags", "origin", "+refs/heads/*:refs/heads/*"], deadline)


def _is_mirror(repository: Path) -> bool:
    """Whether it is a clone of the lab's, of a URL."""
    return repository.parent == state.folder("git")


def git(
    repository: Path | str, words: Sequence[str | Path], deadline: Deadline, *, check: bool = True
) -> Result:
    """Run git in a repository, without the user's hooks and pagers."""
    return run(
        [need("git", "git"), "-C", repository, "-c", "core.fsmonitor=false", "--no-pager", *words],
        deadline=deadline,
        check=check,
    )


def _commit(repository: Path, rev: str, deadline: Deadline) -> str | None:
    """The full id of a revision's commit, or None."""
    result = git(
        repository,
        ["rev-parse", "--verify", "--quiet", "--end-of-options", f"{rev}^{{commit}}"],
        deadline,
        check=False,
    )
    if result.status not in (0, 1):
        raise HostError(f"{repository}: git: {result.stderr.strip()}")
    return result.stdout.strip() or None


def commit_patch(
    source: Tree, commit: str, kernel: Kernel, deadline: Deadline, *, reverse: bool, fetch: bool
) -> Patch | None:
    """An upstream commit of a git source as a patch. None (only without `fetch`) when it is not here yet."""
    full = None
    if source.git and COMMIT.fullmatch(commit):
        repository = Path(source.git)
        full = _commit(repository, commit, deadline)
        if full is None and _is_mirror(repository):
            if not fetch:
                return None
            with state.lock(f"git-{repository.name}", deadline):
                _fetch(repository, commit, deadline)
            full = _commit(repository, commit, deadline)
    if full is None:
        raise InputError(
            f"{kernel.file}: {'revert' if reverse else 'apply'}: {source.git} has no commit {commit}"
        )
    words = [
        "diff-tree",
        "-p",
        "--no-ext-diff",
        "--no-textconv",
        "--no-renames",
        "--full-index",
        "--no-commit-id",
        f"{full}^",
        full,
    ]
    text = git(source.git or "", words, deadline).stdout
    if "\ufffd" in text:
        raise InputError(
            f"{kernel.file}: commit {commit}: has lines that are not UTF-8: make a"
            " patch set of it without them"
        )
    return Patch(label=f"commit {commit}", text=text, reverse=reverse)
