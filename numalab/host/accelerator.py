# SPDX-License-Identifier: GPL-2.0-only
"""Which accelerator this host can use, determined by a test boot.

/dev/kvm may open, answer its API version and be advertised by libvirt, while a kernel started under it never
gets anywhere (seen with a KVM in software). So the lab boots a kernel under KVM, with a busybox that prints
one word, and uses KVM only when that word arrives. A slow host may take minutes: the boot is given up when
its console stays silent, not when it is late. Not here: what else a host may lack (maintenance.doctor).
"""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter

from numalab.core import checksum, state
from numalab.core.errors import BootHung, CommandFailed, DeadlinePassed, HostError
from numalab.core.log import note, step
from numalab.core.process import Deadline, ends_with_us, need
from numalab.host.domain import ICOUNT_SHIFT, TCG_MODEL, icount
from numalab.host.machine import USER_HZ, qemu_process
from numalab.host.remote import HERE, Where
from numalab.model.values import Accel, Clock, Stored, caveat, jsonable

PROBE_RULE = "by progress, of a kernel"
"""A part of what a probe is kept under. Change it with the rule by which a boot is called hung."""
SILENT_SECONDS = 90.0
"""A console that prints nothing for so long is a hang. Debian's kernel, which says nothing while it is
unpacked, was silent for 14 and 40 s on the slowest working KVM seen (make kvm, on a busy host)."""
PROBE_SECONDS = 600.0
"""The limit for a kernel that goes on printing: a panic loop, or a KVM too slow to be of use."""
EMULATED_SECONDS = 4.0
"""Processor time after which a silent QEMU is judged by where it was spent."""
LEAST_OUTSIDE_KERNEL = 0.05
"""The share of a QEMU's processor time that is not system time. Guest mode counts as user time. A KVM in
software, which interprets the guest in the host's kernel, had 0.1 %; one on emulated SVM 35 % and more."""
END = """
for process in /proc/[0-9]*; do
    tr '\\0' ' ' 2>/dev/null <"$process/cmdline" | grep -q -e "-uuid $1" && kill "${process#/proc/}"
done
true
"""
"""sh -c, with a UUID: ends the QEMU that has it, and what waits for that."""
END_SECONDS = 30.0
CLOCK_CPUS = 8
"""QEMU 7.2 stays where Linux starts the other CPUs, "x86: Booting SMP configuration"; since 8.1 the CPUs
share the budget of instructions between two events."""
WORD = "numalab: user space"
PASSING = (os.strerror(errno.ENOMEM), os.strerror(errno.EBUSY), f"{-signal.SIGKILL}: ")
"""Parts of a reason that may be gone soon: memory is short (QEMU says so, or the kernel killed it), or
another hypervisor has KVM. Such a result is not kept."""

INTERPRETER = b"/ld-"
"""A part of the interpreter's path, which the first page of a dynamically linked program has."""

S = TypeVar("S", bound=Stored)


class Probe(Stored):
    """The result of a probe, and why; cached by host kernel, QEMU version and guest kernel."""

    accel: Accel
    reason: str
    key: str


class ClockProbe(Stored):
    """Whether QEMU can count instructions with several CPUs, and why not; cached by QEMU version, and by
    guest kernel too where that may be why."""

    works: bool
    reason: str


QEMU = ("qemu-system-x86_64", "qemu-system-x86")
"""QEMU's x86-64 emulator, and the package that has it."""


def qemu_version(deadline: Deadline, where: Where = HERE) -> str:
    """QEMU's version as it prints it: '7.2.22'."""
    return (
        where.run([where.program(*QEMU), "--version"], deadline=deadline)
        .stdout.split("version ")[1]
        .split()[0]
        .rstrip(",")
    )


def choose(accel: str, kernel: Path, deadline: Deadline, where: Where = HERE) -> Probe:
    """The accelerator for `accel`: kvm, tcg or auto. HostError when KVM is required and does not boot."""
    if accel == "tcg":
        return Probe(accel=Accel.TCG, reason="asked for", key="")
    probe = _accelerator(kernel, deadline, where)
    if accel == "kvm" and probe.accel is not Accel.KVM:
        raise HostError(f"accelerator kvm: {probe.reason}; use tcg or auto", field="accelerator")
    return probe


