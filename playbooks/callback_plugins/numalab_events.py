# SPDX-License-Identifier: GPL-2.0-or-later
"""A play's failures and its recap as lines of JSON, for numalab.host.ansible.

Ansible loads this file into its own process and is GPL-3.0-or-later, hence "or later" above.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: numalab_events
type: notification
short_description: Failed tasks and the recap as lines of JSON
description:
  - Appends one line for each task that failed on a host, and one with the counts of all hosts at the end.
options:
  path:
    description: The file that the lines are appended to.
    required: true
    type: path
    env:
      - name: NUMALAB_EVENTS
"""
TEXTS = ("stderr", "msg", "stdout")


class CallbackModule(CallbackBase):
    """Runs beside the callback that prints, and only where ANSIBLE_CALLBACKS_ENABLED names it."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "numalab_events"
    CALLBACK_NEEDS_ENABLED = True

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """A task failed."""
        if not ignore_errors:
            self._failed(result)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """A host did not answer."""
        if not attribute(result, "task").ignore_unreachable:
            self._failed(result)

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """The play ended by itself."""
        self._append({"recap": {host: stats.summarize(host) for host in stats.processed}})

    def _failed(self, result: Any) -> None:
        values = attribute(result, "result")
        # A loop's own message says no more than that items failed.
        items = [item for item in values.get("results") or [] if isinstance(item, dict)]
        values = next((item for item in items if failed(item)), values)
        texts = {name: str(values.get(name) or "").strip() for name in TEXTS}
        # What was no UTF-8 comes as surrogates, which nobody can print.
        texts = {name: text.encode(errors="replace").decode() for name, text in texts.items()}
        self._append({"host": attribute(result, "host").get_name(), "task": result.task_name, **texts})

    def _append(self, event: dict[str, Any]) -> None:
        with Path(self.get_option("path")).open("a", encoding="utf-8") as file:
            file.write(json.dumps(event) + "\n")


def failed(item: dict[str, Any]) -> bool:
    """Whether an item of a loop failed: ansible-core 2.21 and later leave the first two keys out."""
    return bool(item.get("failed") or item.get("unreachable") or item.get("exception"))


def attribute(result: Any, name: str) -> Any:
    """The result's host, task or result: _NAME before ansible-core 2.19; later ones ask for NAME."""
    return getattr(result, name) if hasattr(result, name) else getattr(result, f"_{name}")
