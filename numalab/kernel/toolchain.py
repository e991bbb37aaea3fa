# SPDX-License-Identifier: GPL-2.0-only
"""The builder, and the tools that build kernels: its compiler and binutils, or those of a container.

Not here: what is built with them (build).
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from numalab.core import state
from numalab.core.checksum import of_texts
from numalab.core.errors import HostError, InputError
from numalab.core.log import note, step
from numalab.core.process import Deadline, ends_with_us, need, run
from numalab.host import ansible
from numalab.kernel import era
from numalab.kernel.era import Era
from numalab.model.values import Value


@dataclass(frozen=True)
class Builder:
    """A host of the group `builders` of inventory.ini."""

    host: str
    local: bool


BINUTILS = ("as", "ld")
"""What affects a kernel besides the compiler. The first line of both versions begins with GNU."""
MEMORY_FORMAT = 1
"""The format of cache/tools-* and cache/versions-*. Their names have it, so each format has its own files."""


class Tools(Value):
    """The tools that compile and link a kernel."""

    compiler: str
    """The first line of its --version."""
    binutils: tuple[str, ...]
    """The first line of --version of each of BINUTILS."""
    container: str = ""
    """The id of the container with the tools; '' is the builder itself."""


def builder() -> Builder:
    """The first of `builders`, whose tools are in the keys of kernels."""
    return builders()[0]


def builders() -> tuple[Builder, ...]:
    """The hosts that build kernels. InputError when inventory.ini names none.

    inventory.ini is read without Ansible: its import would add a third to the time that finding a built
    kernel takes.
    """
    members: dict[str, list[list[str]]] = defaultdict(list)
    section = "ungrouped"
    for line in ansible.INVENTORY.read_text().splitlines():
        words = line.split("#")[0].split(";")[0].split()
        if words and words[0].startswith("["):
            section = words[0].strip("[]")
        elif words:
            members[section].append(words)
    groups, by_host = ["builders"], dict[str, Builder]()
    for group in groups:
        for host, *variables in members[group]:
            by_host.setdefault(host, Builder(host, "ansible_connection=local" in variables))
        groups += [child for child, *_ in members[f"{group}:children"] if child not in groups]
    if by_host:
        return tuple(by_host.values())
    raise InputError(
        f"{ansible.INVENTORY}: the group [builders] has no host: localhost ansible_connection=local would do"
    )


def ask_tools(age: Era | None) -> str:
    """A shell command for the first --version lines of an era's compiler and BINUTILS; fails without one."""
    programs = " ".join((_program(age), *BINUTILS))
    return f'set -e; for tool in {programs}; do text=$($tool --version); echo "$text" | head -n 1; done'


def tools(age: Era | None, deadline: Deadline, *, ask: bool, on: Builder | None = None) -> Tools | None:
    """The tools for kernels of an era (None: today's) on a builder (None: the first). None (only without
    `ask`) when they are not known here yet.

    The versions of a container or of another builder are cached, so that finding a built kernel connects to
    nobody.
    """
    machine = on or builder()
    if age and age.container:
        return _contained(machine, age, deadline, ask=ask)
    if machine.local:
        packages = {_program(age): _program(age), **dict.fromkeys(BINUTILS, "binutils")}
        compiler, *binutils = (
            run([need(program, package), "--version"], deadline=deadline).stdout.splitlines()[0]
            for program, package in packages.items()
        )
        return Tools(compiler=compiler, binutils=tuple(binutils))
    memory = state.folder("cache") / f"tools-{MEMORY_FORMAT}-{of_texts(machine.host, _program(age))[:16]}"
    if ask:
        module = ["-m", "ansible.builtin.shell", "-a", ask_tools(age)]
        words: list[str | Path] = [ansible.ansible("ansible"), "-i", ansible.INVENTORY, machine.host, *module]
        answer = run(ends_with_us(words), deadline=deadline, env=ansible.ENVIRONMENT, check=False)
        if answer.status:
            raise HostError(f"builder {machine.host}: {_reason(answer.stdout or answer.stderr)}")
        state.write(memory, "".join(f"{line}\n" for line in answer.stdout.splitlines()[1:]))
    lines = _remembered(memory)
    if ask and not lines:
        raise HostError(
            f"builder {machine.host}: {_program(age)}, {' and '.join(BINUTILS)} do not print their versions"
        )
    return Tools(compiler=lines[0], binutils=tuple(lines[1:])) if lines else None


