"""Ansible at the lab's service: where its programs are, and the inventory of running guests.

inventory.ini belongs to people; running guests are added beside it by a dynamic inventory that lab.py
writes for each of them.
"""

from __future__ import annotations

import io
import shlex
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from ruamel.yaml import YAML

from numalab import state
from numalab.errors import HostError
from numalab.shell import Ssh


def ansible(program: str) -> str:
    """The path of one of Ansible's programs: the lab's own environment first, then PATH."""
    beside = Path(sys.executable).parent / program
    found = str(beside) if beside.exists() else shutil.which(program)
    if not found:
        raise HostError(f"{program} is not installed: make setup")
    return found


def inventory_path() -> Path:
    """The inventory of running guests; lab.py's up, down and gc keep it in step."""
    return state.folder("inventory") / "guests.yml"


def write_inventory(guests: Iterable[Ssh]) -> Path:
    """Every ready guest as a host of the group `guests`, with what SSH needs to reach it."""
    hosts = {
        ssh.guest: {
            "ansible_host": ssh.host, "ansible_port": ssh.port, "ansible_user": "root",
            # Ansible shares no connection with lab.py: its own arguments come first, ours add the rest.
            "ansible_ssh_common_args": shlex.join(ssh.options()),
            "ansible_python_interpreter": "/usr/bin/python3",
        }
        for ssh in guests
    }
    text = io.StringIO()
    YAML().dump({"guests": {"hosts": hosts}}, text)
    path = inventory_path()
    fresh = path.with_suffix(".new")
    fresh.write_text(text.getvalue())
    fresh.replace(path)
    return path
