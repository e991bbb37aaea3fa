# SPDX-License-Identifier: GPL-2.0-only
"""JSON and CSV: programs read what the runs contain, under names that do not change."""

from __future__ import annotations

import csv
import io
import json

import pytest
from pydantic import TypeAdapter

from numalab.analysis import metrics
from numalab.model.case import Arm
from numalab.model.run import Run
from numalab.model.values import jsonable
from numalab.report import comparison as report_comparison
from numalab.report import export
from numalab.report.export import Comparison
from tests.unit.synthetic import phase, run

VMSTAT = {"numa_hit": 7, "numa_pte_updates": 1000, "numa_huge_pte_updates": 2}
NODE = {"nr_free_pages": -3}
TRACE = {"migrate:mm_migrate_pages": 5}


def made(kernel: str = "6.1", boot: int = 0, **changes: object) -> Run:
    first = phase("p", elapsed=1.5, system=0.1, vmstat=VMSTAT, output={"files_per_second": 2.5}).model_copy(
        update={"counters": {"vmstat": VMSTAT, "node0.vmstat": NODE, "trace": TRACE}}
    )
    return run(kernel, phase("mkfs", measured=False), first, phase("q"), boot=boot, arm=Arm.AFTER).model_copy(
        update=changes
    )


def records(*runs: Run) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(export.to_csv([runs], [""]))))


def test_csv_has_a_line_for_each_run_phase_and_metric() -> None:
    found = records(made(), made(boot=1))
    assert tuple(found[0]) == export.FIELDS
    values = {(row["run"][-1], row["phase"], row["metric"]): row["value"] for row in found}
    assert len(values) == len(found), "no metric twice"
    assert {row["phase"] for row in found} == {"p", "q"}, "preparation is no result"
    assert values["0", "p", "numa_pte_updates"] == "1000"
    assert values["0", "p", "node0.vmstat:nr_free_pages"] == "-3"
    assert values["0", "p", "trace:migrate:mm_migrate_pages"] == "5"
    assert values["0", "p", "output:files_per_second"] == "2.5"
    assert values["0", "p", "elapsed"] == "1.5"
    assert values["0", "p", "page_range_updates"] == "2024"
    assert ("0", "q", "numa_pte_updates") not in values
    assert "numa_hint_faults" not in {row["metric"] for row in found}, "absent has no line"


def test_csv_says_where_a_value_is_from() -> None:
    row = next(row for row in records(made()) if row["metric"] == "elapsed")
    assert {key: row[key] for key in export.FIELDS[1:13]} == {
        "started": "20261121T120000",
        "case": "xfsrepair",
        "experiment": "20261121T120000-xfsrepair",
        "arm": "after",
        "boot": "0",
        "workload": "xfsrepair",
        "size": "quick",
        "topology": "4socket",
        "accel": "tcg",
        "kernel": "6.1",
        "release": "6.1-numalab",
        "phase": "p",
    }
    assert row["unit"] == "s"
    alone = next(iter(records(made(place=None))))
    assert (alone["case"], alone["arm"], alone["boot"]) == ("", "", "")


def test_csv_quotes_what_needs_it() -> None:
    (release,) = {row["release"] for row in records(made(release='6.1, "mine"'))}
    assert release == '6.1, "mine"'


def test_broken_runs_have_no_line() -> None:
    assert records(made(error="guest lost")) == []


def test_every_metric_of_the_csv_is_one_of_the_lab() -> None:
    assert all(metrics.known(row["metric"]) for row in records(made()))


def comparison(*runs: Run) -> Comparison:
    return export.comparison(
        report_comparison.columns(runs),
        runs=runs,
        forced=["host: a (1 run), b (1 run)"],
        published=(),
        verdicts=(),
    )


def test_json_round_trip() -> None:
    found = comparison(made("6.0"), made("6.1", boot=1), made("6.1", boot=2, error="lost"))
    told = json.loads(json.dumps(jsonable(found)))
    assert TypeAdapter(Comparison).validate_python(told) == found
    assert told["format"] == "numalab-compare-1"
    columns = [(column["heading"], column["releases"], len(column["runs"])) for column in told["columns"]]
    assert columns == [("6.0", ["6.0-numalab"], 1), ("6.1", ["6.1-numalab"], 1)]
    assert [broken["error"] for broken in told["broken"]] == ["lost"]
    assert told["forced"] == ["host: a (1 run), b (1 run)"]
    row = next(row for block in told["blocks"] for row in block["rows"] if row["name"] == "NUMA hint faults")
    assert row["cells"] == [{"value": None, "gain": None}] * 2, "absent is null, not 0"


def test_json_has_what_workloads_told_and_the_text_leaves_out() -> None:
    told = run("6.1", phase("p", output={"passes": 7}))
    assert "reported by the workload" in {block.title for block in comparison(told).blocks}
    assert "reported by the workload" not in {
        block.title for block in report_comparison.compare(report_comparison.columns([told]))
    }


def resolve(schema: dict[str, object], top: dict[str, object]) -> dict[str, object]:
    reference = schema.get("$ref")
    return top["$defs"][reference.rsplit("/", 1)[1]] if isinstance(reference, str) else schema  # type: ignore[index]


def test_schema_names_every_field() -> None:
    """The schema has each field of a comparison and of its parts, required where it is always present."""
    schema = export.schema()
    told = jsonable(comparison(made()))
    assert set(schema["properties"]) == set(told)
    block = resolve(schema["properties"]["blocks"]["items"], schema)
    assert set(block["properties"]) == set(told["blocks"][0])  # type: ignore[call-overload]
    assert schema["additionalProperties"] is False


@pytest.mark.parametrize("text", ["numa_hit", "node0.vmstat:", "output:", "trace:"])
def test_names_of_a_phase(text: str) -> None:
    assert any(name.startswith(text) for name in export.names(made().phases[1]))