def _reason(text: str) -> str:
    """Why an ad-hoc command of Ansible failed: what it prints after `HOST | UNREACHABLE! =>`, as JSON, or
    after `HOST | FAILED | rc=127 >>`."""
    if match := re.search(r'"msg": (".*")', text):
        return str(json.loads(match[1])).removeprefix("Task failed: ")
    lines = [line for line in text.splitlines() if line.strip() and line != "non-zero return code"]
    return lines[-1].strip() if lines else "no output"


def _contained(machine: Builder, age: Era, deadline: Deadline, *, ask: bool) -> Tools | None:
    """The compiler in an era's container; `ask` makes the container if it does not exist."""
    assert age.container  # the caller checked
    container = era.container(age.container)
    name = container.id(age.container)
    elsewhere = f"versions-{MEMORY_FORMAT}-{of_texts(machine.host, name)[:16]}"
    memory = (
        state.directory() / "containers" / name / "versions"
        if machine.local
        else state.folder("cache") / elsewhere
    )
    lines = _remembered(memory)
    if ask and not (machine.local and lines):
        memory.unlink(missing_ok=True)  # without it the role makes this machine's container again
        with (
            step(f"container {age.container} on {machine.host}"),
            state.temporary() as scratch,
        ):
            log = state.folder("logs") / f"container-{age.container}{suffix(machine)}.log"
            variables = container_variables(age) | {"kernel_out": f"{scratch}/versions"}
            play("container", variables, log, deadline, on=machine)
            state.write(memory, (Path(scratch) / "versions").read_text())
        if not (lines := _remembered(memory)):
            raise HostError(
                f"builder {machine.host}: containers/{name}/versions is damaged: remove the folder"
                f" containers/{name} there"
            )
    if not lines:
        return None
    compilers = [line for line in lines if line.split(" ")[0] == age.compiler]
    if not compilers:
        raise InputError(
            f"kernels/containers/{age.container}.yml: packages: bring no {age.compiler}, which an era wants"
        )
    return Tools(compiler=compilers[0], binutils=tuple(lines[-len(BINUTILS) :]), container=name)


def _program(age: Era | None) -> str:
    """The compiler's name."""
    return age.compiler if age else "gcc"


def _remembered(memory: Path) -> list[str]:
    """The cached first lines of --version: compilers, then BINUTILS. Empty, with a warning, when damaged."""
    try:
        lines = memory.read_text().splitlines()
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError):
        lines = []
    last = lines[-len(BINUTILS) :]
    if len(lines) > len(BINUTILS) and all(lines) and all(line.startswith("GNU ") for line in last):
        return lines
    note(f"{memory} is damaged: the builder's tools are asked again")
    return []


def suffix(machine: Builder) -> str:
    """What tells the logs and locks of a builder from those of others that work at the same time; '' for the
    first."""
    return "" if machine == builder() else f"-{of_texts(machine.host)[:8]}"


def play(
    tag: str,
    variables: dict[str, object],
    log: Path,
    deadline: Deadline,
    *,
    on: Builder | None = None,
    watch: Callable[[], None] | None = None,
) -> None:
    """Run playbooks/kernel.yml on a builder (None: the first); `watch` is called several times a second
    meanwhile."""
    machine = on or builder()
    scratch = f".making-{state.this_process()}-{secrets.token_hex(4)}-"
    variables = variables | {"kernel_scratch": scratch}
    if machine.local:
        # Our own interpreter: discovery takes time and may find one that does not run (pyenv's shims).
        variables = variables | {
            "kernel_root": str(state.directory()),
            "ansible_python_interpreter": sys.executable,
        }
    try:
        ansible.playbook(
            "kernel.yml",
            inventories=[ansible.INVENTORY],
            limit=machine.host,
            variables=variables,
            deadline=deadline,
            log=log,
            tags=tag,
            watch=watch,
        )
    finally:
        # A play that was ended leaves folders, and a container's tar.
        for path in state.directory().glob(f"*/{scratch}*") if machine.local else ():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def container_variables(age: Era | None) -> dict[str, object]:
    """The variables from which the role makes an era's container, should the builder lack it."""
    if age is None or age.container is None:
        return {"kernel_container": ""}
    container = era.container(age.container)
    return {
        "kernel_container": container.id(age.container),
        "kernel_suite": container.suite,
        "kernel_packages": container.packages,
    }
