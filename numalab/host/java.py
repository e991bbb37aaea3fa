# SPDX-License-Identifier: GPL-2.0-only
"""Java for workloads: Debian 12's OpenJDK, fetched when one first needs it, and kept in the state directory.

jlink cuts it down to what compiles and runs a program. Neither the host nor the guest's image needs a Java:
this host compiles with it, and guests get it as a tar archive.
"""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

from numalab.core import state
from numalab.core.checksum import of_texts
from numalab.core.errors import CommandFailed, HostError
from numalab.core.log import step
from numalab.core.process import Deadline, run
from numalab.host import apt

SUITE = "bookworm"
PACKAGES = ("openjdk-17-jre-headless", "openjdk-17-jdk-headless")
HOME = "usr/lib/jvm/java-17-openjdk-amd64"
MODULES = "java.base,jdk.compiler"
FETCH_SECONDS = 1200.0
COMPILE_SECONDS = 120.0


def runtime(deadline: Deadline) -> Path:
    """An archive of the runtime, whose one folder is java/; the folder is beside it. Raises HostError."""
    place = state.folder("tools") / "java"
    with state.lock("java", deadline):
        if not (place / "java.tar").is_file():
            with step(f"java: Debian {SUITE}'s, downloaded"), state.making(place) as scratch:
                try:
                    _make(scratch, deadline.within(FETCH_SECONDS))
                except CommandFailed as error:
                    raise HostError(
                        f"java: Debian {SUITE}'s OpenJDK cannot be had from {apt.MIRROR} ({error})"
                    ) from error
    return place / "java.tar"


def _make(scratch: Path, deadline: Deadline) -> None:
    options = apt.lists(SUITE, scratch, deadline)
    for package in PACKAGES:
        tree = apt.unpack(package, options, scratch, deadline)
        for deb in scratch.glob("*.deb"):
            deb.unlink()
    for link in (tree / HOME).rglob("*"):  # into /etc, which is below the tree here
        if link.is_symlink() and link.readlink().is_absolute():
            target = tree / link.readlink().relative_to("/")
            link.unlink()
            link.symlink_to(target)
    words = ["--add-modules", MODULES, "--no-header-files", "--no-man-pages", "--strip-java-debug-attributes"]
    run([tree / HOME / "bin/jlink", *words, "--output", scratch / "java"], deadline=deadline)
    with tarfile.open(scratch / "java.tar", "w") as archive:
        archive.add(scratch / "java", "java")
    for path in scratch.iterdir():
        if path.name not in ("java", "java.tar"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def compiled(source: Path, deadline: Deadline) -> Path:
    """A jar of a source file's classes, made once for its text. Raises CommandFailed with javac's words."""
    place = state.folder("tools") / f"{source.stem}-{of_texts(source.read_text())[:16]}.jar"
    if place.is_file():
        return place
    java = runtime(deadline).with_name("java") / "bin/java"
    with state.temporary() as folder:
        javac = ("-m", "jdk.compiler/com.sun.tools.javac.Main", "-Xlint:all", "-Werror")
        run([java, *javac, "-d", f"{folder}/classes", source], deadline=deadline.within(COMPILE_SECONDS))
        made = Path(shutil.make_archive(f"{folder}/made", "zip", f"{folder}/classes"))
        fresh = state.scratch(place)
        try:
            shutil.copy(made, fresh)
            state.sync(fresh)
            fresh.replace(place)
        finally:
            fresh.unlink(missing_ok=True)
    return place
