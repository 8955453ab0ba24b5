"""`planner search`, `max`, `min` and `sweep`: what they print, how they end, and what they say of wrong input.

Plans are supposed: what a plan says is held by other tests, and one test here makes real ones.
"""

from __future__ import annotations

import csv
import io
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from planner import cli
from planner.job.bound.lower_bound import lower_bound
from planner.job.layout import axis_degrees
from planner.job.schema import Job
from planner.report.style import Style
from planner.searching.engine import search
from planner.searching.results import render_search, search_to_json
from planner.searching.space import Space, usual_axes
from planner.searching.weighing import Objective
from planner.units import GIB, MIB

SPEC = """
metadata: {name: small}
model: {decoder: {layers: 4, hidden: 128, heads: 4, kv_heads: 2, ffn: 256, vocab: 512}}
train: {micro_batch_size: 4, sequence_length: 64, gradient_accumulation_steps: 2, iterations: 2}
parallel: {dp_replicate: 2}
cluster: {nodes: 1, gpus_per_node: 2, gpu: GPU}
"""
H100 = "H100-SXM-80GB"
Run = Callable[..., tuple[int, str, str]]


def bytes_of(job: Job) -> tuple[int, int]:
    """Of each sample of a micro-batch 100 MiB."""
    size = lower_bound(job).least_bytes + 100 * MIB * job.train.micro_batch_size * job.train.sequence_length // 64
    return size, size


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], supposed: Any) -> Run:
    """Runs a command on the small job in the place of JOB; its exit code, standard output and error."""

    class Supposed(supposed):  # type: ignore[misc]
        def __init__(self, processes: int, deadline: float = float("inf"), **_: Any) -> None:
            super().__init__(bytes_of, processes)
            self.seconds_left = deadline - time.monotonic()

        @property
        def is_over(self) -> bool:
            """Each look at the clock takes a tenth of a millisecond."""
            self.seconds_left -= 1e-4
            return self.seconds_left <= 0

        def __enter__(self) -> Supposed:
            return self

        def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
            pass

    def command(*words: str, gpu: str = H100) -> tuple[int, str, str]:
        path = tmp_path / "job.yaml"
        path.write_text(SPEC.replace("GPU", gpu), encoding="utf-8")
        code = cli.main([str(path) if each == "JOB" else each for each in words])
        said = capsys.readouterr()
        return code, said.out, said.err.replace(str(path), "JOB")

    monkeypatch.setattr("planner.searching.exact_plans.ExactPlans", Supposed)
    return command


def test_search_prints_the_best_with_what_was_done_and_assumed(run: Run) -> None:
    code, out, _ = run(
        "search", "JOB", "--top", "4", "tp=1", "pp=1", "cp=1", "micro_batch_size=1,2", "recompute=none,full"
    )

    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "4 candidates by the time of a step, each proven by a plan"
    assert lines[2].split() == ["tokens/s", "device", "bytes", "headroom", "verdict", "layout", "and", "settings"]
    rates = [int(rate.replace(",", "")) for rate in re.findall(r"^ +([\d,]+)  +[\d.]+ [MG]iB", out, re.MULTILINE)]
    assert len(rates) == 4
    assert rates == sorted(rates, reverse=True)
    assert "Tokens a second are of each GPU, by the kernels of the traced step" in out


def test_search_as_json_has_what_the_service_answers(run: Run) -> None:
    code, out, _ = run(
        "search", "JOB", "--format", "json", "--top", "2", "--objective", "memory", "tp=1", "pp=1", "cp=1"
    )

    found = json.loads(out)
    assert (code, found["schema"], found["complete"], found["stopped"]) == (0, "planner.search/1", True, "")
    assert len(found["candidates"]) == 2
    space = found["space"]
    assert space["looked_at"] == space["candidates"]
    assert sum(space["broken_rules"].values()) + space["exceed_by_bound"] < space["candidates"]


def test_search_where_nothing_fits_ends_with_3_and_names_what_came_closest(run: Run) -> None:
    code, out, _ = run("search", "JOB", "--objective", "memory", "tp=1", gpu="{total_bytes: 0.4GiB, arch: sm_90}")

    assert code == 3
    assert out.splitlines()[0] == "No candidate is known to fit"
    assert re.search(r"By the lower bound at least [\d.]+ MiB are missing in every candidate\.", out)


