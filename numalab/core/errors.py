# SPDX-License-Identifier: GPL-2.0-only
"""The error tree. Every error is one line for a person: what, where, and what to do about it.

Here: the classes and their exit statuses. Not here: printing (cli, plugin) or deciding (judge).
"""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit statuses of lab.py, one for each outcome. docs/verdicts.md has the table."""

    HOLDS = 0
    DOES_NOT_HOLD = 1
    LAB_ERROR = 2
    CANNOT_TELL = 3
    KERNEL_CRASHED = 4
    EXEC_TIMED_OUT = 124
    EXEC_LAB_ERROR = 125
    CANCELLED = 130


class LabError(Exception):
    """Ours to mend, or the user's input: never a statement about a kernel.

    `evidence` is text for a reader who wants more than the line (a console's tail, a command's stderr).
    `field` is what was asked for and is wrong, or would mend it, by the name of the parameter that takes it
    on the command line. A message that begins with it has words for its underscores (ssh port 22: …);
    `numalab.cli` shows the option.
    """

    status = Exit.LAB_ERROR

    def __init__(self, message: str, *, evidence: str = "", field: str = "") -> None:
        super().__init__(message)
        self.evidence = evidence
        self.field = field


class InputError(LabError):
    """A file or an argument that a person wrote is wrong; nothing was created."""


class NameTaken(InputError):
    """A guest of this name is there."""


class HostError(LabError):
    """The host lacks something: libvirt, memory, disk, a port, a program."""


class CommandFailed(LabError):
    """A command on the host ended with a status other than 0."""


class DeadlinePassed(LabError):
    """A wait ended because its deadline passed."""


class Cancelled(LabError):
    """Somebody asked us to stop; clean up and go."""

    status = Exit.CANCELLED


class GuestError(LabError):
    """A guest did not do what was asked of it, and its console shows no oops."""


class BootHung(GuestError):
    """An emulated guest printed nothing more and never answered (guest.HUNG_SECONDS), or oopsed by the
    emulator's fault."""


class GuestLost(GuestError):
    """The guest is gone or answers no more, and its console shows no oops."""


class TopologyMismatch(GuestError):
    """The guest is not the machine that was asked for; `evidence` sets both side by side."""


class KernelOops(LabError):
    """The guest's kernel panicked or oopsed: neither a lab error nor a verdict, since a kernel "before" can
    crash too."""

    status = Exit.KERNEL_CRASHED
