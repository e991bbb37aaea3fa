# SPDX-License-Identifier: GPL-2.0-only
"""Runs a workload in a guest: its phases in order, counters before and after each, everything recorded.

A workload is one file, testcases/workloads/NAME.py, with a docstring, PARAMS (a pydantic value for each
SizeClass), `phases(params)` and, where the guest needs files of the host, `files(params)` (guest path -> host
path); C sources, if any, are beside it. It never talks to a guest itself. Not here: taking the counters
(agent), the files of a run (runs.record).
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import random
import re
import secrets
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from pydantic import Field, ValidationError

from numalab.core import paths, state
from numalab.core.errors import CommandFailed, DeadlinePassed, GuestError, HostError, InputError, LabError
from numalab.core.log import note, step
from numalab.core.process import KEEP_BYTES, Deadline
from numalab.guest.guest import Guest, alone_in, crash
from numalab.host import accelerator, console, machine, ssh
from numalab.host.domain import INSTRUCTION_FILES
from numalab.measure import call_paths, kernel_facts, programs
from numalab.model import catalog, verification
from numalab.model.case import Place
from numalab.model.run import INSTRUCTIONS, PhaseResult, Run
from numalab.model.values import MOST_NAME, Clock, Phase, SizeClass, Value, check_name, first_line, jsonable
from numalab.runs import counters, record
from numalab.runs.compatibility import HEADER

INSIDE = "/run/numalab-inside.py"
HANG_SECONDS = 60
"""How long after a phase's limit the guest may take to end it, on the host's clock."""
AGENT_INPUT, WORKLOAD_INPUT = "inside.py", "workload.py"
"""Keys of Run.inputs. Runs are compared by them, so they stay as in stored runs when files move."""
SYMBOLS, PROFILE = INSTRUCTION_FILES
SAMPLE_SECONDS = 2.0
"""A sample costs an emulated vCPU 10 to 15 ms."""
START_SPREAD = 1.0
"""The most seconds, by the guest's clock, that a measured phase of a seeded boot is put off."""


def workloads() -> list[str]:
    """The names of all workloads."""
    return catalog.names(paths.WORKLOADS, ".py")