def test_a_space_of_a_thousand_million_is_ended_by_the_time_and_says_how_far_it_came(run: Run) -> None:
    code, out, _ = run(
        "search", "JOB", "--gpus", "512", "--global-batch", "65536", "--time", "2", "--objective", "memory",
        "sequence_length=64..6400:64", "loss_chunks=1..128:1", "precision=none,bf16_autocast",
    )  # fmt: skip

    assert code in (0, 3)
    assert ", spread evenly over " in out
    size = int(out.split("spread evenly over ")[1].split()[0].replace(",", ""))
    assert size > 1_000_000_000
    assert out.splitlines()[1].startswith("The time was over: ")


def test_where_the_time_is_not_enough_that_is_said_before_the_first_plan(run: Run) -> None:
    _, out, err = run("search", "JOB", "--gpus", "8", "--time", "1", "--objective", "memory")

    assert re.search(r"note: [\d,]+ candidates may fit, and their [\d,]+ plans would take [\d,]+ s at least; 1 s", err)
    assert "note:" not in run("search", "JOB", "--objective", "memory", "tp=1", "pp=1", "cp=1", "recompute=none")[2]
    assert out


def test_rows_are_shown_as_they_come(run: Run) -> None:
    code, out, err = run("search", "JOB", "--format", "json", "--top", "2", "tp=1", "pp=1", "cp=1")

    assert code == 0
    assert len([line for line in err.splitlines() if " fits     " in line]) >= 2
    assert len(json.loads(out)["candidates"]) == 2


