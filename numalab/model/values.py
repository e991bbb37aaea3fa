# SPDX-License-Identifier: GPL-2.0-only
"""What all values are made from: the frozen base classes, checked names and lines, and one-line validation
errors.

Sizes are bytes (int) once parsed; in files and arguments they have a binary unit (512MiB, 500T). Not here:
values of one subject (topology, case, guest, run, verdict).
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

MOST_NAME = 40
"""Characters of a name."""
_NAME = re.compile(rf"[a-z0-9][a-z0-9._-]{{0,{MOST_NAME - 1}}}")


def check_name(text: str) -> str:
    """Check a name that reaches a path, XML or a command line; returns it. The only such check."""
    if not _NAME.fullmatch(text):
        raise ValueError(
            f"{text!r} is not a name: 1 to {MOST_NAME} of a-z 0-9 . _ - and first a letter or digit"
        )
    return text


Name = Annotated[str, BeforeValidator(lambda text: check_name(str(text)))]


def _printable(text: str) -> str:
    """Check a line that may go into XML, a table or a terminal."""
    if not text.isprintable():
        raise ValueError(f"{text!r} has characters that cannot be printed on one line")
    return text


Line = Annotated[str, AfterValidator(_printable)]


Seed = Annotated[int, Field(ge=0, lt=2**32)]
"""An experiment's or a boot's seed; QEMU's -seed takes 32 bits."""


class Value(BaseModel):
    """A frozen value; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


STORED = "stored"
"""The context in which stored data is validated: rules of what can be made today do not apply."""


class Stored(Value):
    """A value that is stored as JSON, with the number of its format.

    Another checkout may have written it. An earlier format is converted by `upgraded`; a later one is
    refused, and the file is left alone. A class whose format has changed sets the new number as the default
    of `format`.
    """

    format: int = 1

    @model_validator(mode="before")
    @classmethod
    def _known_format(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        number, newest = data.get("format", 1), cls.model_fields["format"].default
        if not isinstance(number, int) or number > newest:
            raise ValueError(
                f"format {number}: a newer numalab wrote it; this one reads formats up to {newest}"
            )
        return {**(cls.upgraded(data, number) if number < newest else data), "format": newest}

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read what was stored. Raises ValueError."""
        return cls.model_validate_json(text, context=STORED)

    @classmethod
    def upgraded(cls, data: dict[str, Any], number: int) -> dict[str, Any]:
        """Convert data of format `number` to the current format."""
        return data


class Accel(StrEnum):
    """What runs the guest's instructions."""

    KVM = "kvm"
    TCG = "tcg"


class Clock(StrEnum):
    """What the guest's clock follows."""

    HOST = "host"
    VIRTUAL = "virtual"
    """The instructions that its CPUs executed (QEMU's -icount), so that the host's load changes only the
    speed of disks that have none of their own (Disk.mibs_per_second)."""


def accel_label(accel: str, clock: str) -> str:
    """Accelerator and clock in a few words: kvm, tcg, tcg on a virtual clock."""
    return f"{accel} on a virtual clock" if clock == Clock.VIRTUAL else accel


def caveat(accel: str, clock: str) -> str:
    """What a reader must know of measurements by this accelerator and clock; '' for KVM."""
    if accel != Accel.TCG:
        return ""
    if clock == Clock.VIRTUAL:
        return "emulated on a virtual clock: times count instructions, whatever the host's load"
    return "emulated: times are no evidence, and counters depend on the host's load"


def times_are(accel: str, clock: str) -> str:
    """What times measured so are, in a few words; '' for KVM."""
    if accel != Accel.TCG:
        return ""
    return "instruction time" if clock == Clock.VIRTUAL else "emulated: no evidence"


class SizeClass(StrEnum):
    """How large a workload is: quick for two emulated cores, full as in the seed."""

    QUICK = "quick"
    FULL = "full"


class Phase(Value):
    """One step of a workload: a shell command in the guest between two snapshots of the counters."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")]
    command: str
    limit_seconds: Annotated[float, Field(gt=0)]
    measured: bool = True
    """Whether its counters are a result. Preparation is recorded too, but not shown as a result."""
    makes: str = ""
    """The path in the guest of the program that the command compiles. Such a phase is no part of a run: the
    program is made once for each image, and kept (see measure.programs)."""
    prepares: bool = False
    """Whether the phases so marked at a workload's beginning together leave nothing behind but what is on
    data disks, unmounted. With --prepared-disks they are no part of a run, measured or not: a guest of its
    own does them once (see measure.preparation)."""


def first_fault(error: ValidationError) -> tuple[list[str | int], str]:
    """The first wrong field, as its path of keys and indexes (without pydantic's function names), and why."""
    first = error.errors(include_url=False)[0]
    where = [part for part in first["loc"] if isinstance(part, int) or not part.startswith("function-")]
    return where, first["msg"].removeprefix("Value error, ")


def first_line(error: OSError | ValueError) -> str:
    """One line for an error: for a ValidationError the first wrong field and why."""
    if isinstance(error, ValidationError):
        where, reason = first_fault(error)
        return ": ".join(filter(None, (".".join(map(str, where)), reason)))
    return next(iter(str(error).splitlines()), type(error).__name__)


def jsonable(value: BaseModel) -> dict[str, Any]:
    """A value as plain JSON data."""
    return value.model_dump(mode="json")