def load(name: str) -> ModuleType:
    """testcases/workloads/NAME.py, imported. Raises InputError."""
    try:
        path = paths.find(f"{paths.WORKLOADS}/{check_name(name)}.py")
    except ValueError as error:
        raise InputError(str(error)) from error
    spec = (
        importlib.util.spec_from_file_location(f"numalab_workload_{name}", path) if path.is_file() else None
    )
    if spec is None or spec.loader is None:
        raise InputError(f"there is no workload {name}: there are {', '.join(workloads())}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Options(Value):
    """How a workload is run, and what is recorded meanwhile."""

    params: dict[str, Any] = Field(default_factory=dict)
    """Override the workload's own for the size."""
    tracepoints: tuple[str, ...] = ()
    """system:event, counted in each phase."""
    sample_seconds: float = SAMPLE_SECONDS
    """Seconds between two samples of the counters; 0 takes none."""
    profile_hz: int = 0
    """Call graphs per second in measured phases; 0 takes none. Profiling costs time, so judge no times."""
    settings: dict[str, str] = Field(default_factory=dict)
    """Sysctls and knobs that were set and read back."""
    place: Place | None = None
    begun: float | None = None
    """When the boot that the run is a part of began, as time.monotonic() has it."""
    prepared: bool = False
    """Whether the guest's disks are still as they were prepared (GuestRecord.prepared): those phases are left
    out."""


class Watcher(Protocol):
    """Observes a run in progress."""

    def moving(self, phase: str, sample: Mapping[str, Any]) -> None:
        """A sample was taken in a phase; see runs.record."""

    def ended(self, result: PhaseResult) -> None:
        """A phase ended."""


def parameters(module: ModuleType, size: SizeClass, over: Mapping[str, Any]) -> Value:
    """A workload's parameters for a size, with `over` applied. Raises InputError."""
    name = Path(module.__file__ or "").stem
    if size not in module.PARAMS:
        raise InputError(f"workload {name} has no size {size}: it has {', '.join(module.PARAMS)}")
    own: Value = module.PARAMS[size]
    try:
        return type(own).model_validate({**own.model_dump(), **over})
    except ValidationError as error:
        raise InputError(f"{name}: {size} parameter {first_line(error)}") from error


def check(workload: str, size: SizeClass) -> None:
    """InputError when a workload, or a file of the user's that it needs, is not there: before a guest is."""
    module = load(workload)
    module.phases(parameters(module, size, {}))


def run(
    guest: Guest,
    workload: str,
    size: SizeClass,
    deadline: Deadline,
    options: Options | None = None,
    *,
    watcher: Watcher | None = None,
) -> tuple[Run, Path]:
    """Run a workload to its end. Returns the Run and its folder.

    A phase that fails, a kernel warning, a lost guest or a passed deadline raises, after the folder was
    written with the error and the console log: evidence is kept, but never half a result.
    """
    module, options = load(workload), options or Options()
    params = parameters(module, size, options.params)
    prepared = guest.record.prepared.phases if options.prepared and guest.record.prepared else ()
    result = Run(
        id=_run_id(workload, guest),
        workload=workload,
        size=size,
        params=jsonable(params),
        started=state.stamp(),
        host=_host(guest, deadline),
        guest=guest.record,
        release="",
        cmdline="",
        inputs=input_hashes(workload),
        settings=options.settings,
        place=options.place,
        prepared=prepared,
    )
    error: BaseException | None = None
    console_start = 0
    with alone_in(guest), state.making(state.folder("runs") / result.id) as folder:
        try:
            with contextlib.suppress(LabError):  # the run will raise the same error
                console_start = guest.console_size()
            result = result.model_copy(update=_prepare(guest, folder, deadline))
            give_files(guest, module, params, deadline)
            for phase in module.phases(params):
                if phase.name in prepared:
                    continue
                if phase.makes:
                    programs.give(guest, phase, deadline)
                    continue
                with step(f"{workload}: {phase.name}", who=guest.name):
                    done = _phase(guest, folder, len(result.phases), phase, options, deadline, watcher)
                memory = record.memory(folder, len(result.phases), phase.name, result.release)
                done = done.model_copy(update={"memory": memory})
                result = result.model_copy(update={"phases": (*result.phases, done)})
                if watcher:
                    watcher.ended(done)
            guest.watch(last=True)  # the program may end before the next look at the console
            if findings := [
                line for piece in guest.console_pieces(console_start) for line in console.findings(piece)
            ]:
                raise GuestError(
                    f"guest {guest.name}: its kernel says: {findings[0].strip()}",
                    evidence="\n".join(findings),
                )
        except BaseException as broke:  # Ctrl-C too: an interrupted run is evidence, but no result
            error = broke
            if isinstance(broke, (GuestError, CommandFailed)):
                error = crash(guest) or broke
        result = result.model_copy(
            update={
                "host_seconds": None if options.begun is None else time.monotonic() - options.begun,
                "error": "" if error is None else str(error) or type(error).__name__,
            }
        )
        try:
            result = result.model_copy(
                update={"console_warnings": _keep_console(guest, folder / "console.log")}
            )
            with contextlib.suppress(OSError):
                shutil.copy(guest.directory / "domain.xml", folder)
            record.write(result, folder)
        except OSError as full:
            if error is None:
                raise HostError(
                    f"{folder}: the run cannot be kept: {full.strerror}: make room, then run it again"
                ) from full
            note(f"{folder}: the run cannot be kept: {full.strerror}")
            raise error from full  # the first error matters more
    if error is not None:
        raise error
    return result, state.folder("runs") / result.id


def _run_id(workload: str, guest: Guest) -> str:
    """A new run's id, which names a folder. A topology or kernel given as a path goes by its file's name."""
    spec = guest.record.spec
    short = [
        Path(name).name.removesuffix(".yml")[:MOST_NAME] for name in (spec.topology_name, spec.boot.name)
    ]
    words = (state.stamp(), workload, *short, os.getpid(), secrets.token_hex(4))
    return re.sub(r"[^A-Za-z0-9._-]", "_", "-".join(map(str, words)))


def _keep_console(guest: Guest, target: Path) -> tuple[str, ...]:
    """Copy the console log; returns the lines that are evidence."""
    seen: list[str] = []
    # A lost machine must not hide the first error.
    with target.open("w") as copy, contextlib.suppress(LabError):
        for piece in guest.console_pieces():
            copy.write(piece)
            seen += console.warnings(piece)
    return tuple(seen)


def give_files(guest: Guest, module: ModuleType, params: Value, deadline: Deadline) -> None:
    """Copy the workload's files from the host into the guest."""
    for target, source in (module.files(params) if hasattr(module, "files") else {}).items():
        guest.ssh.copy(source=str(source), target=f"guest:{target}", deadline=deadline)


def input_hashes(workload: str) -> dict[str, str]:
    """The workload's files, those that every workload uses, and what its C programs share -> SHA-256."""
    own = {
        path.name: path
        for path in sorted(paths.find(f"{paths.WORKLOADS}/{workload}.py").parent.glob(f"{workload}.*"))
    }
    shared = {AGENT_INPUT: paths.AGENT, WORKLOAD_INPUT: paths.WORKLOAD_MODULE}
    if any(HEADER.encode() in path.read_bytes() for path in own.values()):
        shared[HEADER] = paths.find(f"{paths.WORKLOADS}/{HEADER}")
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for name, path in {**own, **shared}.items()
        if path.is_file()
    }


