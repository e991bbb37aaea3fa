"""The inventory that Ansible reads: every ready guest, reached with the very options that lab.py uses."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from numalab import provision
from numalab.errors import HostError
from numalab.shell import Ssh


def hosts(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = YAML(typ="safe").load(path.read_text())["guests"]["hosts"]
    return found


@pytest.mark.parametrize("via", ["", "me@hypervisor:2022"])
def test_inventory(via: str, tmp_path: Path, program: Callable[[str, str], Path]) -> None:
    program("ssh", "exit 255")
    guests = [Ssh(guest=name, port=port, key=tmp_path / "key", known_hosts=tmp_path / name, via=via) for name, port in (("a", 2001), ("b", 2002))]
    path = provision.write_inventory(guests)
    assert path == provision.inventory_path()
    found = hosts(path)
    assert list(found) == ["a", "b"]
    assert (found["b"]["ansible_host"], found["b"]["ansible_port"], found["b"]["ansible_user"]) == ("127.0.0.1", 2002, "root")
    # Ansible splits them as a shell would (ansible.plugins.connection.ssh: shlex).
    assert shlex.split(found["b"]["ansible_ssh_common_args"]) == guests[1].options()
    assert not path.with_suffix(".new").exists()


def test_no_guests() -> None:
    assert hosts(provision.write_inventory([])) == {}


def test_ansible_is_named_when_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HostError, match="ansible-playbook is not installed: make setup"):
        provision.ansible("ansible-playbook")
    (tmp_path / "ansible-playbook").touch()
    (tmp_path / "ansible-playbook").chmod(stat.S_IRWXU)
    assert provision.ansible("ansible-playbook") == str(tmp_path / "ansible-playbook")


PLAY = """
- hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - ansible.builtin.command: sh -c 'echo $$ > {pid}; sleep 300; true'
"""
DRIVER = """
from pathlib import Path
from numalab import provision
from numalab.proc import Deadline
provision.ROOT = Path("{place}")
provision.playbook("wait.yml", inventories=[], limit="localhost", variables={{}}, deadline=Deadline.after(120), log=Path("{place}/log"))
"""


def test_a_play_ends_with_a_lab_that_is_killed(tmp_path: Path) -> None:
    """Of kill -9, which nobody can clean up after: ansible-playbook, its worker, and the program (make) that it runs."""
    (tmp_path / "playbooks").mkdir()
    pid = tmp_path / "pid"
    (tmp_path / "playbooks" / "wait.yml").write_text(PLAY.format(pid=pid))
    child = subprocess.Popen([sys.executable, "-c", DRIVER.format(place=tmp_path)])
    try:
        until(lambda: pid.exists() and pid.read_text().strip())
    finally:
        child.kill()
        child.wait()
    program = int(pid.read_text())
    try:
        until(lambda: not running(program) and not [path for path in Path("/proc").glob("[0-9]*") if str(tmp_path) in words(path)])
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(program, signal.SIGKILL)


def words(process: Path) -> str:
    try:
        return (process / "cmdline").read_text(errors="replace")
    except OSError:
        return ""


def running(process: int) -> bool:
    """A zombie, whose parent is gone too, does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)