def warn(probe: Probe, clock: Clock, who: str) -> None:
    """Log what a reader must know of measurements by them; nothing under KVM."""
    if about := caveat(probe.accel, clock):
        note(f"{about} (TCG: {probe.reason})", who=who)


def choose_clock(
    clock: Clock | None, accel: Accel, kernel: Path, deadline: Deadline, where: Where = HERE
) -> Clock:
    """The clock, checked; for None the virtual one if it is to be had. HostError when it is required and not
    to be had here."""
    if clock is Clock.HOST or (clock is None and accel is Accel.KVM):
        return Clock.HOST
    if accel is Accel.KVM:
        raise HostError(
            "clock virtual: KVM has the host's clock only; emulate, or use the host's", field="clock"
        )
    probe = virtual_clock(kernel, deadline, where)
    if probe.works:
        return Clock.VIRTUAL
    if clock is None:
        note(f"the host's clock, which its load disturbs: {probe.reason}")
        return Clock.HOST
    raise HostError(f"clock virtual: {probe.reason}", field="clock")


def virtual_clock(kernel: Path, deadline: Deadline, where: Where = HERE) -> ClockProbe:
    """Whether QEMU can count instructions with several CPUs: the cached result of a boot."""
    version = qemu_version(deadline, where)
    of_qemu = f"{where.ssh} {version} {PROBE_RULE}".strip()
    of_both = f"{of_qemu} {checksum.sha256(kernel)[:16]}"

    def probe() -> tuple[str, ClockProbe]:
        with step("virtual clock: do several CPUs boot under -icount?"):
            result, by_kernel = try_clock(kernel, version, deadline, where)
        return "" if passing(result.reason) else of_both if by_kernel else of_qemu, result

    return _cached("clock", ClockProbe, (of_both, of_qemu), probe, deadline)


def try_clock(kernel: Path, version: str, deadline: Deadline, where: Where = HERE) -> tuple[ClockProbe, bool]:
    """Boot `kernel` with CLOCK_CPUS CPUs that count instructions. Returns the result, and whether it may be
    this kernel's alone: one that ends before user space may panic with any clock, one that hangs hangs by it.
    """
    words = ["-accel", "tcg", "-cpu", TCG_MODEL, *icount(ICOUNT_SHIFT)]
    try:
        seconds = boot(kernel, words, deadline.within(PROBE_SECONDS), where, cpus=CLOCK_CPUS)
    except BootHung as error:
        why = f"with {CLOCK_CPUS} CPUs {error}"
    except DeadlinePassed:
        deadline.check("probing the virtual clock")
        why = f"{CLOCK_CPUS} CPUs do not reach user space in {PROBE_SECONDS:.0f} s"
    except CommandFailed as error:
        why = str(error).partition(": exit status ")[2]
        if not why:  # QEMU itself ended well
            return ClockProbe(
                works=False, reason=f"with {CLOCK_CPUS} CPUs that count instructions {error}"
            ), True
    else:
        return ClockProbe(
            works=True, reason=f"{CLOCK_CPUS} CPUs reached user space in {seconds:.1f} s"
        ), False
    return ClockProbe(
        works=False,
        reason=(
            f"QEMU {version} cannot count instructions with several CPUs ({why}): it takes QEMU 8.1 or later "
            "(on Debian 12: make setup QEMU=backports)"
        ),
    ), False


def passing(reason: str) -> bool:
    """Whether a probe's result may be another one soon."""
    return any(word in reason for word in PASSING)


def _accelerator(kernel: Path, deadline: Deadline, where: Where) -> Probe:
    """The cached result of a boot under KVM."""
    release = where.run(["uname", "-r"], deadline=deadline).stdout.strip()
    how = device(where, deadline)
    digest = checksum.sha256(kernel)[:16]
    key = f"{where.ssh} {release} {qemu_version(deadline, where)} {digest} {how} {PROBE_RULE}".strip()

    def probe() -> tuple[str, Probe]:
        with step("accelerator: does a kernel boot under KVM?"):
            accel, reason = try_kvm(kernel, deadline, where)
        return "" if passing(reason) else key, Probe(accel=accel, reason=reason, key=key)

    return _cached("accel", Probe, (key,), probe, deadline)


