# SPDX-License-Identifier: GPL-2.0-only
"""The accelerator's test boot, with a fake QEMU that works, hangs, fails or ends without the word."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from numalab.core import state
from numalab.core.errors import BootHung, Cancelled, DeadlinePassed, HostError
from numalab.core.process import Deadline, Result, run
from numalab.host import accelerator
from numalab.host.remote import Where
from numalab.model.values import Accel, Clock

Program = Callable[[str, str], Path]
VERSION = (
    'if [ "$1" = --version ]; then echo "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7)"; exit; fi\n'
)
WORKS = f"{VERSION}echo tried >> $0.log; echo '[ 1.0] Run /init'; echo '{accelerator.WORD}'"
SPEAKS = f"{VERSION}for n in 1 2 3 4 5 6; do echo $n; sleep 0.5; done; echo '{accelerator.WORD}'"
FAILS = f"{VERSION}echo tried >> $0.log; echo 'failed to initialize kvm' >&2; exit 1"
HANGS = f"{VERSION}exec sleep 1000"


@pytest.fixture
def kernel(tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kernel file on a host with a usable /dev/kvm and a busybox."""
    program("busybox", "exit")
    monkeypatch.setattr(accelerator, "device", lambda *_: "usable")
    path = tmp_path / "vmlinuz"
    path.write_bytes(b"kernel")
    return path


def tries(qemu: Path) -> int:
    """How often the fake QEMU was started with a kernel."""
    log = qemu.with_name(f"{qemu.name}.log")
    return len(log.read_text().splitlines()) if log.exists() else 0


def test_it_works(kernel: Path, program: Program, deadline: Deadline) -> None:
    program("qemu-system-x86_64", WORKS)
    kind, reason = accelerator.try_kvm(kernel, deadline)
    assert kind is Accel.KVM
    assert reason.startswith("vmlinuz reached user space in ")


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (FAILS, "QEMU fails under KVM: .*failed to initialize kvm"),
        (f"{VERSION}echo Booting the kernel", "the kernel ended before user space: Booting the kernel"),
        (f"{VERSION}", "the kernel ended before user space: no output"),
    ],
)
def test_it_fails(script: str, reason: str, kernel: Path, program: Program, deadline: Deadline) -> None:
    program("qemu-system-x86_64", script)
    kind, text = accelerator.try_kvm(kernel, deadline)
    assert kind is Accel.TCG
    assert re.search(reason, text)


def test_it_hangs(
    kernel: Path, program: Program, monkeypatch: pytest.MonkeyPatch, deadline: Deadline
) -> None:
    """As under a KVM in software."""
    program("qemu-system-x86_64", HANGS)
    monkeypatch.setattr(accelerator, "SILENT_SECONDS", 0.3)
    kind, reason = accelerator.try_kvm(kernel, deadline)
    assert kind is Accel.TCG
    assert re.fullmatch(
        r"/dev/kvm opens, but vmlinuz prints nothing under it for 0 s \(\d+ s of processor time\)", reason
    )


def test_a_slow_kernel_that_speaks_does_not_hang(
    kernel: Path, program: Program, monkeypatch: pytest.MonkeyPatch, deadline: Deadline
) -> None:
    """KVM on an emulated processor: Debian's kernel took minutes. The silence counts, not the time."""
    program("qemu-system-x86_64", SPEAKS)
    monkeypatch.setattr(accelerator, "SILENT_SECONDS", 2.0)
    kind, reason = accelerator.try_kvm(kernel, deadline)
    assert (kind, reason.partition(" in ")[0]) == (Accel.KVM, "vmlinuz reached user space")


def test_a_kernel_that_never_stops_to_speak(
    kernel: Path, program: Program, monkeypatch: pytest.MonkeyPatch, deadline: Deadline
) -> None:
    program("qemu-system-x86_64", f"{VERSION}while :; do echo again; sleep 0.05; done")
    monkeypatch.setattr(accelerator, "PROBE_SECONDS", 0.5)
    kind, reason = accelerator.try_kvm(kernel, deadline)
    assert kind is Accel.TCG
    assert reason.endswith("vmlinuz does not reach user space under it in 0 s")


