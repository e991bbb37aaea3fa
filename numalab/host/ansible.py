# SPDX-License-Identifier: GPL-2.0-only
"""Running Ansible: its programs, plays with literal variables, and the inventory of running guests.

inventory.ini belongs to people. Running guests are in a second inventory, which lab.py keeps up to date. Not
here: what a play sets (guest.provision, kernel.toolchain, host.image).
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numalab.core import paths, state
from numalab.core.errors import CommandFailed, HostError, InputError
from numalab.core.process import Deadline, ends_with_us, run
from numalab.host.ssh import Ssh

INVENTORY = paths.find("inventory.ini")
CALLBACKS = paths.ROOT / "playbooks/callback_plugins"
ENVIRONMENT = {
    "ANSIBLE_PIPELINING": "1",
    "ANSIBLE_SSH_USETTY": "0",  # on a terminal, what a script says of its failure is output
    "ANSIBLE_GATHERING": "explicit",
    "ANSIBLE_NOCOLOR": "1",
    "ANSIBLE_STDOUT_CALLBACK": "default",
    "ANSIBLE_RETRY_FILES_ENABLED": "0",
    "ANSIBLE_LOCALHOST_WARNING": "0",
    "ANSIBLE_PYTHON_INTERPRETER": "auto_silent",
    "ANSIBLE_INVENTORY_UNPARSED_WARNING": "0",
}
"""Fewer round trips, and plain output that does not depend on the user's settings."""


def ansible(program: str) -> str:
    """The path of one of Ansible's programs: from the lab's own environment, else from PATH."""
    beside = Path(sys.executable).parent / program
    path = str(beside) if beside.exists() else shutil.which(program)
    if not path:
        raise HostError(f"{program} is not installed: make setup")
    return path


class _Literal(str):
    """A text that YAML writes with Ansible's tag !unsafe."""

    __slots__ = ()


def _literal(value: object) -> object:
    """The value with every text in it, keys of mappings too, as a literal."""
    if isinstance(value, str):
        return _Literal(value) if value else value  # ansible-core 2.19 reads a tagged empty text as null
    if isinstance(value, Mapping):
        return {_literal(key): _literal(inner) for key, inner in value.items()}
    if isinstance(value, Sequence):
        return [_literal(inner) for inner in value]
    return value


def literals(values: Mapping[str, object]) -> str:
    """Variables as YAML for Ansible in which no text is a template. Ansible would evaluate templates in a
    case or recipe that somebody else wrote, and their lookups run commands on this machine. Names of
    variables stay plain."""
    from ruamel.yaml import YAML  # here: a guest that ends needs the rest of this module only

    yaml = YAML()
    yaml.width = 1 << 20  # folding would change the text
    yaml.allow_unicode = True
    yaml.representer.add_representer(
        _Literal,
        lambda representer, text: representer.represent_scalar("!unsafe", str(text), style='"'),
    )
    text = io.StringIO()
    yaml.dump({name: _literal(value) for name, value in values.items()}, text)
    return text.getvalue()


