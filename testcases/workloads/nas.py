"""NAS parallel benchmarks with OpenMP and unbound threads: our own EP, IS, CG, MG and LU, or a user's NPB 3.x.

Source: stagger-1378447598.txt and nodirty-09a913a7.txt (class D; data on btrfs and on XFS). Ours are written from the
specification, The NAS Parallel Benchmarks, RNR-94-007, and checked against its published results (nas.*.c, nas.h). Where
LAB_NPB names a tarball of NPB 3.x, its OpenMP programs are built in the guest and run instead. A result that does not
verify fails its phase.

`data` is the file system on the disk `data` that the programs lie on and run in. nodirty's seed has them "backed by
btrfs, the default root filesystem for some distributions", and by XFS; it does not say which of their pages were dirty
(libraries and files, we think). `mapped` is ours: it puts our programs' arrays in a file there, mapped MAP_SHARED, so that
they are dirty file pages themselves.
"""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import Field

from numalab.core.errors import InputError
from numalab.model import Phase, SizeClass, Value
from numalab.workload import compile_c, mounted, user_tarball

VARIABLE = "LAB_NPB"
DISK = "/dev/disk/by-id/virtio-data"
FOLDER = "/root/nas"
TARBALL = "/root/npb.tar"
NPB_OPTIONS = "-O2 -fopenmp -mcmodel=medium"
"""medium: the static arrays of class C and D are beyond 2 GiB."""
MAKE_DEF = f"""\
FC = gfortran
F77 = $(FC)
FLINK = $(FC)
FFLAGS = {NPB_OPTIONS} -std=legacy -fallow-invalid-boz
FLINKFLAGS = $(FFLAGS)
CC = gcc
CLINK = gcc
C_LIB = -lm
CFLAGS = {NPB_OPTIONS}
CLINKFLAGS = $(CFLAGS)
UCC = gcc
BINDIR = ../bin
RAND = randi8
WTIME = wtime.c
"""
"""config/make.def of NPB 3.3 and 3.4. What gfortran 10 and later refuse of 3.3: arguments of another type (legacy), and in
common/randi8.f the constant X'00003FFFFFFFFFFF', which ought to be Z'…' (invalid-boz)."""
OMP = r"(\./)?([^/]+/){0,2}NPB3[^/]*-OMP(/|$)"
"""A member of the tarball in NPB's OpenMP folder, which `_unpack` looks for as deep."""


class Program(StrEnum):
    """A phase each, in the seed's order."""

    BT = "bt"
    CG = "cg"
    EP = "ep"
    IS = "is"
    LU = "lu"
    MG = "mg"
    SP = "sp"
    UA = "ua"


OURS = (Program.CG, Program.EP, Program.IS, Program.LU, Program.MG)


class NasClass(StrEnum):
    """How large a problem is."""

    S = "S"
    W = "W"
    A = "A"
    B = "B"
    C = "C"
    D = "D"


class Data(StrEnum):
    """What the programs lie on and run in."""

    ROOT = "root"
    BTRFS = "btrfs"
    XFS = "xfs"


class Params(Value):
    """Programs (None: all that there are), their class, where they run, whose they are, the limit of one."""

    programs: Annotated[tuple[Program, ...], Field(min_length=1)] | None = None
    nas_class: NasClass
    data: Data = Data.ROOT
    mapped: bool = False
    huge: bool
    tarball: str = Field(default_factory=lambda: os.environ.get(VARIABLE, ""))
    seconds: Annotated[float, Field(gt=0)]


PARAMS = {
    # Half a minute for all on two emulated cores. Base pages, since there are too few huge ones to count.
    SizeClass.QUICK: Params(programs=(Program.CG, Program.IS, Program.MG), nas_class=NasClass.W, huge=False, seconds=300),
    # The seeds'. Huge pages as the kernel likes: their tables count them.
    SizeClass.FULL: Params(nas_class=NasClass.D, huge=True, seconds=4 * 3600),
}


