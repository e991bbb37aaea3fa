# SPDX-License-Identifier: GPL-2.0-only
"""A comparison as plain text for a mailing list: the setup, the tables, the published numbers, the verdict.

No line is wider than 76, unless a single word or a row's name is. Kernels are described from kernels/ as it
is now: run.json has only a kernel's name, release and hash. Not here: the tables (comparison, table).
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from numalab.analysis.beginning import prepared, restored
from numalab.analysis.verdict import hung, spread
from numalab.core.errors import InputError
from numalab.kernel import recipe
from numalab.model.run import Run
from numalab.model.topology import Topology
from numalab.model.units import show_size
from numalab.model.verdict import Verdict
from numalab.report import comparison, replication, table
from numalab.report import text as report_text
from numalab.report.comparison import Columns
from numalab.report.reference import Published
from numalab.report.replication import Beside

WIDTH = 76
INDENT = 10
"""Indent of the text that follows a heading of the setup."""


def compose(
    columns: Columns,
    *,
    notes: Sequence[str],
    beside: Sequence[Beside],
    references: Mapping[str, Published],
    verdicts: Sequence[Verdict],
) -> str:
    """The text of the mail. `beside` are rows of `references`; `notes` come before the tables."""
    parts = [setup(columns)]
    parts += [_paragraph(note) for note in notes]
    parts += [
        f"{comparison.titled(block, columns)}\n{table.text(block, WIDTH)}"
        for block in comparison.compare(columns)
    ]
    if beside:
        parts.append(replication.text(beside, references))
    parts += [verdict(one) for one in verdicts]
    return "\n\n".join(parts) + "\n"


def setup(columns: Columns) -> str:
    """The setup: host, guest, image, kernels, workload, boots."""
    every = [run for boots in columns.values() for run in boots]
    run = every[0]
    spec = run.guest.spec
    specs = [one.guest.spec for one in every]
    accels = dict.fromkeys(f"{one.accel} ({one.caveat})" if one.caveat else one.accel.value for one in specs)
    place = run.place
    hosts = (
        {one.place.block if one.place else "": one for one in reversed(every)} if spread(every) else {"": run}
    )
    facts = [
        *([("Case", f"{place.case_name}: {place.case.description} ({place.case.source})")] if place else []),
        *[("Host", f"{f'{name}: ' * bool(name)}{_host(first)}") for name, first in hosts.items()],
        *([("Spread", spread(every))] if spread(every) else []),
        ("Guest", f"{spec.topology_name}: {shape(spec.topology)}"),
        ("Accel", "; ".join(accels)),
        ("Image", f"{run.guest.image} {run.guest.image_id}"),
        *(("Kernel", kernel(heading, boots[0])) for heading, boots in columns.items()),
        (
            "Workload",
            (
                f"{run.workload}, size {run.size}:"
                f" {', '.join(f'{key} {value}' for key, value in run.params.items())}"
            ),
        ),
        *(
            [("Settings", ", ".join(f"{key} {value}" for key, value in run.settings.items()))]
            if run.settings
            else []
        ),
        (
            "Boots",
            ", ".join(f"{len(boots)} of {heading}" for heading, boots in columns.items())
            + (f"; {'' if restored(every) else 'fresh '}guests, taken in turn" if place else ""),
        ),
        *([("Restored", restored(every))] if restored(every) else []),
        *([("Prepared", prepared(every))] if prepared(every) else []),
        *([("Hung", hung(every))] if hung(every) else []),
    ]
    return "\n".join(_paragraph(f"{title + ':':{INDENT}}{text}", INDENT) for title, text in facts)


def _host(run: Run) -> str:
    """A run's host in words."""
    return (
        f"{run.host.get('cpu', '?')}, {run.host.get('cpus', '?')} CPUs, Linux {run.host.get('kernel', '?')},"
        f" QEMU {run.host.get('qemu', '?')}"
    )


def shape(machine: Topology) -> str:
    """A topology in words: vCPUs, memory, nodes, distances."""
    words = [f"{machine.vcpus} vCPUs", show_size(machine.memory)]
    if machine.fake:
        words.append(f"numa=fake={machine.fake}")
    elif machine.nodes:
        sizes = list(dict.fromkeys(show_size(node.memory) for node in machine.nodes))
        words.append(f"{len(machine.nodes)} nodes of {' and '.join(sizes)}")
    if far := sorted(
        {distance for i, row in enumerate(machine.distances) for j, distance in enumerate(row) if i != j}
    ):
        words.append(f"distance{'s' * (len(far) > 1)} {', '.join(map(str, far))}")
    words += [f"a disk of {show_size(disk.size)}" for disk in machine.disks]
    return ", ".join(words)


def kernel(heading: str, run: Run) -> str:
    """A kernel's name and release, and its patch sets if kernels/ has its recipe."""
    try:
        what = recipe.load(run.kernel).recipe
    except InputError:
        return f"{heading} ({run.release})"
    changes = [
        f"{word} {', '.join(sets)}" for word, sets in (("with", what.apply), ("without", what.revert)) if sets
    ]
    return f"{heading} ({run.release}): {'; '.join([what.description, *changes])}"


def verdict(judged: Verdict) -> str:
    """A case's verdict (text.verdict), wrapped, in ASCII."""
    lines = report_text.verdict(judged).replace("×", "x").splitlines()
    return "\n".join(_paragraph(line, len(line) - len(line.lstrip()) + 4) for line in lines)


def _paragraph(text: str, indent: int = 2) -> str:
    return textwrap.fill(
        text, WIDTH, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )
