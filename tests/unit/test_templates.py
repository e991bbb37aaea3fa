# SPDX-License-Identifier: GPL-2.0-only
"""No text of a case, topology, kernel recipe, era, container or image recipe is ever a template to Ansible or
Packer.

Each text field of each kind of file gets lures, one at a time. Then either the file is refused with one line,
or everything that the lab passes to Ansible and Packer has the lure as a literal. Fields come from the
models, so a new one is tested without an edit. That Ansible does not evaluate literals is tested in
host/test_ansible.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

import pytest
from pydantic import BaseModel

from numalab.core import state
from numalab.core.errors import InputError
from numalab.core.process import Deadline, Result
from numalab.guest import guest, provision
from numalab.host import ansible, image
from numalab.host.image import Image, ImageRecipe
from numalab.kernel import boot as kernel_boot
from numalab.kernel import build, era, recipe, source, toolchain
from numalab.kernel.build import Built
from numalab.kernel.era import Container, Era
from numalab.kernel.recipe import KernelRecipe
from numalab.kernel.source import Tree
from numalab.kernel.toolchain import Tools
from numalab.model import catalog
from numalab.model.case import Case
from numalab.model.guest import Boot
from numalab.model.topology import Topology
from tests.unit import makers
from tests.unit.makers import FakeHost

LURES = ("{{ lookup('pipe', 'id') }}", "{{ 7 * 191 }}", "{{7*191}}", "{%raw%}")
"""The later ones have none of the characters that many fields refuse."""
TEMPLATE = re.compile(r"\{\{|\{%|\{#")
LITERAL = re.compile(r'!unsafe "(?:[^"\\]|\\.)*"')
KEY, ANY = "(a key)", "(any)"
"""Steps of a path in a file: a mapping's key itself; the value of any key."""
EMPTY = hashlib.sha256(b"").hexdigest()

DISK = {"name": "d", "size": "1GiB", "bus": "virtio", "mibs_per_second": 5}
SAMPLES: dict[type[BaseModel], list[dict[str, Any]]] = {
    Case: [
        {
            "description": "d",
            "source": "s",
            "published": ["stagger-nas"],
            "workload": "threads",
            "before": "6.1",
            "after": "6.12",
            "also": ["6.1"],
            "disks": [DISK],
            "append": "quiet",
            "tracepoints": ["migrate:mm_migrate_pages"],
            "notes": "n",
            "sizes": {
                "quick": {
                    "source": "s",
                    "machines": [{"topology": "4socket", "memory": "4GiB", "vcpus": 4}],
                    "params": {"threads": "8"},
                    "sysctls": {"vm.swappiness": "1"},
                    "instead": {"vm.swappiness": {"vm.overcommit_ratio": "50"}},
                    "knobs": {"scan_delay_ms": "5"},
                    "boots": 3,
                    "most_boots": 4,
                    "minutes": 1,
                }
            },
            "expect": [
                {
                    "metric": "m",
                    "phase": "p",
                    "direction": "falls",
                    "by": 2,
                    "to": 1,
                    "releases": "6.*",
                    "decides": True,
                    "why": "w",
                }
            ],
        }
    ],
    Topology: [
        {
            "description": "d",
            "source": "s",
            "machine": "q35",
            "vcpus": 1,
            "sockets": 1,
            "memory": "512MiB",
            "disks": [DISK],
            "nodes": [{"cpus": "0", "memory": "512MiB", "latency_ns": 10, "bandwidth_mibs": 10}],
            "distances": [[10]],
        },
        {"description": "d", "vcpus": 1, "memory": "512MiB", "fake": 2, "deals_cpus": False},
    ],
    KernelRecipe: (
        [
            {
                "description": "d",
                "config": ["base"],
                "apply": ["slowscan"],
                "series": "6.1",
                "era": "e",
                "source": where,
            }
            for where in (
                {"debian-source": "6.1"},
                {"git": {"url": "/linux", "rev": "v6.1", "commit": "ffc253263a13"}},
                {"tarball": {"path": "linux.tar"}},
                {"tarball": {"url": "https://example.org/linux.tar", "sha256": EMPTY}},
            )
        ]
        + [
            {
                "description": "d",
                "config": ["base"],
                "revert": ["slowscan"],
                "source": {"debian-source": "6.1"},
            },
            {"description": "d", "source": {"prebuilt": {"bzimage": "bzImage", "modules": "modules.tar"}}},
            {"description": "d", "source": {"debian-image": True}},
        ]
    ),
    Era: [
        {
            "description": "d",
            "container": "c",
            "compiler": "gcc-9",
            "flags": ["-fno-pie"],
            "header": "compiler-gcc4.h",
            "lacks": ["CONFIG_A"],
            "append": "quiet",
            "random_seed": True,
            "machine": "pc",
            "deals_cpus": True,
            "mkfs_xfs": "-m crc=0",
        }
    ],
    Container: [{"description": "d", "suite": "bullseye", "packages": ["gcc-9"]}],
    ImageRecipe: [
        {
            "description": "d",
            "suite": "bookworm",
            "disk": "4GiB",
            "playbook": "guest.yml",
            "packages": ["fio"],
        }
    ],
}
REACHED = {
    (Case, "append"),
    (Case, f"sizes.{ANY}.sysctls.{ANY}"),
    (Case, f"sizes.{ANY}.knobs.{ANY}"),
    (KernelRecipe, "source.tarball.path"),
    (KernelRecipe, "source.tarball.url"),
    (KernelRecipe, "source.prebuilt.bzimage"),
    (KernelRecipe, "source.prebuilt.modules"),
    (Era, "append"),
}
"""Fields whose texts reach Ansible as they are. Other fields refuse lures, or are used elsewhere."""
Place = tuple[str | int, ...]


def places(kind: Any) -> Iterator[Place]:
    """All paths in a type where a file may have a text, or where this test puts one."""
    origin, inner = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        for name, field in kind.model_fields.items():
            yield from ((field.alias or name, *rest) for rest in places(field.annotation))
    elif origin is Annotated:
        yield from places(inner[0])
    elif origin in (Union, types.UnionType):
        yield from (place for part in inner if part is not type(None) for place in places(part))
    elif origin is tuple:
        yield ()  # a text in place of a list
        if inner[0] is int:  # a CPU list, which is a text
            return
        yield from ((0, *rest) for rest in places(inner[0]))
    elif origin is dict:
        yield (KEY,)
        yield from ((ANY, *rest) for rest in places(inner[1]))
    else:
        yield ()


def lured(sample: dict[str, Any], place: Place, lure: str, *, behind: bool) -> dict[str, Any] | None:
    """The sample with a lure at a path, or appended to what is there; None without such a path."""
    data = copy.deepcopy(sample)
    inside: Any = data
    for step in place[:-1]:
        key = next(iter(inside)) if step == ANY else step
        if isinstance(key, str) and key not in inside:
            return None
        inside = inside[key]
    last = place[-1]
    if last == KEY:
        key = next(iter(inside))
        inside[f"{key}{lure}" if behind else lure] = inside.pop(key)
        return data
    key = next(iter(inside)) if last == ANY else last
    known = inside.get(key, "") if isinstance(inside, dict) else inside[key]
    inside[key] = f"{known}{lure}" if behind else lure
    return data


