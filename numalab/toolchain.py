"""Who builds kernels and with which tools: the builder, its compiler, or a container's.

Not here: what is built with them (kernelbuild).
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from numalab import eras, provision, state
from numalab.eras import Era
from numalab.errors import InputError
from numalab.log import step
from numalab.model import Value
from numalab.proc import Deadline, ends_with_us, need, run


@dataclass(frozen=True)
class Builder:
    """The first host of the group `builders` of inventory.ini."""

    host: str
    local: bool


class Tools(Value):
    """What compiles a kernel."""

    compiler: str
    """The first line of its --version."""
    container: str = ""
    """The id of the container that it is in; '' is the builder itself."""


def _hash(*texts: str) -> str:
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]


def builder() -> Builder:
    """Who builds kernels. Raises InputError when inventory.ini names nobody.

    Not asked of Ansible, whose import would add a third to the time in which a known kernel is found.
    """
    members: dict[str, list[list[str]]] = defaultdict(list)
    section = "ungrouped"
    for line in provision.INVENTORY.read_text().splitlines():
        words = line.split("#")[0].split(";")[0].split()
        if words and words[0].startswith("["):
            section = words[0].strip("[]")
        elif words:
            members[section].append(words)
    groups = ["builders"]
    for group in groups:
        for host, *variables in members[group]:
            return Builder(host, "ansible_connection=local" in variables)
        groups += [child for child, *_ in members[f"{group}:children"] if child not in groups]
    raise InputError(f"{provision.INVENTORY}: the group [builders] has no host: localhost ansible_connection=local would do")


def _contained(who: Builder, age: Era, deadline: Deadline, *, ask: bool) -> Tools | None:
    """An era's compiler in its container; with `ask` the container is made if it is not there.

    Its compilers' versions are kept here as they were told, so that a known kernel asks nobody.
    """
    assert age.container  # the caller looked
    what = eras.container(age.container)
    name = what.id(age.container)
    memory = state.directory() / "containers" / name / "versions" if who.local else state.folder("cache") / f"versions-{_hash(who.host, name)}"
    if ask and not (who.local and memory.exists()):
        with step(f"container {age.container} on {who.host}"), tempfile.TemporaryDirectory(prefix="numalab-") as scratch:
            log = state.folder("logs") / f"container-{age.container}.log"
            play("container", container_variables(age) | {"kernel_out": f"{scratch}/versions"}, log, deadline)
            memory.write_bytes((Path(scratch) / "versions").read_bytes())
    if not memory.exists():
        return None
    found = [line for line in memory.read_text().splitlines() if line.split(" ")[0] == age.compiler]
    if not found:
        raise InputError(f"kernels/containers/{age.container}.yml: packages: bring no {age.compiler}, which an era wants")
    return Tools(compiler=found[0], container=name)


def tools(age: Era | None, deadline: Deadline, *, ask: bool) -> Tools | None:
    """The tools for kernels of an era (None: of today). None (only without `ask`) when they are not known here yet."""
    who = builder()
    if age and age.container:
        return _contained(who, age, deadline, ask=ask)
    compiler = _compiler(who, age, deadline, ask=ask)
    return Tools(compiler=compiler) if compiler else None


def _compiler(who: Builder, age: Era | None, deadline: Deadline, *, ask: bool) -> str | None:
    """The builder's compiler; that of one elsewhere is remembered, so that a known kernel asks nobody."""
    program = age.compiler if age else "gcc"
    if who.local:
        return run([need(program, program), "--version"], deadline=deadline).stdout.splitlines()[0]
    memory = state.folder("cache") / f"compiler-{_hash(who.host, *([program] if age else []))}"
    if ask:
        ask_it = ["-m", "ansible.builtin.command", "-a", f"{program} --version"]
        words: list[str | Path] = [provision.ansible("ansible"), "-i", provision.INVENTORY, who.host, *ask_it]
        said = run(ends_with_us(words), deadline=deadline, env=provision.ENVIRONMENT).stdout.splitlines()
        memory.write_text(said[1])
    return memory.read_text() if memory.exists() else None


def play(tag: str, variables: dict[str, object], log: Path, deadline: Deadline) -> None:
    """playbooks/kernel.yml on the builder."""
    who = builder()
    variables = variables | {"kernel_scratch": f".making-{os.getpid()}-"}
    if who.local:
        # Our own interpreter: looking for one takes time and may find one that does not run (pyenv's shims).
        variables = variables | {"kernel_root": str(state.directory()), "ansible_python_interpreter": sys.executable}
    provision.playbook("kernel.yml", inventories=[provision.INVENTORY], limit=who.host, variables=variables, deadline=deadline, log=log, tags=tag)


def container_variables(age: Era | None) -> dict[str, object]:
    """What the role must know of an era's container, should the builder lack it."""
    if age is None or age.container is None:
        return {"kernel_container": ""}
    what = eras.container(age.container)
    return {"kernel_container": what.id(age.container), "kernel_suite": what.suite, "kernel_packages": what.packages}
