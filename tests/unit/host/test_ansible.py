# SPDX-License-Identifier: GPL-2.0-only
"""Ansible's inventory: every ready guest, reached with the same options as lab.py uses."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from numalab.core import paths, process, state
from numalab.core.errors import Cancelled, CommandFailed, DeadlinePassed, HostError
from numalab.core.process import Deadline
from numalab.host import ansible
from numalab.host.ssh import Ssh
from tests.unit.makers import running, until


def hosts(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = read(path.read_text())["guests"]["hosts"]
    return found


def read(text: str) -> dict[str, Any]:
    """Parse YAML with Ansible's tag for a text that is no template."""
    yaml = YAML(typ="safe", pure=True)
    yaml.constructor.add_constructor("!unsafe", lambda constructor, node: constructor.construct_scalar(node))
    found: dict[str, Any] = yaml.load(text)
    return found


@pytest.mark.parametrize("via", ["", "me@hypervisor:2022"])
def test_inventory(via: str, tmp_path: Path, program: Callable[[str, str], Path]) -> None:
    program("ssh", "exit 255")
    guests = [
        Ssh(guest=name, port=port, key=tmp_path / "key", known_hosts=tmp_path / name, via=via)
        for name, port in (("a", 2001), ("b", 2002))
    ]
    path = ansible.write_inventory(guests)
    assert path == ansible.inventory_path()
    found = hosts(path)
    assert list(found) == ["a", "b"]
    assert (found["b"]["ansible_host"], found["b"]["ansible_port"], found["b"]["ansible_user"]) == (
        "127.0.0.1",
        2002,
        "root",
    )
    # Ansible splits them with shlex (ansible.plugins.connection.ssh).
    assert shlex.split(found["b"]["ansible_ssh_common_args"]) == guests[1].options()
    assert not path.with_suffix(".new").exists()


def test_no_guests() -> None:
    assert hosts(ansible.write_inventory([])) == {}


def test_ansible_is_named_when_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HostError, match="ansible-playbook is not installed: make setup"):
        ansible.ansible("ansible-playbook")
    (tmp_path / "ansible-playbook").touch()
    (tmp_path / "ansible-playbook").chmod(stat.S_IRWXU)
    assert ansible.ansible("ansible-playbook") == str(tmp_path / "ansible-playbook")


HEAD = """
- hosts: all
  connection: local
  gather_facts: false
  tasks:
"""
WAIT = """
- hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - ansible.builtin.command: sh -c 'echo $$ > {pid}; sleep 300; true'
"""
DRIVER = """
from pathlib import Path
from numalab.core import paths
from numalab.host import ansible
from numalab.core.process import Deadline
paths.ROOT = Path("{place}")
ansible.playbook("wait.yml", inventories=[], limit="localhost", variables={{}}, deadline=Deadline.after(120), log=Path("{place}/log"))
"""


def test_a_play_ends_with_a_lab_that_is_killed(tmp_path: Path) -> None:
    """After kill -9 nobody cleans up: ansible-playbook, its worker and program (make) must end themselves."""
    (tmp_path / "playbooks").mkdir()
    pid = tmp_path / "pid"
    (tmp_path / "playbooks" / "wait.yml").write_text(WAIT.format(pid=pid))
    child = subprocess.Popen([sys.executable, "-c", DRIVER.format(place=tmp_path)])
    try:
        until(lambda: pid.exists() and pid.read_text().strip())
    finally:
        child.kill()
        child.wait()
    assert_all_end(pid)


def assert_all_end(pid: Path) -> None:
    """The program of WAIT ends, and so does each process that names its folder."""
    program = int(pid.read_text())
    try:
        until(
            lambda: (
                not running(program)
                and not [path for path in Path("/proc").glob("[0-9]*") if str(pid.parent) in words(path)]
            )
        )
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(os.getpgid(program), signal.SIGKILL)  # its worker's session


def words(process: Path) -> str:
    try:
        return (process / "cmdline").read_text(errors="replace")
    except OSError:
        return ""