def spent(proc: Path, user: int, system: int) -> None:
    """Let the QEMU 42 of a fake /proc have used these seconds."""
    (proc / "42").mkdir(parents=True, exist_ok=True)
    (proc / "42/cmdline").write_bytes(b"qemu-system-x86_64\0-uuid\0some-uuid\0")
    fields = ["42", "(qemu (x) 1)", *["0"] * 11, str(100 * user), str(100 * system), *["0"] * 37]
    (proc / "42/stat").write_text(" ".join(fields))


def test_time_in_the_hosts_kernel(tmp_path: Path) -> None:
    """A KVM in software interprets the guest in the host's kernel: no time in guest mode, which is user time."""
    spent(tmp_path, 0, 0)
    progress = accelerator.Progress("vmlinuz", "some-uuid", tmp_path)
    spent(tmp_path, 0, 3)
    progress.check()
    spent(tmp_path, 20, 30)
    progress.check()
    spent(tmp_path, 0, 5)
    with pytest.raises(BootHung, match=r"^vmlinuz prints nothing .* in the host's kernel \(5 of 5 s\)"):
        progress.check()
    progress.write(b"a line")
    progress.check()
    spent(tmp_path, 0, 10)
    with pytest.raises(BootHung):
        progress.check()
    assert progress.getvalue() == b"a line"


def test_an_unknown_qemu_is_not_judged_by_its_times(tmp_path: Path) -> None:
    """On another machine, or before it has started."""
    spent(tmp_path, 0, 50)
    accelerator.Progress("vmlinuz", "", tmp_path).check()
    accelerator.Progress("vmlinuz", "another-uuid", tmp_path).check()


def test_a_kernel_that_was_pushed_is_tried(
    kernel: Path, monkeypatch: pytest.MonkeyPatch, deadline: Deadline
) -> None:
    """On another machine, where it may have another path."""
    command: list[str] = []

    def run(_: Where, words: Sequence[str | Path], **__: object) -> Result:
        command.extend(map(str, words))
        return Result((), 0, accelerator.WORD, "", 1.0)

    monkeypatch.setattr(
        Where, "push", lambda _, paths, deadline: {path: Path("/there") / path.name for path in paths}
    )
    monkeypatch.setattr(Where, "run", run)
    accelerator.boot(kernel, [], deadline, Where("there"))
    assert [command[command.index(option) + 1] for option in ("-kernel", "-initrd")] == [
        "/there/vmlinuz",
        "/there/probe.cpio",
    ]


def test_no_time_left_is_not_tcg(kernel: Path, program: Program) -> None:
    """Only a kernel that had its full time is evidence against KVM."""
    program("qemu-system-x86_64", HANGS)
    with pytest.raises(DeadlinePassed):
        accelerator.choose("auto", kernel, Deadline.after(0.5))
    assert not (state.folder("cache") / "accel.json").exists()


def test_cancelled_is_not_tcg(kernel: Path, program: Program, deadline: Deadline) -> None:
    program("qemu-system-x86_64", HANGS)
    deadline.cancel.set()
    with pytest.raises(Cancelled):
        accelerator.choose("auto", kernel, deadline)
    assert not (state.folder("cache") / "accel.json").exists()


def test_a_lack_is_not_kept(
    kernel: Path, program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deadline: Deadline
) -> None:
    """Without busybox nothing is known about KVM; once it is installed, the probe runs."""
    program("qemu-system-x86_64", WORKS)
    program("uname", "echo 6.1")
    program("setpriv", 'shift 3; exec "$@"')
    (tmp_path / "bin" / "busybox").unlink()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with contextlib.suppress(HostError):
        accelerator.choose("auto", kernel, deadline)
    program("busybox", "exit")
    assert accelerator.choose("auto", kernel, deadline).accel is Accel.KVM