def _cached(
    name: str, kind: type[S], keys: Sequence[str], probe: Callable[[], tuple[str, S]], deadline: Deadline
) -> S:
    """A probe's result from cache/NAME.json by the first of `keys` that it has, else made, and kept by the
    key that comes with it, unless that is empty; concurrent callers wait for the one that makes it."""
    cache = state.folder("cache") / f"{name}.json"
    with state.lock(name, deadline):
        known = _read(cache, kind)
        for key in keys:
            if key in known:
                return known[key]
        key, result = probe()
        if not key:
            return result
        known[key] = result
        state.write(cache, json.dumps({each: jsonable(one) for each, one in known.items()}, indent=1))
    return result


def _read(cache: Path, kind: type[S]) -> dict[str, S]:
    """The cached probes; none, with a warning, when the file is damaged."""
    try:
        return TypeAdapter(dict[str, kind]).validate_json(cache.read_bytes())  # type: ignore[valid-type]
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        note(f"{cache} is damaged: what it kept is tried again")
        return {}


def device(where: Where, deadline: Deadline) -> str:
    """How we may use /dev/kvm: 'usable', 'closed' or 'none'."""
    if not where.ssh:
        return (
            "usable"
            if os.access("/dev/kvm", os.R_OK | os.W_OK)
            else "closed"
            if Path("/dev/kvm").exists()
            else "none"
        )
    script = (
        "test -e /dev/kvm || { echo none; exit; }; test -r /dev/kvm -a -w /dev/kvm && echo usable || echo"
        " closed"
    )
    return where.run(["sh", "-c", script], deadline=deadline).stdout.strip()


def try_kvm(kernel: Path, deadline: Deadline, where: Where = HERE) -> tuple[Accel, str]:
    """Boot `kernel` under KVM to user space. Returns the accelerator to use, and why."""
    how = device(where, deadline)
    if how == "none":
        return Accel.TCG, "there is no /dev/kvm (no virtualization, or the kvm module is not loaded)"
    if how == "closed":
        return Accel.TCG, "/dev/kvm may not be opened: join the group kvm (usermod -aG kvm YOU)"
    try:
        seconds = boot(kernel, ["-accel", "kvm", "-cpu", "host"], deadline.within(PROBE_SECONDS), where)
    except BootHung as error:
        return Accel.TCG, f"/dev/kvm opens, but {error}"
    except DeadlinePassed:
        deadline.check("probing the accelerator")
        return (
            Accel.TCG,
            f"/dev/kvm opens, but {kernel.name} does not reach user space under it in {PROBE_SECONDS:.0f} s",
        )
    except CommandFailed as error:
        return Accel.TCG, f"QEMU fails under KVM: {str(error).partition(': exit status ')[2] or error}"
    return Accel.KVM, f"{kernel.name} reached user space in {seconds:.1f} s"


class Progress(io.BytesIO):
    """What a probe's console printed. `check` raises BootHung when it has been silent for SILENT_SECONDS, or
    when a QEMU of this machine spent EMULATED_SECONDS of silence in the host's kernel."""

    def __init__(self, kernel: str, ident: str, proc: Path | None = Path("/proc")) -> None:
        """`ident` is the QEMU's UUID. `proc` is None for one on another machine, whose times are unknown."""
        super().__init__()
        self.kernel, self.ident, self.proc = kernel, ident, proc
        self._pid: int | None = None
        self._spoke()

    def write(self, data: Any) -> int:
        """Take output of the console."""
        self._spoke()
        return super().write(data)

    def check(self) -> None:
        """See the class."""
        silent = time.monotonic() - self._since
        outside, system = (now - then for now, then in zip(self._times(), self._begin, strict=True))
        if outside + system > EMULATED_SECONDS and outside < LEAST_OUTSIDE_KERNEL * (outside + system):
            raise BootHung(
                f"{self.kernel} prints nothing under it while QEMU spends its time in the host's kernel"
                f" ({system:.0f} of {outside + system:.0f} s), as with a KVM in software"
            )
        if silent > SILENT_SECONDS:
            raise BootHung(
                f"{self.kernel} prints nothing under it for {SILENT_SECONDS:.0f} s"
                f" ({outside + system:.0f} s of processor time)"
            )

    def _spoke(self) -> None:
        self._since, self._begin = time.monotonic(), self._times()

    def _times(self) -> tuple[float, float]:
        """User (with guest) and system seconds of the QEMU, from proc(5); zeros while they are unknown."""
        if self.proc is None:
            return 0.0, 0.0
        try:
            self._pid = self._pid or qemu_process(self.ident, self.proc)
            words = (self.proc / str(self._pid) / "stat").read_text().rpartition(")")[2].split()
            return int(words[11]) / USER_HZ, int(words[12]) / USER_HZ
        except (OSError, IndexError, ValueError):
            return 0.0, 0.0