def _prepare(guest: Guest, folder: Path, deadline: Deadline) -> dict[str, Any]:
    """Copy the agent into the guest and collect facts. GuestError when its kernel is not the record's."""
    source = paths.AGENT.read_bytes()
    ssh.succeed(guest, f"cat > {INSIDE}", deadline=deadline, input=source)
    (folder / "topology.txt").write_text(verification.layout_table(guest.verify(deadline)) + "\n")
    kernel = kernel_facts.parse(ssh.succeed(guest, kernel_facts.COMMAND, deadline=deadline))
    if kernel.config:
        (folder / record.KERNEL_CONFIG).write_text(kernel.config)
    return {
        "release": kernel.release,
        "cmdline": kernel.cmdline,
        "kernel_facts": kernel.facts,
        "kernel_address": kernel.address,
    }


def _phase(
    guest: Guest,
    folder: Path,
    index: int,
    phase: Phase,
    options: Options,
    deadline: Deadline,
    watcher: Watcher | None,
) -> PhaseResult:
    """Measure one phase in the guest. GuestError when its command fails or exceeds its limit."""
    spec = guest.record.spec
    names = (
        _give_symbols(guest, deadline) if spec.instructions and options.profile_hz and phase.measured else []
    )
    counted = bool(names)
    about = {
        "command": phase.command,
        "files": counters.FILES,
        "limit": phase.limit_seconds,
        "trace": options.tracepoints,
        "sample": options.sample_seconds,
        "profile": options.profile_hz if phase.measured and not spec.instructions else 0,
        "marked": counted,
    }
    samples: list[str] = []
    room = KEEP_BYTES

    def tell(line: str) -> None:
        nonlocal room
        try:
            sample = json.loads(line)
        except ValueError:  # other output on standard error
            return
        if isinstance(sample, dict):
            if "t" in sample and (kept := _kept(guest, begin, deadline)) is not None:
                sample["host"] = {"kept": kept}
                line = json.dumps(sample)
            room -= len(line)
            if room >= 0:  # bounded: the guest could send any number
                samples.append(line)
            if watcher:
                watcher.moving(phase.name, sample)

    begin = _moment(guest, deadline)
    # The agent ends the phase by the guest's clock, of which a virtual one may be slower than ours.
    limit = deadline if spec.clock is Clock.VIRTUAL else deadline.within(phase.limit_seconds + HANG_SECONDS)
    try:
        text = ssh.succeed(
            guest,
            agent_command(spec.seed, index if phase.measured else None),
            deadline=limit,
            input=json.dumps(about).encode(),
            tell=tell,
        )
    except DeadlinePassed as error:
        why = (
            f"went on for {HANG_SECONDS} s after its limit of {phase.limit_seconds:.0f} s:"
            " the guest or QEMU hangs"
            if deadline.remaining()
            else "the time limit passed"
        )
        raise DeadlinePassed(
            f"guest {guest.name}: phase {phase.name}: {why}", evidence=error.evidence
        ) from error
    finally:
        record.write_samples(folder, index, phase.name, samples)
    end = _moment(guest, deadline)
    try:
        answer = json.loads(text)
        if counted:
            answer |= _counted(guest, names)
        record.write_phase(
            folder,
            index,
            phase.name,
            {"before": answer["before"], "after": answer["after"]},
            {
                "stdout": answer["stdout"],
                "stderr": answer["stderr"],
                **({record.PROFILE: answer["profile"]} if "profile" in answer else {}),
            },
        )
        used = {key: answer[key] for key in ("status", "timed_out", "elapsed", "user", "system", "load")}
    except (ValueError, KeyError, TypeError) as broke:
        raise GuestError(
            f"phase {phase.name}: the guest's answer is not whole ({broke!r})", evidence=text[-2000:]
        ) from broke
    if used["timed_out"]:
        raise GuestError(
            f"phase {phase.name}: took more than its limit of {phase.limit_seconds:.0f} s",
            evidence=answer["stderr"][-4000:],
        )
    if used["status"]:
        last_line = (answer["stderr"].strip() or answer["stdout"].strip() or "no output").splitlines()[-1]
        raise GuestError(
            f"phase {phase.name}: exit status {used['status']}: {last_line}",
            evidence=answer["stdout"][-2000:] + answer["stderr"][-2000:],
        )
    return PhaseResult(
        phase=phase,
        status=used["status"],
        elapsed=used["elapsed"],
        user=used["user"],
        system=used["system"],
        counters=counters.phase(answer["before"], answer["after"]),
        output=record.output(folder, index, phase.name),
        guest_load=used["load"],
        host_load=machine.load(guest.host.where, deadline),
        profiled=answer.get("event", "") if "profile" in answer else "",
        **_host_shares(begin, end),
    )


