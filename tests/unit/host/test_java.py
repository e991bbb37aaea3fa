# SPDX-License-Identifier: GPL-2.0-only
"""Java for workloads, from a Debian that is a fake: fetched once, cut down, and used to compile once."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from numalab.core.errors import CommandFailed, HostError
from numalab.core.process import Deadline
from numalab.host import java

Program = Callable[[str, str], Path]
JLINK = """#!/bin/sh
[ -e "$(dirname "$0")/../conf/net.properties" ] || exit 3
while [ "$1" != --output ]; do shift; done
mkdir -p "$2/bin" && cat > "$2/bin/java" <<'END'
#!/bin/sh
while [ "$1" != -d ]; do shift; done
grep -q broken "$3" && { echo "broken.java:1: error" >&2; exit 1; }
mkdir -p "$2" && echo class > "$2/Main.class"
END
chmod 755 "$2/bin/java"
"""


@pytest.fixture
def log(program: Program, tmp_path: Path) -> Path:
    """A Debian that has OpenJDK; what its apt-get was told."""
    log = tmp_path / "log"
    (tmp_path / "jlink").write_text(JLINK)
    (tmp_path / "jlink").chmod(0o755)
    last = 'for word; do last=$word; done; case "$*" in *" download "*) touch $last.deb;; esac'
    program("apt-get", f'echo "$@" >> {log}; {last}')
    home = f'"$3/{java.HOME}"'
    program(
        "dpkg-deb",
        'mkdir -p "$3/etc" && case "$2" in *-jdk-*) '
        f"mkdir -p {home}/bin && cp {tmp_path}/jlink {home}/bin;; "
        f'*) mkdir -p {home}/conf && touch "$3/etc/net" && ln -s /etc/net {home}/conf/net.properties;; esac',
    )
    return log


def test_it_is_fetched_once(log: Path, deadline: Deadline, lab_state: Path) -> None:
    """jlink finds what Debian links into /etc, which is below the unpacked tree."""
    made = java.runtime(deadline)
    assert made == java.runtime(deadline) == lab_state / "tools/java/java.tar"
    assert [call.split()[-1] for call in log.read_text().splitlines()] == ["update", *java.PACKAGES]
    assert sorted(path.name for path in made.parent.iterdir()) == ["java", "java.tar"]
    with tarfile.open(made) as archive:
        assert "java/bin/java" in archive.getnames()


def test_a_source_is_compiled_once(log: Path, deadline: Deadline, tmp_path: Path) -> None:
    source = tmp_path / "main.java"
    source.write_text("final class Main {}\n")
    jar = java.compiled(source, deadline)
    assert zipfile.ZipFile(jar).namelist() == ["Main.class"]
    stamp = jar.stat().st_mtime_ns
    assert java.compiled(source, deadline).stat().st_mtime_ns == stamp
    source.write_text("final class Main { }\n")
    assert java.compiled(source, deadline) != jar


def test_one_that_is_wrong_leaves_nothing(
    log: Path, deadline: Deadline, tmp_path: Path, lab_state: Path
) -> None:
    source = tmp_path / "main.java"
    source.write_text("broken\n")
    with pytest.raises(CommandFailed, match=r"broken\.java:1: error"):
        java.compiled(source, deadline)
    assert [path.name for path in (lab_state / "tools").iterdir()] == ["java"]


@pytest.mark.parametrize("fault", ["exit 100", "exit 0"], ids=["no mirror", "no package"])
def test_debian_cannot_be_reached(
    log: Path, program: Program, deadline: Deadline, lab_state: Path, fault: str
) -> None:
    program("apt-get", fault)
    with pytest.raises(HostError, match=r"OpenJDK cannot be had from http://deb\.debian\.org"):
        java.runtime(deadline)
    assert not list((lab_state / "tools").iterdir())