def play(
    place: Path,
    text: str,
    *,
    hosts: str = "localhost",
    deadline: Deadline | None = None,
    watch: Callable[[], None] | None = None,
) -> ansible.Recap:
    """Run a playbook of this text; its log is `place`/log."""
    (place / "play.yml").write_text(text)
    (place / "hosts").write_text(hosts)
    return ansible.playbook(
        str(place / "play.yml"),
        inventories=[place / "hosts"],
        limit="all",
        variables={"ansible_python_interpreter": sys.executable},
        deadline=deadline or Deadline.after(120),
        log=place / "log",
        watch=watch,
    )


class Stop(Exception):
    """What `watch` raises here."""


@pytest.mark.parametrize(
    ("by", "error"), [("deadline", DeadlinePassed), ("cancel", Cancelled), ("watch", Stop)]
)
def test_nothing_of_a_play_outlives_its_wait(
    by: str, error: type[Exception], tmp_path: Path, lab_state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ansible's workers are in sessions of their own: only ansible-playbook itself can end their programs."""
    pid = tmp_path / "pid"
    deadline = Deadline.after(120)

    def look() -> None:
        if not (pid.exists() and pid.read_text().strip()):
            return
        if by == "watch":
            raise Stop
        if by == "cancel":
            deadline.cancel.set()
        else:
            monkeypatch.setattr(Deadline, "remaining", lambda _: 0.0)

    with pytest.raises(error):
        play(tmp_path, WAIT.format(pid=pid), deadline=deadline, watch=look)
    assert_all_end(pid)
    assert not list((lab_state / "cache").iterdir())


def test_a_play_writes_its_temporary_files_into_the_state(tmp_path: Path, lab_state: Path) -> None:
    """So that gc finds those of a play that was killed."""
    tasks = """
    - ansible.builtin.command: python3 -c 'import os, tempfile; print(os.path.realpath(tempfile.gettempdir()))'
      register: told
    - ansible.builtin.copy: {content: "{{ told.stdout }}", dest: "%s/told", mode: "0600"}
"""
    play(tmp_path, HEAD + tasks % tmp_path)
    told = Path((tmp_path / "told").read_text())
    assert told.parent == lab_state / "cache"
    assert told.name.startswith(f".making-{state.this_process()}-")
    assert not told.exists()


def test_the_recap_is_that_of_all_hosts(tmp_path: Path) -> None:
    tasks = """
    - ansible.builtin.command: echo a
    - ansible.builtin.debug:
    - ansible.builtin.debug:
      when: inventory_hostname == "b"
    - ansible.builtin.command: echo {{ 1 / 0 }}
      ignore_errors: true
"""
    recap = play(tmp_path, HEAD + tasks, hosts="a\nb\n")
    assert (recap.ok, recap.changed) == (7, 2)
    log = recap.log.read_bytes()
    assert b"PLAY RECAP" in log
    assert b"\x1b" not in log


SHELL = "ansible.builtin.shell:"
FAILED = (
    "non-zero return code"
    if tuple(map(int, metadata.version("ansible-core").split(".")[:2])) < (2, 21)
    else "The command exited with a non-zero return code."
)
FAILURES = {
    "stderr": (
        f"""
    - ansible.builtin.debug:
    - name: Apply {{{{ 1 + 1 }}}} patches
      {SHELL} "echo out; echo 'refused: 0003.patch' >&2; echo 'fatal: [x]: => {{' >&2; exit 3"
""",
        ("Apply 2 patches: refused: 0003.patch", "refused: 0003.patch\nfatal: [x]: => {"),
    ),
    "no output": (
        """
    - ansible.builtin.command: "false"
""",
        (f"ansible.builtin.command: {FAILED}", FAILED),
    ),
    "a loop": (
        f"""
    - name: Loop
      {SHELL} "echo {{{{ item }}}} failed >&2; test {{{{ item }}}} = a"
      loop: [a, b, c]
""",
        ("Loop: b failed", "b failed"),
    ),
    "after one that may fail": (
        f"""
    - name: May fail
      {SHELL} "echo early >&2; exit 1"
      ignore_errors: true
    - name: Must not
      {SHELL} "echo late >&2; exit 1"
""",
        ("Must not: late", "late"),
    ),
    "a handler": (
        f"""
    - ansible.builtin.command: "true"
      notify: Restart
  handlers:
    - name: Restart
      {SHELL} "echo no restart >&2; exit 1"
""",
        ("Restart: no restart", "no restart"),
    ),
    "no module": (
        """
    - name: Say
      ansible.builtin.debug:
        msg: "{{ nowhere }}"
""",
        ("Say: ", "'nowhere' is undefined"),
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_names_its_task_and_what_the_program_wrote(name: str, tmp_path: Path) -> None:
    tasks, (message, evidence) = FAILURES[name]
    with pytest.raises(CommandFailed) as caught:
        play(tmp_path, HEAD + tasks)
    assert str(caught.value).startswith(f"{tmp_path}/play.yml: {message}")
    assert str(caught.value).endswith(f" (all of it: {tmp_path}/log)")
    assert evidence in caught.value.evidence
    if name != "no module":
        assert caught.value.evidence == evidence


def test_a_failure_names_a_host_that_is_not_this_one(tmp_path: Path) -> None:
    far = "far ansible_connection=ssh ansible_host=127.0.0.1 ansible_port=1"
    tasks = "    - {name: Look, ansible.builtin.command: 'true'}\n"
    with pytest.raises(CommandFailed, match=r"play\.yml on far: Look: .*(refused|reached|UNREACHABLE)"):
        play(tmp_path, (HEAD + tasks).replace("  connection: local\n", ""), hosts=far)


def test_output_that_is_no_utf8_can_be_printed(tmp_path: Path) -> None:
    tasks = rf"""
    - name: Odd
      {SHELL} "printf '\\377' >&2; exit 1"
"""
    with pytest.raises(CommandFailed, match="Odd: ") as caught:
        play(tmp_path, HEAD + tasks)
    str(caught.value).encode()
    caught.value.evidence.encode()


def test_a_playbook_that_ansible_cannot_read(tmp_path: Path) -> None:
    """No task failed: the error has what Ansible printed."""
    with pytest.raises(CommandFailed, match=f"exit status 4: .*{tmp_path}/log") as caught:
        play(tmp_path, HEAD + "    - nothing_of_that_name:\n")
    assert "couldn't resolve module/action 'nothing_of_that_name'" in caught.value.evidence


@pytest.mark.parametrize(
    ("status", "error", "message"),
    [
        (0, HostError, "Ansible ended without a recap"),
        (1, CommandFailed, "play.yml on a: Write: No space left on device"),
    ],
)
def test_events_that_lack_their_end(
    status: int,
    error: type[Exception],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    program: Callable[[str, str], Path],
) -> None:
    line = json.dumps(
        {"host": "a", "task": "Write", "stderr": "", "msg": "", "stdout": "No space left on device"}
    )
    path = program("play", f"printf '%s' '{line}\n{{\"rec' > $NUMALAB_EVENTS; exit {status}")
    monkeypatch.setattr(ansible, "ansible", lambda _: str(path))
    with pytest.raises(error, match=message):
        play(tmp_path, "")


ODD = [
    "",
    "plain",
    "it's",
    'say "x"',
    "{{ 1 + 1 }}",
    "{% raw %}",
    "a: b # c",
    "- x",
    "@file",
    "!vault x",
    "é ☃",
    "a\nb\n",
    "\t",
    "\\n",
    "yes",
    "1",
    "null",
    "w" * 500,
    " lead and trail ",
    "a\u2028b\x85c",
]


def test_literals_are_the_texts_that_were_given() -> None:
    given = {
        "text": ODD,
        "mapping": dict.fromkeys(ODD, "v"),
        "deep": [{"a": ({"b": ["{{ 1 }}"]},)}],
        "number": 7,
        "no": False,
        "none": None,
    }
    assert read(ansible.literals(given)) == given | {"deep": [{"a": [{"b": ["{{ 1 }}"]}]}]}


def test_every_text_is_marked() -> None:
    text = ansible.literals({"a": "x", "b": ["x", {"x": "x"}], "c": 7})
    assert text.count('!unsafe "x"') == text.count("x") == 4


PLAY = """- hosts: all
  gather_facts: false
  roles: [tuning]
  tasks:
    - name: What the other roles do with a variable
      ansible.builtin.copy:
        content: "WORDS={{ bootloader_cmdline | quote }} {{ kernel_packages | join(',') }} {{ empty | length }} {{ nested }}"
        dest: "{{ kernel_out }}"
        mode: "0600"
    - name: What reaches the connection
      ansible.builtin.copy:
        content: "{{ ansible_ssh_common_args }}"
        dest: "{{ kernel_out }}.args"
        mode: "0600"
"""


def test_nothing_is_ever_a_template(
    tmp_path: Path, deadline: Deadline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tuning role runs with a script that records its arguments; evaluated text would make a file."""
    lure, keys, out, words = tmp_path / "lure", tmp_path / "keys", tmp_path / "out", tmp_path / "words"
    template = f"{{{{ lookup('pipe', 'touch {lure}') }}}}"
    key_template = f"{{{{ lookup('pipe', 'touch {keys}') }}}}"
    shutil.copytree(paths.ROOT / "playbooks/roles/tuning", tmp_path / "roles/tuning")
    (tmp_path / "roles/tuning/files/tune.sh").write_text(f"printf '%s\\n' \"$@\" > {words}\n")
    (tmp_path / "play.yml").write_text(PLAY)

    guest = Ssh(
        guest="g", port=2001, key=tmp_path / "key", known_hosts=tmp_path / "hosts", via=f"me@{template}"
    )
    monkeypatch.setattr(Ssh, "options", lambda _: ["-o", f"ProxyCommand={template}"])
    inventory = ansible.write_inventory([guest])
    variables: dict[str, object] = {
        "tuning_sysctls": {f"a.{key_template}": template, "b": "{% raw %}"},
        "tuning_knobs": {key_template: f"1 {template}"},
        "bootloader_cmdline": f"quiet {template}",
        "kernel_packages": ["gcc", template],
        "nested": {key_template: [template]},
        "empty": "",
        "kernel_out": str(out),
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
    }
    recap = ansible.playbook(
        str(tmp_path / "play.yml"),
        inventories=[inventory],
        limit="g",
        variables=variables,
        deadline=deadline,
        log=tmp_path / "log",
    )
    assert recap.ok == 3
    assert not lure.exists()
    assert not keys.exists()
    assert words.read_text().splitlines() == [
        f"sysctl:a.{key_template}={template}",
        "sysctl:b={% raw %}",
        f"knob:{key_template}=1 {template}",
    ]
    assert out.read_text().startswith(f"WORDS={shlex.quote(f'quiet {template}')} gcc,{template} 0 ")
    assert shlex.split(out.with_name("out.args").read_text()) == ["-o", f"ProxyCommand={template}"]


def test_tasks_are_counted_as_ansible_counts_them(deadline: Deadline) -> None:
    words = [ansible.ansible("ansible-playbook"), "--list-tasks", str(paths.ROOT / "playbooks/guest.yml")]
    listed = process.run(words, deadline=deadline, env=ansible.ENVIRONMENT).stdout.splitlines()
    assert ansible.tasks("guest.yml") == sum(line.startswith("      ") for line in listed) > 1


def test_who_runs_ansible() -> None:
    """Only these modules run Ansible's programs, and all their variables go through `literals`."""
    users = {
        str(path.relative_to(paths.PACKAGE))
        for path in paths.PACKAGE.rglob("*.py")
        if 'ansible("' in path.read_text()
    }
    assert users == {"host/ansible.py", "host/image.py", "kernel/toolchain.py", "maintenance/doctor.py"}
