# SPDX-License-Identifier: GPL-2.0-only
"""The error classes and their exit statuses. An error is one line for a person: what, where, and what to do
about it.

Not here: printing them (cli, pytest_plugin), or concluding anything from runs (analysis.verdict).
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
    """The lab or the user's input is at fault: never a statement about a kernel.

    `evidence` is text for a reader who wants more than the line (a console's tail, a command's stderr).
    `field` is the parameter that is wrong, or whose change would help, under the name that the function which
    takes it gives it. A message that begins with the field writes spaces for its underscores (ssh port 22:
    …); `numalab.cli` shows the option instead.
    """

    status = Exit.LAB_ERROR

    def __init__(self, message: str, *, evidence: str = "", field: str = "") -> None:
        super().__init__(message)
        self.evidence = evidence
        self.field = field


class InputError(LabError):
    """A file or an argument that a person wrote is wrong; nothing was created."""


class NameTaken(InputError):
    """A guest of this name exists already."""


class HostError(LabError):
    """The host lacks something: libvirt, memory, disk, a port, a program."""


class NoRoom(HostError):
    """The host lacks memory for a guest."""


class BuildsGone(HostError):
    """The image or a kernel with which an experiment began is not there any more."""


class BadReadyState(HostError):
    """A ready state cannot be saved or restored, or what was restored does not answer."""


class CommandFailed(LabError):
    """A command on the host ended with a status other than 0."""


class DeadlinePassed(LabError):
    """A wait ended because its deadline passed."""


class Cancelled(LabError):
    """The user interrupted the command; clean up and exit."""

    status = Exit.CANCELLED


class GuestError(LabError):
    """A guest failed to do what the lab requested, and its console shows no oops."""


class BootHung(GuestError):
    """A boot hung: a guest's under emulation (guest.HUNG_SECONDS), or one that tries KVM
    (accelerator.Progress). Or a fault of the emulator ended it: an oops, or a failed assertion in QEMU."""


class GuestLost(GuestError):
    """The guest is gone or no longer answers, and its console shows no oops."""


class TopologyMismatch(GuestError):
    """The guest's topology is not the one requested; `evidence` shows requested and observed side by side."""


class KernelOops(LabError):
    """The guest's kernel panicked or oopsed: no lab error, no verdict, since a kernel "before" can crash."""

    status = Exit.KERNEL_CRASHED