@pytest.mark.parametrize(
    "script",
    [
        f"{VERSION}echo 'cannot set up guest memory: Cannot allocate memory' >&2; exit 1",
        f"{VERSION}echo 'ioctl(KVM_CREATE_VM) failed: 16 Device or resource busy' >&2; exit 1",
        f"{VERSION}kill -9 $$",
    ],
)
def test_what_passes_is_not_kept(script: str, kernel: Path, program: Program, deadline: Deadline) -> None:
    program("qemu-system-x86_64", script)
    assert accelerator.choose("auto", kernel, deadline).accel is Accel.TCG
    assert not accelerator.virtual_clock(kernel, deadline).works
    program("qemu-system-x86_64", WORKS)
    assert accelerator.choose("auto", kernel, deadline).accel is Accel.KVM
    assert accelerator.virtual_clock(kernel, deadline).works


def test_a_busybox_with_shared_libraries(
    kernel: Path, program: Program, tmp_path: Path, deadline: Deadline
) -> None:
    """The kernel would panic for want of them, with any accelerator."""
    program("qemu-system-x86_64", WORKS)
    (tmp_path / "bin/busybox").write_bytes(Path(sys.executable).read_bytes()[:8192])
    with pytest.raises(HostError, match="install busybox-static"):
        accelerator.choose("auto", kernel, deadline)


@pytest.mark.parametrize(
    ("device", "reason"),
    [("none", "there is no /dev/kvm"), ("closed", "/dev/kvm may not be opened: join the group kvm")],
)
def test_no_device(
    device: str,
    reason: str,
    kernel: Path,
    program: Program,
    monkeypatch: pytest.MonkeyPatch,
    deadline: Deadline,
) -> None:
    qemu = program("qemu-system-x86_64", WORKS)
    monkeypatch.setattr(accelerator, "device", lambda *_: device)
    kind, text = accelerator.try_kvm(kernel, deadline)
    assert (kind, tries(qemu)) == (Accel.TCG, 0)
    assert text.startswith(reason)


def test_the_answer_is_kept(
    kernel: Path, program: Program, monkeypatch: pytest.MonkeyPatch, deadline: Deadline
) -> None:
    qemu = program("qemu-system-x86_64", WORKS)
    first = accelerator.choose("auto", kernel, deadline)
    assert first.accel is Accel.KVM
    assert (accelerator.choose("auto", kernel, deadline), tries(qemu)) == (first, 1)
    assert accelerator.choose("kvm", kernel, deadline) == first
    program("qemu-system-x86_64", FAILS.replace("7.2.22", "9.2.1"))
    assert (accelerator.choose("auto", kernel, deadline).accel, tries(qemu)) == (Accel.TCG, 2), "another QEMU"
    kernel.write_bytes(b"another")
    program("qemu-system-x86_64", WORKS)
    assert (accelerator.choose("auto", kernel, deadline).accel, tries(qemu)) == (
        Accel.KVM,
        3,
    ), "another kernel"
    monkeypatch.setattr(accelerator, "device", lambda *_: "none")
    assert accelerator.choose("auto", kernel, deadline).accel is Accel.TCG, "another device"
    kernel.write_bytes(b"kernel")
    monkeypatch.setattr(accelerator, "device", lambda *_: "usable")
    assert (accelerator.choose("auto", kernel, deadline), tries(qemu)) == (first, 3), "the first again"
    assert len(json.loads((state.folder("cache") / "accel.json").read_text())) == 4


def test_wishes(kernel: Path, program: Program, deadline: Deadline) -> None:
    qemu = program("qemu-system-x86_64", FAILS)
    assert accelerator.choose("tcg", kernel, deadline).accel is Accel.TCG
    assert tries(qemu) == 0, "nobody asked"
    with pytest.raises(HostError, match=r"^accelerator kvm: QEMU fails under KVM: .*use tcg or auto"):
        accelerator.choose("kvm", kernel, deadline)


