# SPDX-License-Identifier: GPL-2.0-only
"""A matrix's cells."""

from __future__ import annotations

import pytest

from numalab.core.errors import InputError
from numalab.experiment.matrix import Cell, cells
from numalab.model import catalog
from numalab.model.values import SizeClass

QUICK, FULL = SizeClass.QUICK, SizeClass.FULL


def test_a_case_alone_is_its_first_machine_and_its_own_kernels() -> None:
    first = catalog.case("xfsrepair").sizes[QUICK].machines[0].topology
    assert list(cells(["xfsrepair"], sizes=[QUICK])) == [Cell("xfsrepair", QUICK, first, ())]


def test_all_combinations() -> None:
    made = list(
        cells(
            ["xfsrepair", "threads"],
            sizes=[QUICK],
            topologies=["4socket", "unequal"],
            kernels=["6.1-slowscan-before,6.1", "6.1,6.1"],
        )
    )
    assert len(set(made)) == len(made) == 8
    assert made[0] == Cell("xfsrepair", QUICK, "4socket", ("6.1-slowscan-before", "6.1"))


def test_what_a_series_lacks_is_left_out() -> None:
    made = list(cells(["threads", "fairzone", "xfsrepair"], sizes=[QUICK], series=["6.12"]))
    assert "fairzone" not in {cell.case for cell in made}
    assert {cell.case: cell.kernels for cell in made}["xfsrepair"] == ("6.12-all-before", "6.12")


def test_7_2_has_a_pair_for_every_case() -> None:
    names = catalog.names("testcases")
    made = list(cells(names, sizes=[QUICK], series=["7.2"]))
    assert {cell.case for cell in made} == set(names)
    assert all(kernel.startswith("7.2") for cell in made for kernel in cell.kernels)
    assert all(len(set(cell.kernels)) == 2 for cell in made)


def test_kernels_or_series() -> None:
    with pytest.raises(InputError, match="give one of the two"):
        list(cells(["threads"], sizes=[QUICK], kernels=["6.1,6.1"], series=["6.12"]))
