"""What Prometheus is told: pinned by name, the same from every replica, bounded, and there even without a store."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import insert

from planner.report.statement import Plan
from planner.service.history import schema
from planner.service.history.capacity import Capacity
from planner.service.history.job_table import JobChange, MeasuredRank
from planner.service.history.overview import OTHER, Bounds, overview
from planner.service.history.store import History
from planner.service.metrics import METRICS, STORE_UP, Kind, exposition, table
from planner.units import GIB

REPOSITORY = Path(__file__).parents[3]
GOLDEN = REPOSITORY / "tests" / "golden" / "metrics.txt"
OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
Fill = Callable[[History], Any]


def families(history: History) -> dict[str, Metric]:
    body, _ = exposition(history)
    return {family.name: family for family in text_string_to_metric_families(body.decode())}


def values(history: History, name: str) -> dict[tuple[str, ...], float]:
    """The samples of a metric by the values of its labels, in their order in the table."""
    family = families(history)[name.removesuffix("_total")]
    labels = next(each.labels for each in METRICS if each.name == name)
    return {tuple(sample.labels[label] for label in labels): sample.value for sample in family.samples}


def told(history: History) -> str:
    """What the exposition itself says of every metric, for people: as in the golden file."""
    blocks = []
    for name, family in families(history).items():
        name = f"{name}_total" if family.type == "counter" else name
        labels = sorted({label for sample in family.samples for label in sample.labels} - {"le"})
        blocks.append(f"{name}{{{', '.join(labels)}}} {family.type}\n  {family.documentation}\n")
    return "\n".join(blocks)


def test_names_labels_types_and_help_are_those_that_dashboards_know(history: History, fill: Fill) -> None:
    """If they have to change, change the file: it says to reviewers what breaks."""
    fill(history)

    assert told(history) == GOLDEN.read_text(encoding="utf-8")


def test_the_table_has_every_metric_that_is_told_and_no_other(history: History, fill: Fill) -> None:
    fill(history)

    found = {f"{name}_total" if each.type == "counter" else name for name, each in families(history).items()}
    assert found == {each.name for each in (STORE_UP, *METRICS)}
    silent = [name for name, family in families(history).items() if not family.samples]
    assert silent == []


@pytest.mark.parametrize("metric", [STORE_UP, *METRICS], ids=lambda metric: metric.name)
def test_every_metric_keeps_to_the_conventions(metric: Any) -> None:
    assert re.fullmatch(r"planner_[a-z][a-z_]*[a-z]", metric.name)
    assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
    assert metric.name.endswith("_info") == (metric.kind is Kind.INFO)
    assert not {"job", "instance", "le", "quantile", "exported_job", "user"} & set(metric.labels)
    assert metric.help.endswith(".")
    assert bool(metric.bounds) == (metric.kind is Kind.HISTOGRAM)


def test_the_table_in_the_docs_is_current() -> None:
    text = (REPOSITORY / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")

    assert text.split("<!-- table -->\n")[1].split("<!-- end of the table -->")[0] == table()


def test_promtool_finds_no_fault(history: History, fill: Fill, program: Callable[[str], str]) -> None:
    fill(history)
    body, _ = exposition(history)

    ended = subprocess.run([program("promtool"), "check", "metrics"], input=body, capture_output=True, check=False)

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")


def test_every_replica_gives_the_same_answer(url: str, clock: Any, fill: Fill) -> None:
    def lines(history: History) -> list[str]:
        return [line for line in exposition(history)[0].decode().splitlines() if "store_read_seconds" not in line]

    with History.open(url, clock) as one, History.open(url, clock) as other:
        fill(one)
        fill(other)

        assert lines(one) == lines(other)
        assert values(other, "planner_requests_total") == {("POST", "/v1/plans", "200"): 2}


def test_the_format_is_the_one_that_was_asked_for(history: History, fill: Fill) -> None:
    fill(history)
    plain, open_ = exposition(history), exposition(history, OPENMETRICS)

    assert plain[1] == "text/plain; version=0.0.4; charset=utf-8"
    assert open_[1].startswith("application/openmetrics-text; version=1.0.0")
    assert open_[0].endswith(b"# EOF\n")
    same = [{each.name for each in text_string_to_metric_families(plain[0].decode())}]
    same.append({each.name for each in openmetrics_families(open_[0].decode())})
    assert same[0] == same[1]


def test_without_its_store_a_replica_says_so(history: History, fill: Fill) -> None:
    fill(history)
    with history._database.writing() as connection:
        connection.exec_driver_sql("DROP TABLE levels")

    body, media_type = exposition(history)

    found = {family.name: family.samples[0].value for family in text_string_to_metric_families(body.decode())}
    assert found == {"planner_store_up": 0, "planner_build_info": 1}
    assert media_type.startswith("text/plain")


def test_an_empty_store_has_every_metric_and_counts_from_zero(history: History) -> None:
    assert values(history, "planner_verdicts_total") == {("fits",): 0, ("tight",): 0, ("exceeds",): 0}
    assert values(history, "planner_plans") == {("fits",): 0, ("tight",): 0, ("exceeds",): 0}
    assert values(history, "planner_jobs_traced_total") == {(): 0}
    assert set(values(history, "planner_series_dropped").values()) == {0}


def test_what_is_predicted_is_what_the_plan_says(history: History, plan: Callable[..., Plan]) -> None:
    made = plan()
    history.plans.put(made)

    assert {
        name: values(history, f"planner_predicted_{name}_bytes")
        for name in ("device", "reserved", "allocated", "device_lowest", "device_highest")
    } == {
        "device": {(made.plan_id, str(each.representative)): each.peak.device_bytes for each in made.rank_classes},
        "reserved": {(made.plan_id, str(each.representative)): each.peak.reserved_bytes for each in made.rank_classes},
        "allocated": {
            (made.plan_id, str(each.representative)): each.peak.allocated_bytes for each in made.rank_classes
        },
        "device_lowest": {
            (made.plan_id, str(each.representative)): each.peak.interval_bytes[0] for each in made.rank_classes
        },
        "device_highest": {
            (made.plan_id, str(each.representative)): each.peak.interval_bytes[1] for each in made.rank_classes
        },
    }
    assert values(history, "planner_rank_class_ranks") == {(made.plan_id, "0"): 2, (made.plan_id, "2"): 2}
    assert values(history, "planner_plan_capacity_bytes") == {(made.plan_id,): 80 * GIB}
    categories = values(history, "planner_predicted_category_bytes")
    for each in made.rank_classes:
        of_class = [value for key, value in categories.items() if key[1] == str(each.representative)]
        assert sum(of_class) == each.peak.allocated_bytes


def test_a_histogram_has_all_its_bounds_in_every_series(history: History, fill: Fill) -> None:
    fill(history)
    samples = families(history)["planner_validation_error_ratio"].samples

    buckets = {sample.labels["le"]: sample.value for sample in samples if sample.name.endswith("_bucket")}
    assert buckets == {
        "0.001": 0, "0.002": 0, "0.005": 0, "0.01": 1, "0.02": 2, "0.05": 3, "0.1": 3, "0.2": 3, "0.5": 3, "1.0": 3,
        "+Inf": 3,
    }  # fmt: skip


def test_a_calibration_that_cannot_be_read_hides_nothing_else(history: History, fill: Fill, clock: Any) -> None:
    fill(history)
    clock.passes(seconds=1)
    history.calibrations.put("from-a-later-planner", {"schema": "planner.calibration/9"})

    assert values(history, "planner_calibration_info") == {("from-a-later-planner",): 1}
    assert families(history)["planner_calibration_correction_ratio"].samples == []
    assert values(history, "planner_store_read_seconds")


def test_labels_from_people_do_not_break_the_format(history: History, plan: Callable[..., Plan]) -> None:
    name = 'a "name" \\ of\ntwo lines, } and ünïcode'
    history.plans.put(plan(name=name, team="a\tteam"))

    (key,) = values(history, "planner_plan_info")
    assert key[1:3] == ('a "name" \\ of two lines, } and ünïcode', "a team")


def test_counters_with_labels_beyond_all_bounds_are_cut(history: History) -> None:
    many = {("planner_requests_total", (("route", f"/{number:04d}"),)): 1.0 for number in range(250)}
    history.totals.add("one", 1, many, {})

    assert len(values(history, "planner_requests_total")) == 200
    assert values(history, "planner_series_dropped")[("counter",)] == 50


def test_every_plan_keeps_its_share_of_what_fits(history: History, plan: Callable[..., Plan]) -> None:
    for number in (1, 2, 3):
        history.plans.put(plan(number, classes=tuple(str(rank) for rank in range(number * 4))))

    seen = overview(history, Bounds(rank_classes=14, categorized=5))

    assert [sum(plan_id.endswith(str(number)) for plan_id, _ in seen.rank_classes) for number in (1, 2, 3)] == [4, 5, 5]
    assert [sum(plan_id.endswith(str(number)) for plan_id, _ in seen.categorized) for number in (1, 2, 3)] == [2, 2, 1]
    assert {each.representative for _, each in seen.categorized} == {0, 1}  # the fullest
    assert (seen.left_out["rank_class"], seen.left_out["categories"]) == (10, 19)


def test_every_job_keeps_its_share_of_the_gpus(history: History, plan: Callable[..., Plan]) -> None:
    history.plans.put(plan())
    for job in ("a", "b", "c"):
        uuids = tuple(f"GPU-{job}{rank}" for rank in range(4))
        history.jobs.bind("ray", job, JobChange(plan_id=plan().plan_id, gpu_uuids=uuids))

    seen = overview(history, Bounds(gpus=6, jobs=2))

    assert sorted(each.gpu_uuid for each in seen.gpus) == ["GPU-a0", "GPU-a2", "GPU-b0", "GPU-b2", "GPU-c0", "GPU-c2"]
    assert (seen.left_out["job_gpu"], seen.left_out["job"], len(seen.jobs)) == (6, 1, 2)


def test_capacity_that_does_not_fit_is_added_up(history: History, plan: Callable[..., Plan]) -> None:
    for number in range(5):
        history.plans.put(plan(number, team=f"team-{number}", classes=("0",) if number < 4 else ("0-7",)))
        history.jobs.bind("ray", str(number), JobChange(plan_id=plan(number).plan_id))
    everything = overview(history).capacity

    seen = overview(history, Bounds(groups=3))

    assert next((row.team, row.jobs) for row in seen.capacity) == ("team-4", 1)
    assert seen.capacity[-1].team == OTHER
    assert seen.left_out["capacity"] == 3
    for name in Capacity.__dataclass_fields__.keys() - {"team", "queue", "gpu"}:
        assert sum(getattr(row, name) for row in seen.capacity) == sum(getattr(row, name) for row in everything)


def gpus(history: History) -> set[tuple[str, str, str]]:
    return {key[1:2] + key[4:] for key in values(history, "planner_job_gpu_info")}


def test_what_ranks_told_of_themselves_is_believed_before_lists(history: History, plan: Callable[..., Plan]) -> None:
    history.plans.put(plan())
    swapped = (MeasuredRank(rank=0, host="n2", gpu_uuid="GPU-d"), MeasuredRank(rank=3, host="n1", gpu_uuid="GPU-a"))
    lists = {"hosts": ("n1", "n2"), "gpu_uuids": ("GPU-a", "GPU-b", "GPU-c", "GPU-d")}
    history.jobs.bind("ray", "a", JobChange(plan_id=plan().plan_id, measured=swapped, **lists))

    assert gpus(history) == {("0", "n2", "GPU-d"), ("2", "n1", "GPU-a"), ("0", "n1", "GPU-b"), ("2", "n2", "GPU-c")}


def test_lists_that_are_not_complete_say_nothing_of_ranks(history: History, plan: Callable[..., Plan]) -> None:
    history.plans.put(plan())
    history.jobs.bind("ray", "a", JobChange(plan_id=plan().plan_id, hosts=("n1", "n2"), gpu_uuids=("GPU-x", "GPU-y")))

    assert gpus(history) == {("", "", "GPU-x"), ("", "", "GPU-y"), ("", "n1", ""), ("", "n2", "")}


def test_where_all_ranks_are_one_class_every_gpu_is_of_it(history: History, plan: Callable[..., Plan]) -> None:
    history.plans.put(plan(classes=("0-3",)))
    history.jobs.bind("ray", "a", JobChange(plan_id=plan().plan_id, gpu_uuids=("GPU-x",)))

    assert gpus(history) == {("0", "", "GPU-x")}


def test_the_largest_exposition_is_below_a_megabyte(history: History, plan: Callable[..., Plan]) -> None:
    """Fifty plans of sixteen rank classes, long names, more jobs, GPUs and teams than are told."""
    long = "n" * 60
    for number in range(60):
        made = plan(
            number, classes=tuple(str(rank) for rank in range(16)), name=long, team=f"team-{number}-{long[:10]}",
            queue=f"queue-{number % 9}",
        )  # fmt: skip
        history.plans.put(made)
        for copy in range(3):
            change = JobChange(
                plan_id=made.plan_id, hosts=(f"node-{number}",),
                gpu_uuids=tuple(f"GPU-{number:08d}-0000-0000-{copy:04d}-{rank:012d}" for rank in range(16)),
            )  # fmt: skip
            history.jobs.bind("slurm", f"{number}-{copy}", change)
    rows = [{"name": "planner_requests_total", "labels": f'{{"route":"/{n}"}}', "value": n} for n in range(300)]
    with history._database.writing() as connection:
        connection.execute(insert(schema.TOTALS), rows)

    body, _ = exposition(history)

    assert 600_000 < len(body) < 1_000_000
    left = values(history, "planner_series_dropped")
    assert left[("plan",)] == 10
    assert left[("job_gpu",)] == 50 * 48 - 700