@pytest.mark.parametrize(
    "text",
    ["QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)", "QEMU emulator version 9.2.1, Copyright"],
)
def test_qemu_version(text: str, program: Program, deadline: Deadline) -> None:
    program("qemu-system-x86_64", f"echo '{text}'")
    assert accelerator.qemu_version(deadline) == text.split()[3].rstrip(",")


def members(archive: bytes) -> dict[str, tuple[int, int, bytes]]:
    """A newc archive's members: name -> (mode, device, content), as init/initramfs.c reads it."""
    result: dict[str, tuple[int, int, bytes]] = {}
    at = 0
    while True:
        assert archive[at : at + 6] == b"070701"
        fields = [int(archive[at + 6 + 8 * i : at + 14 + 8 * i], 16) for i in range(13)]
        mode, size, device, length = fields[1], fields[6], fields[9] << 8 | fields[10], fields[11]
        name = archive[at + 110 : at + 110 + length]
        assert name[-1:] == b"\0"
        body = (at + 110 + length + 3) & ~3
        if name == b"TRAILER!!!\0":
            assert len(archive) % 4 == 0
            return result
        result[name[:-1].decode()] = (mode, device, archive[body : body + size])
        at = (body + size + 3) & ~3


def test_probe_cpio(program: Program) -> None:
    busybox = program("busybox", "exit # of a length that is not a multiple of four")
    files = members(accelerator.probe_cpio())
    assert list(files) == ["bin", "dev", "dev/console", "bin/busybox", "init"]
    assert files["dev/console"] == (0o020600, 0x0501, b"")
    assert files["bin/busybox"] == (0o100755, 0, busybox.read_bytes())
    assert files["init"][2].startswith(b"#!/bin/busybox sh\n")
    assert accelerator.WORD.encode() in files["init"][2]


def test_cpio_reads_it(program: Program) -> None:
    program("busybox", "exit")
    listed = subprocess.run(
        ["cpio", "-it", "--quiet"],
        input=accelerator.probe_cpio(),
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert listed.stdout.decode().split() == ["bin", "dev", "dev/console", "bin/busybox", "init"]
    assert not listed.stderr


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b"null", b'{"a": 1}', b'{"a": {"accel": "kvm"}}', b"\xff\xfe", b"\0" * 4096]
)
def test_a_damaged_cache_is_made_anew(
    kernel: Path,
    program: Program,
    deadline: Deadline,
    lab_state: Path,
    caplog: pytest.LogCaptureFixture,
    damage: bytes,
) -> None:
    """An empty accel.json, as a power cut leaves it, once made every `up` end in a traceback."""
    qemu = program("qemu-system-x86_64", WORKS)
    accelerator.choose("auto", kernel, deadline)
    cache = lab_state / "cache/accel.json"
    cache.write_bytes(damage)
    assert accelerator.choose("auto", kernel, deadline).accel is Accel.KVM
    assert f"{cache} is damaged: what it kept is tried again" in caplog.text
    assert accelerator.choose("auto", kernel, deadline).accel is Accel.KVM
    assert tries(qemu) == 2, "what was made anew is kept"


