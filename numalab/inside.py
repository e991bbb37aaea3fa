"""Runs inside the guest, alone: one phase of a workload between two snapshots of the kernel's counters.

Reads a JSON object on standard input: {"command": shell command, "files": [globs], "limit": seconds}.
Prints one: {"before": {path: text}, "after": …, "status", "elapsed", "user", "system", "stdout",
"stderr", "timed_out", "load"}. Standard library only; nothing of numalab is in the guest. The snapshots
are taken right at the command's edges, so that neither SSH nor this interpreter's start is counted.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

KEEP = 256 * 1024  # bytes of each stream that come back: its end


def snapshot(patterns: list[str]) -> dict[str, str]:
    """The text of every file that the patterns match; one that vanishes meanwhile is left out."""
    found = {}
    for path in sorted(name for pattern in patterns for name in glob.glob(pattern)):  # noqa: PTH207
        try:
            with open(path) as handle:  # noqa: PTH123
                found[path] = handle.read()
        except OSError:
            continue
    return found


def main() -> None:
    """One phase."""
    about = json.load(sys.stdin)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        before = snapshot(about["files"])
        start = time.monotonic()
        child = subprocess.Popen(["/bin/sh", "-c", about["command"]], stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True)
        timed_out = False

        def end(_signal: int, _frame: object) -> None:
            nonlocal timed_out
            timed_out = True
            with contextlib.suppress(ProcessLookupError):  # it ended in this very moment
                os.killpg(child.pid, signal.SIGKILL)

        signal.signal(signal.SIGALRM, end)
        signal.setitimer(signal.ITIMER_REAL, about["limit"])
        # wait4 counts what the command and all children that it waited for used.
        _, status, usage = os.wait4(child.pid, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        elapsed = time.monotonic() - start
        after = snapshot(about["files"])
        streams = []
        for stream in (out, err):
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - KEEP))
            streams.append(stream.read().decode(errors="replace"))
    json.dump(
        {
            "before": before, "after": after, "status": os.waitstatus_to_exitcode(status), "elapsed": elapsed,
            "user": usage.ru_utime, "system": usage.ru_stime, "stdout": streams[0], "stderr": streams[1],
            "timed_out": timed_out, "load": os.getloadavg()[0],
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main()
