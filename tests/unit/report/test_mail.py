# SPDX-License-Identifier: GPL-2.0-only
"""A comparison as a mail: setup, tables, published effects and verdict, within 76 columns."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from numalab.analysis import verdict
from numalab.model import catalog
from numalab.model.case import Arm
from numalab.model.run import Run
from numalab.model.values import Accel
from numalab.report import comparison, mail, reference, replication
from numalab.report.table import Block
from tests.unit.makers import on_virtual_clock
from tests.unit.synthetic import phase, run

BEFORE, AFTER = "6.1-slowscan-before", "6.1"
REFERENCES = {"slowscan-xfsrepair": reference.load("slowscan-xfsrepair")}


def runs(accel: Accel = Accel.TCG) -> list[Run]:
    """Three boots of each kernel in turn, with a third as many PTE updates after."""

    def one(kernel: str, arm: Arm, updates: int, boot: int) -> Run:
        counted = [
            phase(
                name,
                system=updates / 100,
                vmstat={"numa_pte_updates": updates, "numa_huge_pte_updates": 0},
            )
            for name in ("repair-agstride-bhash", "mmtests-repair")
        ]
        return run(kernel, *counted, boot=boot, arm=arm, accel=accel, settings={"kernel.numa_balancing": "1"})

    boots = (
        (BEFORE, Arm.BEFORE, 3000),
        (AFTER, Arm.AFTER, 1000),
        (AFTER, Arm.AFTER, 1100),
        (BEFORE, Arm.BEFORE, 3300),
        (BEFORE, Arm.BEFORE, 2900),
        (AFTER, Arm.AFTER, 950),
    )
    return [one(*boot, number) for number, boot in enumerate(boots)]


def composed(found: Sequence[Run], notes: Sequence[str] = ()) -> str:
    columns = comparison.columns(found)
    beside = replication.beside(REFERENCES, columns, BEFORE)
    return mail.compose(
        columns, notes=notes, beside=beside, references=REFERENCES, verdicts=[verdict.verdict(found)]
    )


def test_the_whole_mail() -> None:
    text = composed(runs())
    assert max(map(len, text.splitlines())) <= 76
    assert text.isascii(), "a list's readers have all sorts of terminals"
    for words in (
        "Case: xfsrepair: what failed migrations do to the scanner (slowscan-lkml-2015.txt, March 7)",
        "Host:     EPYC, 2 CPUs",
        "Guest:    4socket: 16 vCPUs, 16GiB, 4 nodes of 4GiB",
        "a disk of 500TiB",
        "Image:    debian12 0000000000000000",
        "Accel: tcg (emulated: times are no evidence, and counters depend on the host's load)",
        "Kernel:   6.1-slowscan-before (6.1-slowscan-before-numalab):",
        "with slowscan",
        "Kernel:   6.1 (6.1-numalab): Debian 6.1 as it is",
        "Workload: xfsrepair, size quick: files 1000",
        "Settings: kernel.numa_balancing 1",
        "Boots:    3 of 6.1-slowscan-before, 3 of 6.1; fresh guests, taken in turn",
        "Amean    syst-repair-agstride-bhash",
        "NUMA base PTE updates",
        "reference/slowscan-xfsrepair.yml",
        "numa_pte_updates, repair-*: falls by a factor of 1.5: holds",
    ):
        assert words in " ".join(text.split()) or words in text, words
    order = [
        text.index(word)
        for word in ("Host:", "times in seconds", "totals in seconds", "\ncounters\n", "published:", "HOLDS")
    ]
    assert order == sorted(order)


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ((), None),
        ((1,), "Hung:     1 boot hung or broke QEMU under emulation and was begun again"),
        ((1, 2), "Hung:     3 boots hung or broke QEMU under emulation and were begun again"),
    ],
)
def test_boots_that_hung_are_told(counts: Sequence[int], said: str | None) -> None:
    found = runs()
    for i, count in enumerate(counts):
        found[i] = found[i].model_copy(update={"guest": found[i].guest.model_copy(update={"hung": count})})
    text = composed(found)
    assert said in text if said else "Hung" not in text


def test_guests_from_ready_states_are_told() -> None:
    found = [
        one.model_copy(update={"guest": one.guest.model_copy(update={"ready_state": one.kernel})})
        for one in runs()
    ]
    text = " ".join(composed(found).split())
    assert "3 of 6.1; guests, taken in turn Restored: 6 of 6 boots are none: their guests began" in text
    assert "Restored" not in composed(runs())


def test_prepared_disks_are_told() -> None:
    found = [one.model_copy(update={"prepared": ("mkfs", "fsmark")}) for one in runs()]
    text = " ".join(composed(found).split())
    assert "Prepared: 6 of 6 boots began on prepared disks (): mkfs, fsmark were done once" in text
    assert "Prepared" not in composed(runs())


def test_columns_that_do_not_fit_get_a_table_of_their_own() -> None:
    third = [
        one.model_copy(update={"guest": run("6.1-nogroup-always-before").guest, "id": f"x{one.id}"})
        for one in runs()[1:3]
    ]
    text = mail.compose(
        comparison.columns([*runs(), *third]), notes=[], beside=[], references={}, verdicts=[]
    )
    assert max(map(len, text.splitlines())) <= 76
    assert text.count("Amean    syst-repair-agstride-bhash") == 2


def test_what_a_reader_must_know_comes_before_the_tables() -> None:
    text = composed(
        runs(),
        [
            "NOT COMPARABLE, forced: host: machine=vm (3 runs), machine=big (3 runs)",
            "not counted: r9: guest lost",
        ],
    )
    assert (
        text.index("NOT COMPARABLE, forced: host")
        < text.index("not counted: r9: guest lost")
        < text.index("times in seconds")
    )


def test_no_emulation_is_said_of_kvm() -> None:
    assert "emulated" not in mail.setup(comparison.columns(runs(Accel.KVM)))


def test_a_kernel_that_nobody_knows_here_is_named_all_the_same() -> None:
    """A run from another machine, with a kernel of its own."""
    assert mail.kernel("mine", run("mine")) == "mine (mine-numalab)"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("4socket", "16 vCPUs, 16GiB, 4 nodes of 4GiB, distances 21, 31, a disk of 500TiB"),
        ("fakenuma", "numa=fake=4"),
        ("uma-4g", "4 vCPUs, 3584MiB, a disk of"),
        ("unequal", "2 nodes of 3328MiB and 768MiB"),
    ],
)
def test_shape(name: str, words: str) -> None:
    assert words in mail.shape(catalog.topology(name))


def test_tables_are_those_of_compare() -> None:
    found = comparison.columns(runs())
    titles = [block.title for block in comparison.compare(found)]
    assert all(isinstance(block, Block) for block in comparison.compare(found))
    lines = [line.removesuffix(" (emulated: no evidence)") for line in composed(runs()).splitlines()]
    assert [line for line in lines if line in titles] == titles
    virtual = "\n".join(composed([on_virtual_clock(one) for one in runs()]).splitlines())
    assert "\ntimes in seconds (instruction time)\n" in virtual
    assert "\ncounters\n" in virtual


def test_times_of_both_clocks_that_are_forced_together_are_called_both() -> None:
    first, *others = runs()
    found = comparison.columns([first, *(on_virtual_clock(one) for one in others)])
    text = mail.compose(found, notes=(), beside=(), references=REFERENCES, verdicts=[])
    assert "\ntimes in seconds (emulated: no evidence beside instruction time)\n" in text
    assert "and counters depend on the host's load); tcg (emulated on a virtual" in " ".join(text.split())


def test_hosts_of_a_spread_experiment_are_named() -> None:
    spread = [
        one.model_copy(
            update={
                "host": {"machine": name, "cpu": cpu, "cpus": "2", "qemu": "10.0.2"},
                "place": one.place and one.place.model_copy(update={"block": name}),
            }
        )
        for one, (name, cpu) in zip(runs(), [("h0", "EPYC"), ("h1", "Xeon")] * 3, strict=True)
    ]
    text = " ".join(mail.setup(comparison.columns(spread)).split())
    assert "Host: h0: EPYC, 2 CPUs, Linux ?, QEMU 10.0.2" in text
    assert "Host: h1: Xeon, 2 CPUs, Linux ?, QEMU 10.0.2" in text
    assert "Spread: spread over 2 hosts, each a block: boots on h0 " in text
    assert "Spread" not in mail.setup(comparison.columns(runs()))