class Handed:
    """What Ansible and Packer were given."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.yaml: list[str] = []
        self.plain: list[str] = []

    def play(self, argv: Sequence[str | Path], *, env: Mapping[str, str], **_: object) -> Result:
        """Replaces ansible-playbook."""
        words = [str(word) for word in argv]
        self.words += words
        for option, value in itertools.pairwise(words):
            if option == "-e":
                self.yaml.append(Path(value.removeprefix("@")).read_text())
            if option == "-i" and not value.endswith(".ini"):
                self.yaml.append(Path(value).read_text())
        recap = {"recap": {"x": {"ok": 1, "changed": 0}}}
        Path(env["NUMALAB_EVENTS"]).write_text(json.dumps(recap) + "\n")
        return Result(tuple(words), 0, "", "", 0.0)

    def packer(self, argv: Sequence[str | Path], **_: object) -> Result:
        """Replaces packer."""
        self.words += [str(word) for word in argv]
        scratch = next(Path(word).parent for word in argv if Path(word).name == "vars.pkrvars.json")
        self.plain.append((scratch / "vars.pkrvars.json").read_text())
        self.yaml.append((scratch / "vars.yml").read_text())
        (scratch / "packer").mkdir()
        (scratch / "packer/disk.qcow2").touch()
        return Result((), 0, "", "", 0.0)

    @property
    def literals(self) -> list[str]:
        """The texts that are literals to Ansible."""
        return [text for yaml in self.yaml for text in LITERAL.findall(yaml)]

    def check(self) -> None:
        """Assert that no template is left when the literals are removed."""
        assert self.yaml, "nothing was handed over"
        for text in (*(LITERAL.sub("", yaml) for yaml in self.yaml), *self.plain, *self.words):
            assert not TEMPLATE.search(text), text


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: Callable[[str, str], Path]) -> Handed:
    """A lab in which nothing is downloaded, built or played; files with hostile names exist."""
    handed = Handed()
    program("packer", "exit 1")
    monkeypatch.chdir(tmp_path)
    for name in ("bzImage", "modules.tar", "linux.tar"):
        for path in (name, *LURES, *(f"{name}{lure}" for lure in LURES)):
            Path(path).touch()
    tree = Tree(id="git-1", tarball="/t", series="6.1")
    base = Image(
        name="debian12", id="0" * 16, directory=str(tmp_path), root="PARTUUID=1", disk_bytes=1, inputs={}
    )

    def built(plan: build.BuildPlan) -> Built:
        return Built(
            name=plan.name,
            key=plan.key,
            directory=str(tmp_path),
            release=f"6.1-numalab-{plan.name}",
            seconds=1,
            patches=(),
            source=plan.tree.id,
            compiler=plan.tools.compiler,
            bzimage_bytes=1,
            modules=True,
        )

    monkeypatch.setattr(source, "_git", lambda *_: tree)
    monkeypatch.setattr(source, "_debian", lambda *_, named: tree)
    monkeypatch.setattr(source, "_download", lambda _url, _sha256, path, _deadline: path.touch())
    monkeypatch.setattr(
        toolchain,
        "tools",
        lambda *_, **__: Tools(
            compiler="gcc-9 (Debian) 9.3.0", binutils=("GNU as", "GNU ld"), container="c-1"
        ),
    )
    monkeypatch.setattr(recipe, "era", lambda _: Era.model_validate(SAMPLES[Era][0]))
    for module in (era, source):
        monkeypatch.setattr(module, "container", lambda _: Container.model_validate(SAMPLES[Container][0]))
    monkeypatch.setattr(kernel_boot, "existing", built)
    monkeypatch.setattr(image, "pinned", lambda *_: base)
    monkeypatch.setattr(ansible, "run", handed.play)
    monkeypatch.setattr(image, "run", handed.packer)
    return handed


def play_guest(
    deadline: Deadline, boot: Boot, shape: Topology | None = None, order: provision.Order | None = None
) -> None:
    """Run the plays of a guest: its own kernel in its GRUB, sysctls and knobs."""
    about = makers.record("g")
    spec = about.spec.model_copy(
        update={"boot": boot.model_copy(update={"kernel": None}), "topology": shape or about.spec.topology}
    )
    one = guest.Guest(about.model_copy(update={"spec": spec}), FakeHost().real())
    state.folder("guests", "g")
    one.save()
    assert provision.own_kernel(one, recipe.load(boot.name), deadline) == 0
    if order:
        provision.tune(one, order, deadline)


def use_case(path: Path, deadline: Deadline) -> None:
    """Use a case's words and settings in a guest, as `provision` does."""
    case = catalog.load(Case, path)
    about = next(iter(case.sizes.values()))
    play_guest(
        deadline,
        Boot(name="debian", cmdline=case.append),
        order=provision.Order(sysctls=about.sysctls, knobs=about.knobs),
    )


def use_topology(path: Path, deadline: Deadline) -> None:
    """Use a topology as `up` does."""
    play_guest(deadline, Boot(name="debian"), catalog.topology(str(path)))