def boot(
    kernel: Path,
    accel: Sequence[str],
    deadline: Deadline,
    where: Where = HERE,
    *,
    cpus: int = 2,
) -> float:
    """Boot a kernel with only busybox. Returns seconds until QEMU ended; raises when WORD did not come.

    The kernel prints all it can, from its first line on; BootHung when it falls silent (Progress).
    """
    progress = Progress(kernel.name, str(uuid.uuid4()), None if where.ssh else Path("/proc"))
    initrd = _initrd()
    there = where.push([kernel, initrd], deadline)
    words: list[str | Path] = [
        where.program(*QEMU),
        "-nodefaults",
        "-no-user-config",
        "-no-reboot",
        "-display",
        "none",
        "-serial",
        "stdio",
        "-m",
        "512",
        "-smp",
        str(cpus),
        *accel,
        "-kernel",
        there[kernel],
        "-initrd",
        there[initrd],
        "-append",
        "console=ttyS0 panic=-1 no_timer_check earlyprintk=ttyS0 ignore_loglevel",
        "-uuid",
        progress.ident,
    ]
    try:
        result = where.run(
            # It has no domain by which gc would find it after a kill -9.
            words if where.ssh else ends_with_us(words),
            deadline=deadline,
            watch=progress.check,
            out=progress,
        )
    except BootHung:
        if where.ssh:  # there it would go on until its timeout
            where.run(["sh", "-c", END, "sh", progress.ident], deadline=Deadline.after(END_SECONDS))
        raise
    if WORD not in result.stdout:
        raise CommandFailed(
            f"{kernel}: the kernel ended before user space: {result.stdout.strip()[-200:] or 'no output'}"
        )
    return result.seconds


def _initrd() -> Path:
    """The probes' initrd, in a file that is never half written: another lab.py's QEMU may be reading it."""
    path, content = state.folder("cache") / "probe.cpio", probe_cpio()
    if not path.exists() or path.read_bytes() != content:
        fresh = state.scratch(path)
        fresh.write_bytes(content)
        fresh.replace(path)
    return path


def probe_cpio() -> bytes:
    """An initramfs (cpio newc; see the kernel's early-userspace/buffer-format) that prints WORD and ends."""
    program = Path(need("busybox", "busybox-static"))
    busybox = program.read_bytes()
    if INTERPRETER in busybox[:4096]:
        raise HostError(
            f"{program}: needs shared libraries, which the probe's guest lacks: install busybox-static"
        )
    script = (
        f"#!/bin/busybox sh\n/bin/busybox echo '{WORD}' > /dev/console\n/bin/busybox reboot -f\n".encode()
    )
    entries = [
        ("bin", 0o040755, b"", 0),
        ("dev", 0o040755, b"", 0),
        ("dev/console", 0o020600, b"", (5 << 8) | 1),
        ("bin/busybox", 0o100755, busybox, 0),
        ("init", 0o100755, script, 0),
        ("TRAILER!!!", 0, b"", 0),
    ]
    out = bytearray()
    for inode, (name, mode, body, device) in enumerate(entries, 1):
        fields = [inode, mode, 0, 0, 1, 0, len(body), 0, 0, device >> 8, device & 0xFF, len(name) + 1, 0]
        out += b"070701" + b"".join(b"%08X" % value for value in fields) + name.encode() + b"\0"
        out += bytes(-len(out) % 4) + body
        out += bytes(-len(out) % 4)
    return bytes(out)