def hosts(inventory: Path, group: str, deadline: Deadline) -> dict[str, dict[str, Any]]:
    """The hosts of a group and of its children -> their variables, as Ansible reads them.
    InputError for a file that Ansible cannot read."""
    if not inventory.is_file():
        raise InputError(f"{inventory}: there is no such inventory")
    words = [ansible("ansible-inventory"), "-i", str(inventory), "--list"]
    env = {**ENVIRONMENT, "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "1"}
    try:
        everything = json.loads(run(words, deadline=deadline, env=env).stdout)
    except CommandFailed as error:
        raise InputError(f"{inventory}: Ansible cannot read it", evidence=error.evidence) from error
    names: list[str] = []
    groups = [group]
    for one in groups:
        about = everything.get(one, {})
        names += [name for name in about.get("hosts", ()) if name not in names]
        groups += [child for child in about.get("children", ()) if child not in groups]
    return {name: everything["_meta"]["hostvars"].get(name, {}) for name in names}


def inventory_path() -> Path:
    """The inventory of running guests; lab.py's up, down and gc keep it up to date."""
    return state.folder("inventory") / "guests.yml"


def write_inventory(guests: Iterable[Ssh], path: Path | None = None) -> Path:
    """Write all ready guests as hosts of the group `guests`, with what SSH needs to reach them."""
    hosts = {
        ssh.guest: {
            "ansible_host": ssh.host,
            "ansible_port": ssh.port,
            "ansible_user": "root",
            # Ansible does not share lab.py's connection: its own arguments come first, ours add the rest.
            "ansible_ssh_common_args": shlex.join(ssh.options()),
            "ansible_python_interpreter": "/usr/bin/python3",
        }
        for ssh in guests
    }
    path = path or inventory_path()
    # Host names are checked (values.check_name), and Ansible accepts no tagged ones.
    lines = "".join(
        f"    {name}:\n{textwrap.indent(literals(about), ' ' * 6)}" for name, about in hosts.items()
    )
    state.write(path, f"guests:\n  hosts:\n{lines}" if hosts else "guests: {hosts: {}}\n")
    return path


@dataclass(frozen=True)
class Recap:
    """The changes of a play, over all hosts; `log` has its whole output."""

    ok: int
    changed: int
    log: Path


def tasks(name: str) -> int:
    """How many tasks playbooks/NAME and its roles have, by their names: ansible-lint asks for one for each.

    Ansible itself (--list-tasks) would take a second.
    """
    plays = (paths.ROOT / "playbooks" / name).read_text()
    texts = [re.sub(r"^- name:", "", plays, flags=re.MULTILINE)]  # the plays' own names
    for role in re.findall(r"^ *- role: (\S+)", plays, re.MULTILINE):
        folder = paths.ROOT / "playbooks/roles" / role / "tasks"
        texts += [path.read_text() for path in folder.glob("*.yml")]
    return sum(len(re.findall(r"^ *- name:", text, re.MULTILINE)) for text in texts)


def playbook(
    name: str,
    *,
    inventories: Sequence[Path],
    limit: str,
    variables: Mapping[str, object],
    deadline: Deadline,
    log: Path,
    tags: str = "all",
    watch: Callable[[], None] | None = None,
) -> Recap:
    """Run playbooks/NAME on the hosts of `limit`. CommandFailed names the task and its program's error."""
    log.unlink(missing_ok=True)
    with state.temporary() as scratch, state.short(Path(scratch)) as short:
        about, events = Path(scratch) / "vars.yml", Path(scratch) / "events"
        about.write_text(literals(variables))
        words = [
            ansible("ansible-playbook"),
            *(word for path in inventories for word in ("-i", str(path))),
            "--limit",
            limit,
            "--tags",
            tags,
            "-e",
            f"@{about}",
            str(paths.ROOT / "playbooks" / name),
        ]
        env = ENVIRONMENT | {
            "ANSIBLE_CALLBACK_PLUGINS": str(CALLBACKS),
            "ANSIBLE_CALLBACKS_ENABLED": "numalab_events",
            "NUMALAB_EVENTS": str(events),
            # A module that is killed leaves its files here, and not in the user's folders.
            "ANSIBLE_LOCAL_TEMP": scratch,
            # From 2.21 on, Ansible's own processes speak through a socket there.
            "TMPDIR": str(short),
        }
        try:
            run(ends_with_us(words), deadline=deadline, log=log, env=env, cwd=paths.ROOT, watch=watch)
        except CommandFailed as error:
            raise _failure(name, log, _read(events), error) from error
        return _recap(name, log, _read(events))


def _read(events: Path) -> list[dict[str, Any]]:
    """What playbooks/callback_plugins/numalab_events.py wrote; nothing when no play began."""
    lines = []
    # ValueError: a line that is cut, as by a full disk.
    with contextlib.suppress(FileNotFoundError, ValueError):
        for line in events.read_text().splitlines():
            lines.append(json.loads(line))
    return lines


def _recap(name: str, log: Path, events: Sequence[dict[str, Any]]) -> Recap:
    """The counts of all hosts together."""
    counts = next((event["recap"].values() for event in events if "recap" in event), None)
    if counts is None:
        raise HostError(f"{name}: Ansible ended without a recap (all of it: {log})")
    return Recap(sum(row["ok"] for row in counts), sum(row["changed"] for row in counts), log)


def _failure(name: str, log: Path, events: Sequence[dict[str, Any]], error: CommandFailed) -> CommandFailed:
    """The first failed task of a play, and what its program wrote to standard error."""
    failed = next((event for event in events if "task" in event), None)
    if failed is None:
        return error
    text = failed["stderr"] or failed["msg"] or failed["stdout"] or "no output"
    where = "" if failed["host"] == "localhost" else f" on {failed['host']}"
    return CommandFailed(
        f"{name}{where}: {failed['task']}: {text.splitlines()[0]} (all of it: {log})", evidence=text
    )
