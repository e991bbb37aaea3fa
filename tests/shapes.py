# SPDX-License-Identifier: GPL-2.0-only
"""Topologies as a person might write them, made by hypothesis: most are possible, some are not.

`files()` gives the text of a topology's file, `scales()` what `--memory` and `--vcpus` may ask of it.
"""

from __future__ import annotations

import json
import random
from typing import Any

from hypothesis import strategies as st

SMALL_MIB = (128, 128, 128, 129, 160, 192, 255, 256, 257, 384, 511)
LARGE_MIB = (512, 768, 1000, 1536, 2048, 3072, 3584)
TINY_MIB = (1, 3, 4, 31, 32, 64, 100, 127)

MAX_DISKS = 25
DEALS = ("contiguous", "round robin", "random", "one node", "unequal")


def deal(way: str, vcpus: int, owners: list[int], chance: random.Random) -> dict[int, list[int]]:
    """Which vCPUs each of the nodes `owners` has; each has one at least, unless one node has all."""
    cpus = list(range(vcpus))
    if way == "one node":
        return {chance.choice(owners): cpus}
    if way == "random":
        chance.shuffle(cpus)
    if way == "round robin":
        return {node: cpus[i :: len(owners)] for i, node in enumerate(owners)}
    cuts = [vcpus * i // len(owners) for i in range(1, len(owners))]
    if way == "unequal":
        cuts = sorted(chance.sample(range(1, vcpus), len(owners) - 1))
    return {node: cpus[a:b] for node, a, b in zip(owners, [0, *cuts], [*cuts, vcpus], strict=True)}


def table(kind: str, count: int, chance: random.Random) -> list[list[int]]:
    """Distances of `count` nodes."""
    far = [[10 if i == j else chance.randint(11, 254) for j in range(count)] for i in range(count)]
    if kind == "symmetric":
        far = [[far[min(i, j)][max(i, j)] for j in range(count)] for i in range(count)]
    return far


@st.composite
def nodes(draw: st.DrawFn, *, most: int = 64) -> dict[str, Any]:
    """A machine with nodes: its CPUs, memory, nodes and distances."""
    count = draw(st.one_of(st.integers(1, min(8, most)), st.integers(1, most)))
    chance = random.Random(draw(st.integers(0, 1 << 32)))
    # Each node has both, or memory only, or CPUs only; one at least has CPUs and one has memory.
    kinds = [
        chance.choice(draw(st.sampled_from(("b", "bbbm", "bbbc", "bmc", "bm", "m", "c"))))
        for _ in range(count)
    ]
    if draw(st.integers(0, 19)) < 19:  # nodes without CPUs are refused elsewhere than at the end
        kinds.sort(key=lambda kind: kind == "m")
    owners = [i for i, kind in enumerate(kinds) if kind != "m"] or [0]
    holders = [i for i, kind in enumerate(kinds) if kind != "c"] or [count - 1]
    vcpus = draw(st.one_of(st.integers(len(owners), len(owners) + 8), st.integers(len(owners), 128)))
    cpus = deal(draw(st.sampled_from(DEALS)), vcpus, owners, chance)
    if draw(st.integers(0, 19)) < 19:  # nodes in another order than that of their first vCPUs are refused
        cpus = dict(zip(sorted(cpus), sorted(cpus.values(), key=min), strict=True))
    sizes = draw(
        st.sampled_from(
            (SMALL_MIB, SMALL_MIB, (*SMALL_MIB, *LARGE_MIB) if count <= 8 else SMALL_MIB, (128,), (256,))
        )
    )
    mibs = {i: chance.choice(sizes) for i in {*holders, *(i for i in range(count) if i not in cpus)}}
    if draw(st.integers(0, 19)) < 19:
        mibs[holders[0]] = max(mibs[holders[0]], 256)  # less is no machine
    else:
        mibs[chance.choice(holders)] = draw(st.sampled_from(TINY_MIB))
    hmat = draw(st.sampled_from(("", "", "", "all", "memory")))
    if hmat and draw(st.integers(0, 9)) < 9:  # an HMAT with nodes without memory is refused
        mibs = {i: mibs.get(i, 128) for i in range(count)}
    rates = draw(
        st.sampled_from(
            ((1024, 10240, 40960, 65536), (1024, 10240, 40960), (1, 100, 40960), (1, 1024, 65536, 123457))
        )
    )
    made = []
    for i in range(count):
        node: dict[str, Any] = {}
        if i in cpus:
            node["cpus"] = shown(cpus[i], chance)
        if i in mibs:
            node["memory"] = f"{mibs[i]}MiB"
        if hmat == "all" or (hmat and i in mibs):
            node["latency_ns"] = chance.choice((1, 80, 120, 250, 999, 5000, 65534))
            node["bandwidth_mibs"] = chance.choice(rates)
        made.append(node)
    data = {"vcpus": vcpus, "memory": f"{sum(mibs.values())}MiB", "nodes": made}
    if kind := draw(st.sampled_from(("", "symmetric", "asymmetric"))):
        data["distances"] = table(kind, count, chance)
    return data


def shown(cpus: list[int], chance: random.Random) -> str:
    """A CPU list, with ranges or without."""
    cpus = sorted(cpus)
    if cpus == list(range(cpus[0], cpus[-1] + 1)) and len(cpus) > 1:
        return f"{cpus[0]}-{cpus[-1]}"
    if chance.random() < 0.1:
        chance.shuffle(cpus)
    return ",".join(map(str, cpus))


@st.composite
def plain(draw: st.DrawFn) -> dict[str, Any]:
    """A machine of one node, with fake nodes or without."""
    data: dict[str, Any] = {"vcpus": draw(st.one_of(st.integers(1, 16), st.integers(1, 256)))}
    size = draw(
        st.sampled_from(
            (
                "256MiB",
                "257MiB",
                "300.5MiB",
                "262145KiB",
                "512MiB",
                "1GiB",
                "2815MiB",
                "2816MiB",
                "3583MiB",
                "3.5GiB",
                "6GiB",
            )
        )
    )
    data["memory"] = size
    if draw(st.booleans()):
        data["fake"] = draw(st.integers(2, 32))
        if draw(st.integers(0, 7)) < 7:  # each is a multiple of 32 MiB, or else refused
            data["memory"] = f"{data['fake'] * 32 * draw(st.integers(4, 12))}MiB"
    return data


BROKEN = (
    lambda d: d.update(sockets=d["vcpus"] + 1),
    lambda d: d.update(vcpus=d["vcpus"] + 1),
    lambda d: d.update(vcpus=0),
    lambda d: d.update(memory="100MiB"),
    lambda d: d.update(memory=1024),
    lambda d: d.update(fake=4),
    lambda d: d.update(fake=1),
    lambda d: d.update(distances=[[10]] * 3),
    lambda d: d.update(distances=[[255]]),
    lambda d: d.update(colour="blue"),
    lambda d: d.update(nodes=[*d.get("nodes", []), {}]),
    lambda d: d.update(nodes=[*d.get("nodes", []), {"cpus": "0"}]),
    lambda d: d.update(nodes=[*d.get("nodes", []), {"memory": "128MiB"}]),
    lambda d: d.update(nodes=[*d.get("nodes", []), {"cpus": "999"}]),
    lambda d: d.update(nodes=[*d.get("nodes", []), {"memory": "128MiB", "latency_ns": 70}]),
    lambda d: d.pop("memory"),
    lambda d: d.update(machine="microvm"),
    lambda d: d.update(disks=[{"name": "a b", "size": "1GiB"}]),
    lambda d: d.update(description="a\nb"),
    lambda d: d.update(nodes=[{"cpus": "0", "memory": "128MiB"}] * 65, vcpus=1),
    lambda d: d.update(nodes="all"),
)
"""What makes nearly every topology impossible."""


def written(data: dict[str, Any]) -> str:
    """A topology's file: each line is YAML, because JSON is."""
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in data.items())