def test_those_that_are_looked_at_first_are_spread_over_the_whole_space(small: Any) -> None:
    """The time may end before the last; and what was found is shown before that."""
    space = Space(base=small(cluster={"gpu": H100}), axes=tuple(usual_axes(small(), 512, 8, 512, {})), global_batch=512)

    for most in (space.size, space.size // 3):
        numbers = list(space.numbers(most))
        assert len(set(numbers)) == len(numbers) == most
        tenth = sorted(number * 10 // space.size for number in numbers[: most // 10])
        assert all(tenth.count(part) > most / 200 for part in range(10))


def test_candidates_that_an_estimate_leaves_out_are_counted_and_it_is_called_so(small: Any, supposed: Any) -> None:
    job = small(cluster={"gpu": H100})
    space = Space(base=job, axes=tuple(usual_axes(job, 8, 8, 64, {})), global_batch=64)
    plans = supposed(lambda each: (lower_bound(each).least_bytes,) * 2)

    found = search(space, plans, top=1)

    assert found.complete
    assert found.left_by_roofline == found.scales.left - found.planned - found.left_out > 0
    said = " ".join(render_search(found, Style()).split())
    assert f"{found.left_by_roofline:,} were not planned, since their matrix products and collectives alone" in said
    assert search_to_json(found)["space"]["left_out_by_roofline"] == found.left_by_roofline


def test_the_most_usual_of_the_best_is_planned_first(small: Any, supposed: Any) -> None:
    job = small()
    space = Space(base=job, axes=tuple(usual_axes(job, 8, 8, 64, {})), global_batch=64)
    plans = supposed(lambda each: (lower_bound(each).least_bytes,) * 2, most=6)

    search(space, plans, objective=Objective.MEMORY)

    degrees = [[degree for degree in axis_degrees(each.parallel).values() if degree > 1] for each in plans.planned]
    assert degrees == [[8]] * len(degrees)
    assert {each.train.recompute.mode for each in plans.planned} <= {"none", "full"}


def test_max_prints_every_size_that_it_planned(run: Run) -> None:
    code, out, _ = run("max", "JOB", "micro_batch_size", gpu="{total_bytes: 4GiB, arch: sm_90}")

    lines = out.splitlines()
    largest = int(lines[0].split()[1])
    assert (code, lines[0]) == (0, f"micro_batch_size {largest} fits; {largest + 1} does not")
    rows = {int(line.split()[0]): line.split()[-1] for line in lines[2:]}
    assert (rows[largest], rows[largest + 1]) == ("fits", "exceeds")


def test_max_where_not_even_the_smallest_fits_ends_with_3(run: Run) -> None:
    code, out, _ = run("max", "JOB", "sequence_length", "--step", "64", gpu="{total_bytes: 0.7GiB, arch: sm_90}")

    assert (code, out.splitlines()[0]) == (3, "No sequence_length is known to fit, not even 64")


def test_the_job_and_its_axis_may_stand_in_either_order(run: Run) -> None:
    gpu = "{total_bytes: 4GiB, arch: sm_90}"

    assert run("max", "micro_batch_size", "JOB", gpu=gpu) == run("max", "JOB", "micro_batch_size", gpu=gpu)
    assert run("sweep", "micro_batch_size=1,2", "JOB")[:2] == run("sweep", "JOB", "micro_batch_size=1,2")[:2]


def test_min_needs_no_axis_since_there_is_one(run: Run) -> None:
    assert run("min", "JOB")[:2] == run("min", "JOB", "gpus")[:2] == run("min", "gpus", "JOB")[:2]


def test_gpus_given_by_their_figures_are_compared_like_those_with_names(run: Run) -> None:
    gpus = "{total_bytes: 4GiB, arch: sm_90},{total_bytes: 3GiB, arch: sm_90},H100"
    code, out, _ = run(
        "search", "JOB", "--objective", "memory", "--gpu", gpus, "--format", "json", "tp=1", "pp=1", "cp=1",
        "dp_replicate=2", "recompute=none", "micro_batch_size=1", "allocator=default",
    )  # fmt: skip

    found = [each["change"].get("cluster.gpu") for each in json.loads(out)["candidates"]]
    assert code == 0
    assert sorted(found, key=str) == ["H100-SXM-80GB", None, {"total_bytes": 3 * GIB, "arch": "sm_90"}]


def test_min_says_why_fewer_are_not_enough(run: Run) -> None:
    code, out, _ = run("min", "JOB", "gpus", "--most", "8", gpu="{total_bytes: 4GiB, arch: sm_90}")

    assert (code, out.splitlines()[0]) == (0, "1 GPU holds it")


def test_sweep_writes_a_line_a_point(run: Run) -> None:
    code, out, _ = run(
        "sweep", "JOB", "micro_batch_size=1..64:x2", "sequence_length=64,63,128", "--format", "csv",
        gpu="{total_bytes: 4GiB, arch: sm_90}",
    )  # fmt: skip

    rows = list(csv.DictReader(io.StringIO(out)))
    assert (code, len(rows)) == (0, 21)
    assert {row["verdict"] for row in rows} == {"fits", "exceeds"}
    assert [row["micro_batch_size"] for row in rows[:3]] == ["1", "1", "1"]
    for row in rows:
        assert bool(row["device_bytes"]) != bool(row["least_bytes"])


@pytest.mark.parametrize(
    ("axis", "precision"),
    [("gpu=all", "bf16_autocast"), ("gpu=A100:1g.5gb,H100", "bf16_autocast"), ("gpu=V100,T4", "fp16_autocast")],
)
def test_a_sweep_of_gpus_needs_no_other_gpu(run: Run, axis: str, precision: str) -> None:
    code, out, said = run("sweep", "Qwen/Qwen3-0.6B", axis, "--seq", "128", "--format", "csv")

    assert code == 0
    assert {row["verdict"] for row in csv.DictReader(io.StringIO(out))} <= {"fits", "exceeds"}
    assert f"train.precision {precision}" in said


def test_a_search_over_gpus_needs_no_other_gpu(run: Run) -> None:
    code, out, _ = run("search", "Qwen/Qwen3-0.6B", "gpu=T4,H100", "--gpus", "2", "--seq", "128", "--top", "1")

    assert (code, out.splitlines()[0]) == (0, "1 candidate by the time of a step, each proven by a plan")


def test_sweep_prints_a_grid(run: Run) -> None:
    code, out, _ = run("sweep", "JOB", "micro_batch_size=1..4", "sequence_length=64,128")

    lines = out.splitlines()
    assert (code, lines[0]) == (0, "micro_batch_size down, sequence_length across")
    assert [len(line.split()) for line in lines[1:6]] == [2, 3, 3, 3, 3]
    assert [line.split()[0] for line in lines[2:6]] == ["1", "2", "3", "4"]  # every point, as the help says


WRONG: dict[str, tuple[tuple[str, ...], str]] = {
    "an axis that is none": (
        ("search", "JOB", "recompote=none"),
        "there is no axis 'recompote'",
    ),
    "a range that is backwards": (("search", "JOB", "tp=8..1"), "tp=8..1 begins behind its end"),
    "a range without an end": (("search", "JOB", "tp=1..8:0"), "tp=1..8:0 has no end"),
    "values without end": (
        ("sweep", "JOB", "micro_batch_size=1..999999:1"),
        "micro_batch_size=1..999999:1 has 999999 values",
    ),
    "a sweep of too many points": (
        ("sweep", "JOB", "micro_batch_size=1..100:1", "sequence_length=64..6400:64"),
        "the sweep has 10,000 points, each of which is planned",
    ),
    "a sweep of nothing": (("sweep", "JOB"), "nothing is varied"),
    "an axis twice": (("search", "JOB", "tp=1", "tp=2"), "axes: tp is given twice"),
    "a value that cannot be": (
        ("search", "JOB", "recompute=some"),
        "recompute=some: recompute cannot be 'some'",
    ),
    "an objective that is none": (
        ("search", "JOB", "--objective", "speed"),
        "--objective: there is no objective 'speed'",
    ),
    "no time": (("search", "JOB", "--time", "0"), "--time: in 0 seconds nothing can be planned"),
    "nothing to show": (("search", "JOB", "--top", "0"), "--top: --top is 0"),
    "a batch that is none": (("search", "JOB", "--global-batch", "0"), "--global-batch: the global batch is 0"),
    "degrees that no layout has": (("search", "JOB", "--gpus", "8", "tp=3"), "no layout of 8 GPUs has tp 3"),
    "a GPU twice": (("search", "JOB", "--gpus", "8xH100", "--gpu", "A100"), "--gpu: --gpus names H100, and --gpu A100"),
    "a size that has no largest": (
        ("max", "JOB", "tp"),
        "tp has no largest value: more of it does not always take more memory",
    ),
    "a size that is none": (("max", "JOB", "micro_batch"), "planner max does not know 'micro_batch'"),
    "no size": (("max", "JOB"), "planner max takes one axis, and 0 are given"),
    "two axes": (("min", "JOB", "gpus", "tp"), "planner min takes one axis, and 2 are given"),
    "an axis without a job": (("max", "micro_batch_size"), "nothing says which job"),
    "something else than GPUs": (("min", "JOB", "tp"), "planner min does not know 'tp'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_said_in_one_line_with_what_is_allowed(run: Run, case: str) -> None:
    words, said = WRONG[case]
    code, out, err = run(*words)

    assert (code, out) == (2, "")
    assert err.splitlines()[0] == said
    assert err.splitlines()[1].startswith("  allowed: ")


def test_an_objective_that_says_nothing_of_the_job_is_refused(run: Run) -> None:
    code, _, err = run("search", "JOB", gpu="{total_bytes: 4GiB, arch: sm_90}")

    assert (code, err.splitlines()) == (
        2,
        [
            "--objective: the objective cost does not apply: the speeds of its GPU are not known, and"
            " candidates are ranked by them",
            "  allowed: memory, headroom",
            "  change:  rank by memory: --objective memory",
        ],
    )


def test_an_empty_space_names_the_rule_that_emptied_it(run: Run) -> None:
    code, _, err = run(
        "search", "JOB", "--gpus", "8", "tp=8", "schedule=1F1B", "sequence_parallel=false", "reshard_after_forward=true"
    )

    assert (code, err.splitlines()) == (
        2,
        [
            "no candidate is left of 30: 30 break the rule that the job keeps the rules of a spec: tp 8 does not"
            " divide model.decoder.heads (4), and torch 2.13 splits it evenly only",
            "  allowed: axes whose values go together",
            "  change:  widen the axis that the rule names, or change --gpus or --global-batch",
        ],
    )