@pytest.mark.parametrize("works", [True, False])
def test_the_virtual_clock_is_tried_once(
    kernel: Path, program: Program, monkeypatch: pytest.MonkeyPatch, deadline: Deadline, works: bool
) -> None:
    """QEMU 7.2 hangs there: that is remembered too, by its version."""
    monkeypatch.setattr(accelerator, "SILENT_SECONDS", 20 if works else 0.3)
    qemu = program("qemu-system-x86_64", WORKS if works else f"{VERSION}echo tried >> $0.log; exec sleep 60")
    probe = accelerator.virtual_clock(kernel, deadline)
    assert probe.works is works
    assert accelerator.virtual_clock(kernel, deadline) == probe
    assert tries(qemu) == 1
    if works:
        assert accelerator.choose_clock(Clock.VIRTUAL, Accel.TCG, kernel, deadline) is Clock.VIRTUAL
        assert accelerator.choose_clock(None, Accel.TCG, kernel, deadline) is Clock.VIRTUAL
    else:
        assert accelerator.choose_clock(None, Accel.TCG, kernel, deadline) is Clock.HOST
        with pytest.raises(
            HostError,
            match=r"^clock virtual: QEMU 7\.2\S* cannot count instructions with several CPUs \(with 8 CPUs \S+ "
            r"prints nothing under it for 0 s \(0 s of processor time\)\): it takes QEMU 8\.1 or later",
        ) as caught:
            accelerator.choose_clock(Clock.VIRTUAL, Accel.TCG, kernel, deadline)
        assert caught.value.field == "clock"


def test_a_slow_host_has_a_virtual_clock(
    kernel: Path, program: Program, monkeypatch: pytest.MonkeyPatch, deadline: Deadline
) -> None:
    """A boot that goes on printing is no hang, however long it takes."""
    monkeypatch.setattr(accelerator, "SILENT_SECONDS", 2.0)
    program("qemu-system-x86_64", SPEAKS)
    assert accelerator.virtual_clock(kernel, deadline).works


def test_a_qemu_without_icount(kernel: Path, program: Program, deadline: Deadline) -> None:
    program("qemu-system-x86_64", f"{VERSION}echo 'icount is not supported' >&2; exit 1")
    probe = accelerator.virtual_clock(kernel, deadline)
    assert not probe.works
    assert "icount is not supported" in probe.reason
    assert "it takes QEMU 8.1 or later" in probe.reason


def test_a_kernel_that_panics_is_no_fault_of_qemus(
    kernel: Path, program: Program, tmp_path: Path, deadline: Deadline
) -> None:
    """What one kernel does is remembered of that one; what QEMU can do, of all."""
    qemu = program("qemu-system-x86_64", f"{VERSION}echo tried >> $0.log; echo 'Kernel panic'")
    probe = accelerator.virtual_clock(kernel, deadline)
    assert not probe.works
    assert probe.reason.startswith(f"with 8 CPUs that count instructions {kernel}: the kernel ended before")
    assert accelerator.virtual_clock(kernel, deadline) == probe
    assert tries(qemu) == 1
    qemu = program("qemu-system-x86_64", WORKS)
    for content in ("another", "a third"):
        other = tmp_path / content
        other.write_text(content)
        assert accelerator.virtual_clock(other, deadline).works
    assert tries(qemu) == 2, "one panicked, and one worked for all others"
    assert accelerator.virtual_clock(kernel, deadline) == probe, "the first panics as it did"


def test_kvm_has_the_hosts_clock_only(kernel: Path, program: Program, deadline: Deadline) -> None:
    qemu = program("qemu-system-x86_64", FAILS)
    with pytest.raises(HostError, match=r"^clock virtual: KVM has the host's clock only"):
        accelerator.choose_clock(Clock.VIRTUAL, Accel.KVM, kernel, deadline)
    assert accelerator.choose_clock(Clock.HOST, Accel.KVM, kernel, deadline) is Clock.HOST
    assert accelerator.choose_clock(None, Accel.KVM, kernel, deadline) is Clock.HOST
    assert tries(qemu) == 0


def test_a_probe_on_another_machine_is_ended_by_its_uuid(deadline: Deadline) -> None:
    """It, and no other: sshd leaves it running when its client goes away."""
    words = [sys.executable, "-c", "import time; time.sleep(300)"]
    ours, other = (subprocess.Popen([*words, "-uuid", ident]) for ident in ("a-uuid", "another-uuid"))
    try:
        run(["sh", "-c", accelerator.END, "sh", "a-uuid"], deadline=deadline)
        assert ours.wait(30) != 0
        assert other.poll() is None
    finally:
        for process in (ours, other):
            process.kill()
            process.wait()