@st.composite
def files(draw: st.DrawFn, *, most: int = 64, broken: bool = True, disks: int = MAX_DISKS) -> str:
    """The text of a topology's file."""
    data = draw(st.one_of(nodes(most=most), nodes(most=most), nodes(most=most), plain()))
    data = {
        "description": draw(st.sampled_from(("made by hypothesis", "<&>\"'", "café"))),
        "machine": draw(st.sampled_from(("q35", "pc"))),
        **data,
    }
    if draw(st.booleans()):
        data["sockets"] = draw(
            st.sampled_from([n for n in range(1, data["vcpus"] + 1) if data["vcpus"] % n == 0])
        )
    kinds = st.fixed_dictionaries(
        {"size": st.sampled_from(("1MiB", "16GiB", "500TiB"))},
        optional={"bus": st.sampled_from(("virtio", "usb")), "mibs_per_second": st.integers(1, 100_000)},
    )
    names = draw(
        st.lists(
            st.from_regex(r"[a-zA-Z0-9]{1,20}", fullmatch=True),
            max_size=draw(st.sampled_from((0, 0, 2, disks))),
            unique=True,
        )
    )
    if disks == MAX_DISKS and draw(st.integers(0, 19)) == 19:
        names = [f"d{i}" for i in range(disks)]  # as many as can be
    if names:
        data["disks"] = [{"name": name} | draw(kinds) for name in names]
    if broken and draw(st.integers(0, 7)) == 7:
        draw(st.sampled_from(BROKEN))(data)
    return written(data)


@st.composite
def scales(draw: st.DrawFn) -> tuple[int | None, int | None]:
    """Memory in MiB and vCPUs, as --memory and --vcpus may ask; None leaves them as they are."""
    if draw(st.integers(0, 2)) < 2:
        return None, None
    return draw(st.one_of(st.none(), st.integers(1, 300), st.integers(256, 10_000))), draw(
        st.one_of(st.none(), st.integers(0, 12), st.integers(1, 260))
    )