def use_kernel(path: Path, deadline: Deadline) -> None:
    """Use a kernel as `kernel build` and then `up --boot grub` do."""
    kernel = recipe.load(str(path))
    if kernel.recipe.built:
        plan = build.make_plan(kernel, None, deadline, fetch=True)
        assert plan
        for tag in ("configure", "build"):
            build._play(plan, tag, path.with_name("out"), deadline)
    play_guest(deadline, kernel_boot.resolve(kernel, image.pinned("debian12", "")))


def sample_kernel(path: Path) -> Path:
    """A recipe with an era, beside another file."""
    mine = path.with_name("mine.yml")
    mine.write_text(json.dumps(SAMPLES[KernelRecipe][0]))
    return mine


def use_era(path: Path, deadline: Deadline) -> None:
    """Use an era through a kernel that names it."""
    found = catalog.load(Era, path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipe, "era", lambda _: found)
        use_kernel(sample_kernel(path), deadline)


def use_container(path: Path, deadline: Deadline) -> None:
    """Use a container through a kernel whose era names it."""
    found = catalog.load(Container, path)
    with pytest.MonkeyPatch.context() as patch:
        for module in (era, source):
            patch.setattr(module, "container", lambda _: found)
        use_kernel(sample_kernel(path), deadline)


def use_image(path: Path, deadline: Deadline) -> None:
    """Use an image as `image build` does, from the base disk on."""
    scratch = path.with_name("scratch")
    scratch.mkdir()
    image._packer("debian12", image.recipe(str(path)), path, scratch, "tcg", [], None, deadline)


USES: dict[type[BaseModel], Callable[[Path, Deadline], None]] = {
    Case: use_case,
    Topology: use_topology,
    KernelRecipe: use_kernel,
    Era: use_era,
    Container: use_container,
    ImageRecipe: use_image,
}


def refusal(kind: type[BaseModel], path: Path, deadline: Deadline) -> str:
    """Use a file; returns the error that refuses it, or ''."""
    try:
        USES[kind](path, deadline)
    except InputError as error:
        return str(error)
    return ""


ALL = [
    pytest.param(kind, place, id=f"{kind.__name__}-{'.'.join(map(str, place))}")
    for kind in SAMPLES
    for place in places(kind)
]


@pytest.mark.parametrize("kind", SAMPLES)
def test_samples_are_taken(kind: type[BaseModel], handed: Handed, deadline: Deadline, tmp_path: Path) -> None:
    """Otherwise a lure might be refused for another reason."""
    for index, sample in enumerate(SAMPLES[kind]):
        path = tmp_path / str(index) / "file.yml"
        path.parent.mkdir()
        path.write_text(json.dumps(sample))
        USES[kind](path, deadline)
    handed.check()


@pytest.mark.parametrize(("kind", "place"), ALL)
def test_refused_or_a_literal(
    kind: type[BaseModel], place: Place, handed: Handed, deadline: Deadline, tmp_path: Path
) -> None:
    tries = [
        (data, lure)
        for sample in SAMPLES[kind]
        for lure in LURES
        for behind in (False, True)
        if (data := lured(sample, place, lure, behind=behind))
    ]
    assert tries, f"give SAMPLES of {kind.__name__} a file that has {place}"
    for index, (data, _) in enumerate(tries):
        path = tmp_path / str(index) / "file.yml"
        path.parent.mkdir()
        path.write_text(json.dumps(data))
        if refused := refusal(kind, path, deadline):
            assert "\n" not in refused
            assert "file.yml" in refused
            assert str(place[0]) in refused
        else:
            handed.check()
    reached = any(
        lure in json.loads(text.removeprefix("!unsafe ")) for text in handed.literals for _, lure in tries
    )
    assert reached is ((kind, ".".join(map(str, place))) in REACHED)


def test_a_template_would_be_seen(
    handed: Handed, deadline: Deadline, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ansible, "_literal", lambda value: value)
    path = tmp_path / "file.yml"
    path.write_text(json.dumps(SAMPLES[Case][0] | {"append": LURES[0]}))
    use_case(path, deadline)
    with pytest.raises(AssertionError, match="lookup"):
        handed.check()
