# SPDX-License-Identifier: GPL-2.0-only
"""The digest of a checkout, and an order's way to a host and back."""

from __future__ import annotations

from pathlib import Path

import pytest

from numalab.core import paths
from numalab.core.errors import InputError
from numalab.experiment.plan import make_plan
from numalab.model.values import SizeClass
from numalab.pool import unit

FILES = (
    "testcases/threads.yml",
    "testcases/workloads/shared.h",
    "playbooks/roles/guest/files/root/usr/local/sbin/lab-init",
    "images/debian12.yml",
)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with FILES; the package is this one's."""
    root = tmp_path / "checkout"
    for name in FILES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    monkeypatch.setattr(paths, "ROOT", root)
    return root


@pytest.mark.parametrize("name", FILES)
def test_each_file_that_decides_a_measurement_is_in_the_digest(checkout: Path, name: str) -> None:
    before = unit.checkout()
    assert unit.checkout() == before
    (checkout / name).write_text("changed")
    assert unit.checkout() != before


def test_what_python_leaves_is_not_in_the_digest(checkout: Path) -> None:
    before = unit.checkout()
    cache = checkout / "testcases/workloads/__pycache__"
    cache.mkdir()
    (cache / "threads.cpython-311.pyc").touch()
    assert unit.checkout() == before


def test_an_installed_lab_s_digest_has_a_person_s_own_files(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "CHECKOUT", False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    before = unit.checkout()
    own = paths.own() / "testcases/threads.yml"
    own.parent.mkdir(parents=True)
    own.write_text((checkout / "testcases/threads.yml").read_text())
    assert unit.checkout() == before, "the same files, in another place"
    own.write_text("mine")
    assert unit.checkout() != before


def test_the_package_is_in_the_digest(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "numalab"
    (package / "measure").mkdir(parents=True)
    monkeypatch.setattr(paths, "PACKAGE", package)
    before = unit.checkout()
    (package / "measure/agent.py").touch()
    assert unit.checkout() != before


def test_an_order_becomes_the_plan_that_it_was_made_of() -> None:
    plan = make_plan("threads", SizeClass.QUICK, seed=7, side_by_side=2)
    made = unit.order(0, plan, 3)
    assert unit.plan(made) == plan
    alone = unit.order(0, plan.model_copy(update={"side_by_side": 1}), 3)
    assert made.needs_memory == 2 * alone.needs_memory
    many = unit.order(0, plan.model_copy(update={"side_by_side": 9}), 3)
    assert many.needs_memory == made.needs_memory, "a round has two boots"


def test_a_tarball_in_the_environment_is_this_machines(tmp_path: Path) -> None:
    """A host of the pool has no such variable, and would run our programs in place of the user's."""
    plan = make_plan("nas", SizeClass.QUICK)
    unit.order(1, plan, 3)
    params = {**plan.case_size.params, "tarball": str(tmp_path / "npb.tar.gz")}
    sizes = {**plan.case.sizes, plan.size: plan.case_size.model_copy(update={"params": params})}
    named = plan.model_copy(update={"case": plan.case.model_copy(update={"sizes": sizes})})
    with pytest.raises(InputError, match=r"case nas: /.*/npb\.tar\.gz: a file of this machine"):
        unit.order(1, named, 3)


def test_ready_states_and_prepared_disks_are_this_machines() -> None:
    with pytest.raises(InputError, match="ready states are for experiments on this machine"):
        unit.order(1, make_plan("migratefail", SizeClass.QUICK, ready=True), 3)
    with pytest.raises(InputError, match="prepared disks are for experiments on this machine"):
        unit.order(1, make_plan("xfsrepair", SizeClass.QUICK, prepared_disks=True), 3)


def test_a_spread_order_is_dealt_out_in_whole_rounds() -> None:
    whole = unit.order(0, make_plan("threads", SizeClass.QUICK), 5, 2)
    assert unit.parts(unit.order(0, make_plan("threads", SizeClass.QUICK), 5)) == [
        whole.model_copy(update={"spread": 1})
    ]
    first, second = unit.parts(whole)
    assert (first.rounds, second.rounds) == (2, 3)
    assert len({first.id, second.id, whole.id}) == 3
    boots = [*first.boots(range(2)), *second.boots(range(3))]
    assert boots == list(range(10)), "every boot of the experiment, once"
    assert unit.Order.model_validate_json(second.model_dump_json()) == second


@pytest.mark.parametrize(
    ("boots", "says"),
    [
        (4, "4 rounds over 2 hosts are too few: 5 or more"),
        (None, "judged once, and not until its answer is clear: give a number, 5 or more"),
    ],
)
def test_what_cannot_be_spread_is_refused(boots: int | None, says: str) -> None:
    with pytest.raises(InputError, match=says):
        unit.order(0, make_plan("threads", SizeClass.QUICK), boots, 2)