def files(params: Params) -> dict[str, Path]:
    """The user's tarball, when one is named. Raises InputError when it is not there, is cut off or is no NPB."""
    if not params.tarball:
        return {}
    lacking = "there is no folder NPB3.x-OMP in it; NPB's site has 3.3.1 and 3.4 with it"
    return {TARBALL: user_tarball("nas", VARIABLE, params.tarball, OMP, lacking)}


def phases(params: Params) -> tuple[Phase, ...]:
    """The place, the programs built there, and each one run. Raises InputError for programs that nobody has, and as `files`."""
    files(params)  # before a guest is booted for it
    programs = params.programs or (tuple(Program) if params.tarball else OURS)
    missing = [program for program in programs if program not in OURS]
    if missing and not params.tarball:
        raise InputError(f"nas: {missing[0]} is none of ours ({', '.join(OURS)}): set {VARIABLE} to a tarball of NPB 3.x, which has it")
    if params.mapped and (params.tarball or params.data is Data.ROOT):
        raise InputError("nas: mapped is for our own programs, and needs data: btrfs or xfs")
    make = f"mkdir -p {FOLDER}"
    if params.data is not Data.ROOT:
        make = mounted(params.data, DISK, FOLDER)
    steps = [Phase(name="mkfs", command=make, limit_seconds=300, measured=False)]
    steps += [_unpack()] if params.tarball else []
    if params.tarball and not params.huge:  # ours see to it themselves
        base_pages = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
        steps.append(Phase(name="base-pages", command=base_pages, limit_seconds=60, measured=False))
    for program in programs:
        steps.append(_built(program, params.nas_class) if params.tarball else _compiled(program))
    for program in programs:
        run = _theirs(program, params.nas_class) if params.tarball else f"./{program} {params.nas_class} {int(params.huge)}"
        arrays = " arrays" if params.mapped else ""
        steps.append(Phase(name=program, command=f"cd {FOLDER} && export OMP_PROC_BIND=false && {run}{arrays}", limit_seconds=params.seconds))
    return tuple(steps)


def _compiled(program: Program) -> Phase:
    return compile_c(Path(__file__).with_suffix(f".{program}.c"), f"{FOLDER}/{program}", "-fopenmp", "-lm")


def _unpack() -> Phase:
    """The tarball's NPB3.x-OMP becomes FOLDER/npb."""
    command = (
        "command -v gfortran make >/dev/null || { echo 'nas: NPB needs gfortran and make in the guest' >&2; exit 1; }; "
        f"cd {FOLDER} && tar -xf {TARBALL} && found=$(find . -maxdepth 3 -type d -name 'NPB3*-OMP' | head -n 1) && "
        "{ [ -n \"$found\" ] || { echo 'nas: there is no NPB3.x-OMP in the tarball' >&2; exit 1; }; } && "
        f"mv \"$found\" npb && mkdir -p npb/bin && cat > npb/config/make.def <<'NUMALAB_EOF'\n{MAKE_DEF}NUMALAB_EOF"
    )
    return Phase(name="unpack", command=command, limit_seconds=600, measured=False)


def _built(program: Program, nas_class: NasClass) -> Phase:
    return Phase(name=f"build-{program}", command=f"make -C {FOLDER}/npb {program} CLASS={nas_class} >&2", limit_seconds=1800, measured=False)


def _theirs(program: Program, nas_class: NasClass) -> str:
    """NPB ends with status 0 whatever came out: its words decide. It calls its programs cg.D.x, older ones cg.D."""
    out = f"{program}.out"
    return (
        f"binary=$(ls npb/bin/{program}.{nas_class}* | head -n 1) && \"$binary\" > {out} || {{ tail {out} >&2; exit 1; }}; "
        f"grep -Eiq 'verification *= *successful' {out} || {{ grep -i verification {out} >&2; echo 'nas: not verified' >&2; exit 1; }}; "
        f"awk -F '= *' '/Mop.s total/ {{print \"numalab: mops_per_second \" $2 + 0}} "
        f"/Time in seconds/ {{print \"numalab: timed_seconds \" $2 + 0}}' {out}"
    )