def _give_symbols(guest: Guest, deadline: Deadline) -> list[str]:
    """Write the kernel's functions where QEMU's plugin reads them; returns their names, none where the kernel
    does not tell them: a phase is worth more than its profile."""
    try:
        told = guest.ssh.execute(call_paths.KALLSYMS, deadline=deadline)
        text, names = call_paths.symbols(told.stdout)
        (guest.directory / SYMBOLS).write_text(text)
        (guest.directory / PROFILE).write_text("")
    except (InputError, OSError) as error:
        note(f"no profile: {error}", who=guest.name)
        return []
    return names


def _counted(guest: Guest, names: list[str]) -> dict[str, str]:
    """What the plugin counted in a phase, as the agent tells of a profile; empty, with a line, when it is not
    whole."""
    try:
        folded = call_paths.folded((guest.directory / PROFILE).read_text(), names)
    except (InputError, OSError) as error:
        note(f"no profile: {error}", who=guest.name)
        return {}
    return {"event": INSTRUCTIONS, "profile": folded}


def agent_command(seed: int | None, measured: int | None) -> list[str]:
    """The command that runs the agent. A measured phase, by its index, waits a part of a second that the
    guest's seed decides: what the kernel does by its clock meets each boot's workload elsewhere."""
    agent = ["python3", INSIDE]
    if seed is None or measured is None:
        return agent
    delay = random.Random(f"{seed} {measured}").uniform(0, START_SPREAD)
    return ["sh", "-c", f"sleep {delay:.3f}; exec {' '.join(agent)}"]


def _moment(guest: Guest, deadline: Deadline) -> machine.Moment | None:
    """Processor time of the host and of the guest's QEMU. None when it cannot be read now: a phase is worth
    more."""
    with contextlib.suppress(HostError):
        qemu = guest.host.qemu(guest.mark)
        return machine.Moment(
            machine.cpu_time(guest.host.where, deadline),
            guest.host.cpu_seconds(guest.mark),
            machine.vcpu_time(qemu) if qemu else None,
        )
    return None


def _kept(guest: Guest, begin: machine.Moment | None, deadline: Deadline) -> float | None:
    """Processor seconds that others took from the guest's vCPUs since `begin`; None where they are not known,
    as on another machine, where the question would take an SSH session for each sample."""
    if begin is None or begin.vcpus is None or guest.host.where.ssh:
        return None
    now = _moment(guest, deadline)
    kept = machine.seconds_kept(begin, now) if now else None
    return None if kept is None else round(kept, 2)


def _host_shares(begin: machine.Moment | None, end: machine.Moment | None) -> dict[str, float]:
    """PhaseResult's host_others and host_kept, as far as they are known."""
    if begin is None or end is None:
        return {}
    shares = {"host_others": machine.share_of_others(begin, end), "host_kept": machine.share_kept(begin, end)}
    return {name: round(share, 3) for name, share in shares.items() if share is not None}


def _host(guest: Guest, deadline: Deadline) -> dict[str, str]:
    """Facts about the hypervisor: those that compared runs must share, and those that help to doubt a run."""
    return {
        **machine.read_facts(guest.host.where, deadline),
        "qemu": accelerator.qemu_version(deadline, guest.host.where),
        "libvirt": guest.host.version(),
        "uri": guest.host.uri,
    }
