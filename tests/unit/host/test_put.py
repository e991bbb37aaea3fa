# SPDX-License-Identifier: GPL-2.0-only
"""playbooks/action_plugins/put.py, by Ansible itself, over a connection to this machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from numalab.core import paths
from numalab.core.process import Deadline, run
from numalab.host import ansible

STEPS = {
    "new": {"src": "FROM/a", "dest": "TO/a"},
    "again": {"src": "FROM/a", "dest": "TO/a"},
    "other": {"src": "FROM/b", "dest": "TO/a", "mode": "0640"},
    "there": {"src": "FROM/none", "dest": "TO/b", "creates": "TO/a"},
    "named": {"src": "FROM/it's b", "dest": "TO/it's; b", "creates": "TO/none"},
    "no source": {"src": "FROM/none", "dest": "TO/c"},
    "no folder": {"src": "FROM/a", "dest": "TO/none/a"},
    "no dest": {"src": "FROM/a"},
    "unknown": {"src": "FROM/a", "dest": "TO/c", "owner": "root"},
}


def test_put(tmp_path: Path, deadline: Deadline) -> None:
    """All steps in one play, since each play takes a second."""
    source, target, out = tmp_path / "from", tmp_path / "to", tmp_path / "out"
    source.mkdir()
    target.mkdir()
    for name in ("a", "b", "it's b"):
        (source / name).write_text(f"content of {name}\n")
    tasks: list[dict[str, object]] = []
    for number, (name, options) in enumerate(STEPS.items()):
        given = {
            key: text.replace("FROM", str(source)).replace("TO", str(target)) for key, text in options.items()
        }
        tasks.append({"name": name, "put": given, "register": f"step{number}", "ignore_errors": True})
    results = " | ".join(["{}", *(f"combine({{'{number}': step{number}}})" for number in range(len(STEPS)))])
    tasks.append({"ansible.builtin.copy": {"content": f"{{{{ {results} | to_json }}}}", "dest": str(out)}})
    play = tmp_path / "play.yml"
    play.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
    interpreter = f"ansible_python_interpreter={sys.executable}"
    words = [ansible.ansible("ansible-playbook"), "-i", "here,", "-c", "local", "-e", interpreter, str(play)]
    plugins = paths.ROOT / "playbooks/action_plugins"
    env = ansible.ENVIRONMENT | {
        "ANSIBLE_ACTION_PLUGINS": str(plugins),
        "ANSIBLE_LOCAL_TEMP": str(tmp_path / "ansible"),
        "ANSIBLE_REMOTE_TEMP": str(tmp_path / "remote"),
    }
    run(words, deadline=deadline, env=env)

    done = dict(zip(STEPS, json.loads(out.read_text()).values(), strict=True))
    changed = {name: result["changed"] for name, result in done.items() if not result["failed"]}
    assert changed == {"new": True, "again": False, "other": True, "there": False, "named": True}
    assert (target / "a").read_text() == "content of b\n"
    assert (target / "a").stat().st_mode & 0o777 == 0o640
    assert (target / "it's; b").read_text() == "content of it's b\n"
    assert (target / "it's; b").stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in target.iterdir()) == ["a", "it's; b"], "nothing is left in part"
    errors = {name: result["msg"] for name, result in done.items() if result["failed"]}
    assert list(errors) == ["no source", "no folder", "no dest", "unknown"]
    assert f"{source}/none: No such file or directory" in errors["no source"]
    assert "put needs dest" in errors["no dest"]
    assert "owner" in errors["unknown"]
