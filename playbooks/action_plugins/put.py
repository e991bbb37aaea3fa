# SPDX-License-Identifier: GPL-2.0-or-later
"""A file to a guest, without Python there.

Each module of Ansible's is a run of Python that compiles Ansible's library anew: seconds of an emulated
guest, and `copy` is several. Ansible loads this file into its own process and is GPL-3.0-or-later, hence "or
later" above. Not here: become and environment, which no play of the lab's sets.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    """`src`: a file of this machine. `dest`: its path in the guest, in a folder that is there. `mode`: 0600
    unless given. `creates`: a path in the guest; where it exists, nothing is done.

    Changed unless `dest` has this content already, or `creates` is there.
    """

    TRANSFERS_FILES = True
    _VALID_ARGS = frozenset({"src", "dest", "mode", "creates"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """See ActionBase."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        arguments = self._task.args
        if missing := {"src", "dest"} - arguments.keys():
            raise AnsibleActionFail(f"put needs {' and '.join(sorted(missing))}")
        src, mode = arguments["src"], arguments.get("mode", "0600")
        dest = self._remote_expand_user(arguments["dest"])
        if "creates" in arguments:
            there = self._low_level_execute_command(shlex.join(["test", "-e", arguments["creates"]]))
            if there["rc"] == 0:
                return result | {"changed": False}
        try:
            with Path(src).open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise AnsibleActionFail(f"{src}: {error.strerror}") from error
        seen = self._low_level_execute_command(shlex.join(["sha256sum", dest]))
        if seen["stdout"].split(" ")[0] == digest:
            return result | {"changed": False}
        if self._task.check_mode:
            return result | {"changed": True}
        part = f"{dest}.{os.getpid()}.part"
        self._connection.put_file(src, part)
        place = f"{shlex.join(['chmod', mode, part])} && {shlex.join(['mv', '-f', part, dest])}"
        done = self._low_level_execute_command(place)
        if done["rc"]:
            raise AnsibleActionFail(f"{dest}: {done['stderr'] or done['stdout']}")
        return result | {"changed": True}
