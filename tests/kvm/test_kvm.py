# SPDX-License-Identifier: GPL-2.0-only
"""The lab under KVM, in a machine that has it: probe, guests, a ready state, GRUB, a case, kill -9."""

from __future__ import annotations

import json

from tests.kvm.outer import KERNELS, STATE, Outer

SLOW = "--accel kvm --timeout 3000"
"""The machine is ten times slower than its host, or more, so `up` gets more time than its 300 s."""
LEAN = f"--kernel {KERNELS}/6.1.yml {SLOW}"
"""Options of `up` for the host's lean kernel."""
SMALL = "--vcpus 4 --memory 2GiB"


def up(outer: Outer, name: str, words: str) -> None:
    result = outer.lab(f"up --name {name} {words}")
    assert result.returncode == 0, result.stderr
    assert "kvm, topology verified" in result.stdout


def seen(outer: Outer, name: str, command: str) -> str:
    """What a command in a guest prints."""
    result = outer.lab(f"exec {name} -- {command}")
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def end(outer: Outer, name: str) -> None:
    result = outer.lab(f"down {name}")
    assert result.returncode == 0, result.stderr
    assert outer.run("pgrep qemu-system").returncode == 1, "a QEMU is left"


def test_the_machine_has_kvm(outer: Outer) -> None:
    """The device is KVM's, over nested paging: not one in software."""
    assert "kvm: Nested Virtualization enabled" in outer.console
    assert outer.run("test -c /dev/kvm").returncode == 0


def test_doctor_and_probe(outer: Outer) -> None:
    """Debian's kernel, which takes the longest, is enough of a probe. Programs that build are not there."""
    result = outer.lab("doctor --accel kvm")
    assert "kvm: vmlinuz reached user space in " in result.stdout, result.stdout + result.stderr


def test_4socket(outer: Outer) -> None:
    """Verified from inside; the guest knows that it is KVM's."""
    up(outer, "four", f"-t 4socket {LEAN} {SMALL}")
    assert seen(outer, "four", "systemd-detect-virt") == "kvm"
    assert (
        seen(outer, "four", "cat /sys/devices/system/clocksource/clocksource0/current_clocksource")
        == "kvm-clock"
    )
    assert seen(outer, "four", "sh -c 'ls -d /sys/devices/system/node/node* | wc -l'") == "4"
    end(outer, "four")


def test_fakenuma(outer: Outer) -> None:
    up(outer, "fake", f"-t fakenuma {LEAN} {SMALL}")
    end(outer, "fake")


def test_bound_to_the_hosts_nodes(outer: Outer) -> None:
    """--pin auto: each of the guest's nodes has its memory, in huge pages, on one of the machine's, and its
    vCPU a core there. The guest has the machine's processor, and sees what time is stolen from it."""
    pages = "/sys/devices/system/node/node*/hugepages/hugepages-2048kB"
    free = f"cat {pages}/free_hugepages"
    reserved = outer.run(f"for node in {pages}; do echo 300 >$node/nr_hugepages; done; {free}")
    assert reserved.stdout.split() == ["300", "300"], reserved
    up(outer, "bound", f"-t 2socket {LEAN} --vcpus 2 --memory 1GiB --pin auto --huge-pages 2MiB")
    assert outer.run(free).stdout.split() == ["44", "44"], "each of 512 MiB"
    threads = "grep -lx 'CPU [0-9]*/KVM' /proc/[0-9]*/task/*/comm | sed s/comm/status/"
    allowed = outer.run(f"grep -h Cpus_allowed_list $({threads})").stdout.splitlines()
    first, second = sorted(line.split()[1] for line in allowed)
    assert first in ("0", "1")
    assert second in ("2", "3")
    assert '"direct":true' in outer.run("cat /proc/$(pgrep qemu-system)/cmdline").stdout, "cache=none"
    model = "grep -m 1 '^model name' /proc/cpuinfo"
    assert seen(outer, "bound", model) == outer.run(model).stdout.strip()
    stolen = "awk '/^cpu / {print $9}' /proc/stat"
    before = int(seen(outer, "bound", stolen))
    spin = "while :; do :; done"
    for core in (first, second):
        outer.run(f"timeout 60 taskset -c {core} sh -c '{spin}' >/dev/null 2>&1 &")
    seen(outer, "bound", f"timeout 10 sh -c '{spin}' || true")
    assert int(seen(outer, "bound", stolen)) > before
    end(outer, "bound")
    outer.run("pkill timeout")
    assert outer.run(free).stdout.split() == ["300", "300"]
    outer.run(f"for node in {pages}; do echo 0 >$node/nr_hugepages; done")


def test_ready_state(outer: Outer) -> None:
    """Saved once, restored twice; the two are not one machine."""
    machines = set()
    for name in ("first", "second"):
        result = outer.lab(f"up --name {name} -t 2socket --ready {LEAN} --vcpus 2 --memory 1GiB")
        assert result.returncode == 0, result.stderr
        assert "kvm, topology verified; from a ready state" in result.stdout
        assert ("saved as a ready state" in result.stderr) == (name == "first"), result.stderr
        machines.add(seen(outer, name, "cat /etc/machine-id"))
        assert seen(outer, name, "hostname") == name
        end(outer, name)
    assert len(machines) == 2


def test_grub(outer: Outer) -> None:
    """The image's own kernel, from the guest's disk, with systemd."""
    up(outer, "grub", f"-t 2socket --kernel debian --boot grub --vcpus 2 --memory 2GiB {SLOW}")
    end(outer, "grub")


def test_a_case_of_two_boots(outer: Outer) -> None:
    """One boot of each kernel: both are recorded, under KVM, without an error; one boot is no verdict. A boot
    may take longer than the case's 4 minutes."""
    kernels = f"{KERNELS}/6.1-savedwrite-before.yml,{KERNELS}/6.1.yml"
    outer.run("sed 's/minutes: 4$/minutes: 40/' testcases/savedwrite.yml >/data/savedwrite.yml")
    result = outer.lab(f"run /data/savedwrite.yml --kernels {kernels} --boots 1 --accel kvm {SMALL}")
    stored = outer.run(f"for run in {STATE}/runs/*/run.json; do tr -d '\\n' <$run; echo; done").stdout
    runs = [json.loads(line) for line in stored.splitlines() if line]
    assert [(run["error"], run["guest"]["spec"]["accel"]) for run in runs] == [("", "kvm")] * 2, result.stderr


def test_kill_and_gc(outer: Outer) -> None:
    """A killed `up` leaves its guest; gc removes it."""
    result = outer.run(
        f"""
        ./lab.py up -t 2socket --name killed --vcpus 2 --memory 1GiB {LEAN} & lab=$!
        until pgrep -f '[g]uest=numalab-.*-killed' >/dev/null; do kill -0 $lab || exit 3; sleep 1; done
        kill -9 $lab
        test -d {STATE}/guests/killed || exit 4
        ./lab.py gc || exit 5
        test ! -e {STATE}/guests/killed || exit 6
        ! pgrep qemu-system
        """
    )
    assert result.returncode == 0, result.stdout + result.stderr
