"""`planner plan` and `planner check`: what they print where, what they write, how they end."""

from __future__ import annotations

import argparse
import json
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from standard_error import without_progress

from planner import cli
from planner.cli.options import exit_code
from planner.report.statement import Verdict, from_json

REPOSITORY = Path(__file__).parents[2]
SPEC = """
metadata: {{name: small}}
model: {{decoder: {{layers: 2, hidden: 128, heads: 2, kv_heads: 2, ffn: 256, vocab: 512}}}}
train: {{sequence_length: 64, micro_batch_size: 8, iterations: 2}}
parallel: {{dp_replicate: 2}}
cluster: {{gpus_per_node: 2, gpu: {{total_bytes: {total}, arch: sm_80}}}}
"""
Written = Callable[..., str]
Shown = pytest.CaptureFixture[str]


@pytest.fixture
def job(tmp_path: Path) -> Written:
    """The path of a small job on a GPU of this size."""

    def write(total: str = "80GiB") -> str:
        path = tmp_path / "job.yaml"
        path.write_text(SPEC.format(total=total), encoding="utf-8")
        return str(path)

    return write


def keys(value: Any) -> Any:
    """The keys of a document, in order; of a list those of its first member."""
    if isinstance(value, dict):
        return {key: keys(each) for key, each in value.items()}
    return [keys(value[0])] if isinstance(value, list) and value else None


CATEGORIES = [
    "parameter", "gradient", "bucket", "optimizer_state", "activation", "temporary", "workspace", "input",
    "communication", "other",
]  # fmt: skip
RANK_CLASS = {
    "representative": None,
    "ranks": None,
    "coordinates": dict.fromkeys(["pp", "dp_replicate", "dp_shard", "cp", "tp", "ep"]),
    "peak": dict.fromkeys(
        ["phase", "iteration", "allocated_bytes", "reserved_bytes", "device_bytes", "interval_bytes"], None
    )
    | {"interval_bytes": [None]},
    "capacity_bytes": None,
    "headroom_bytes": None,
    "verdict": None,
    "cache_releases": None,
    "at_peak": dict.fromkeys(CATEGORIES, None),
    "phases": [
        dict.fromkeys(["phase", "iteration", "peak_allocated_bytes", "peak_reserved_bytes", "end_allocated_bytes"])
    ],
    "outside_allocator": {"cuda_context_bytes": None, "nccl_bytes": None},
    "holders": [dict.fromkeys(["bytes", "category", "module", "op", "shape", "dtype", "count"])],
    "kind": dict.fromkeys(["compiled", "program", "traits", "several_ranks"]),
}
PLAN = [
    "schema", "plan_id", "trace_id", "verdict", "calibrated", "job", "gpu", "nodes", "gpus_per_node", "allocator_conf",
    "rank_classes", "host", "advice", "provenance", "notes", "sources", "seconds",
]  # fmt: skip


def test_json_has_exactly_the_keys_of_the_contract_in_its_order(job: Written, capsys: Shown) -> None:
    assert cli.main(["plan", job(), "--format", "json"]) == 0

    plan = json.loads(capsys.readouterr().out)
    assert list(plan) == PLAN
    plan["rank_classes"][0]["holders"][0]["shape"] = None
    found = keys(plan["rank_classes"][0])
    assert found == RANK_CLASS
    assert list(found) == list(RANK_CLASS)
    assert list(found["at_peak"]) == CATEGORIES
    assert list(plan["provenance"]) == ["planner", "torch", "allocator_rules", "catalog", "calibration"]
    assert list(plan["seconds"]) == ["trace", "replay", "total"]
    assert plan["schema"] == "planner.plan/2"
    assert plan["job"]["schema"] == "planner.bundle/1"


def test_a_job_that_does_not_fit_ends_with_3_and_with_changes_that_help(job: Written, capsys: Shown) -> None:
    assert cli.main(["plan", job(over_by_little(job, capsys))]) == 3

    assert "train.micro_batch_size" in capsys.readouterr().out


def over_by_little(job: Written, capsys: Shown) -> str:
    """A GPU a little too small for the job as it is: its device bytes less 4 MiB."""
    cli.main(["plan", job(), "--format", "json"])
    peak = json.loads(capsys.readouterr().out)["rank_classes"][0]["peak"]
    return f"{peak['device_bytes'] - 4 * 2**20}B"


def test_advice_can_be_left_out(job: Written, capsys: Shown) -> None:
    assert cli.main(["plan", job("700MiB"), "--no-advice", "--format", "json"]) == 3

    assert json.loads(capsys.readouterr().out)["advice"] == []


def test_a_job_that_fits_only_just_ends_with_0_and_a_warning(job: Written, capsys: Shown) -> None:
    cli.main(["plan", job(), "--format", "json"])
    peak = json.loads(capsys.readouterr().out)["rank_classes"][0]["peak"]

    assert cli.main(["check", job(f"{peak['device_bytes']}B")]) == 0

    shown = capsys.readouterr()
    assert shown.out.startswith("small fits narrowly: ranks 0-1 need ")
    assert shown.err == "warning: it fits only narrowly (tight)\n"


@pytest.mark.parametrize(("total", "code", "verdict"), [("80GiB", 0, "fits"), ("700MiB", 3, "does not fit")])
def test_check_is_one_line_and_the_exit_code(job: Written, capsys: Shown, total: str, code: int, verdict: str) -> None:
    assert cli.main(["check", job(total)]) == code

    shown = capsys.readouterr()
    assert shown.out.count("\n") == 1
    assert shown.out.startswith(f"small {verdict}: rank")
    assert shown.err == ""


def test_the_timeline_is_a_page_of_its_own(job: Written, tmp_path: Path, capsys: Shown) -> None:
    page = tmp_path / "memory.html"

    assert cli.main(["plan", job(), "--timeline", str(page)]) == 0

    text = page.read_text(encoding="utf-8")
    assert text.lower().startswith("<!doctype html>")
    assert re.findall(r"https?://(?!www\.w3\.org)", text) == []
    assert capsys.readouterr().out


def test_the_snapshot_is_replayed_address_by_address(job: Written, tmp_path: Path, capsys: Shown) -> None:
    path = tmp_path / "memory.pickle"
    assert cli.main(["plan", job(), "--format", "json", "--snapshot", str(path)]) == 0
    peak = json.loads(capsys.readouterr().out)["rank_classes"][0]["peak"]

    assert {"segments", "device_traces"} <= set(pickle.loads(path.read_bytes()))
    assert cli.main(["replay", str(path), "--format", "json"]) == 0
    (device,) = json.loads(capsys.readouterr().out)["devices"]
    assert device["addresses"]["matched"] == device["addresses"]["total"] > 0
    assert device["segments"]["matched"] == device["segments"]["total"] > 0
    assert (device["peak_allocated_bytes"], device["peak_reserved_bytes"]) == (
        peak["allocated_bytes"],
        peak["reserved_bytes"],
    )


STAGES = """
model: {decoder: {layers: 2, hidden: 128, heads: 2, kv_heads: 2, ffn: 256, vocab: 32768}}
train: {sequence_length: 64, micro_batch_size: 2, gradient_accumulation_steps: 2, iterations: 2}
parallel: {pp: 2}
cluster: {gpus_per_node: 2, gpu: {total_bytes: 80GiB, arch: sm_80}}
"""


@pytest.mark.parametrize(
    ("asked", "rank", "said"),
    [
        ([], 1, "rank 1, which has the least headroom (--rank for another)"),
        (["--rank", "0"], 0, "rank 0"),
    ],
)
def test_the_snapshot_is_of_the_fullest_rank_class_or_of_the_rank_that_is_asked_for(
    tmp_path: Path, capsys: Shown, asked: list[str], rank: int, said: str
) -> None:
    job, path = tmp_path / "stages.yaml", tmp_path / "memory.pickle"
    job.write_text(STAGES, encoding="utf-8")

    assert cli.main(["plan", str(job), "--format", "json", "--snapshot", str(path), *asked]) == 0

    shown = capsys.readouterr()
    peaks = [each["peak"]["allocated_bytes"] for each in json.loads(shown.out)["rank_classes"]]
    assert peaks[1] > peaks[0]
    assert f"{path} is of {said}\n" in shown.err
    assert cli.main(["replay", str(path), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["devices"][0]["peak_allocated_bytes"] == peaks[rank]


def test_a_rank_that_the_job_does_not_have_is_refused(job: Written, tmp_path: Path, capsys: Shown) -> None:
    path = tmp_path / "memory.pickle"

    assert cli.main(["plan", job(), "--snapshot", str(path), "--rank", "2"]) == 2
    assert "the plan has no rank 2\n  allowed: 0-1" in capsys.readouterr().err
    assert not path.exists()
    assert cli.main(["plan", job(), "--rank", "0"]) == 2
    assert "--rank says of which rank --snapshot is" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--timeline", "--snapshot"])
def test_a_file_that_cannot_be_written_is_exit_code_2(job: Written, tmp_path: Path, capsys: Shown, option: str) -> None:
    nowhere = tmp_path / "nowhere" / "file"

    assert cli.main(["plan", job(), option, str(nowhere)]) == 2
    assert capsys.readouterr().err == f"{nowhere}: cannot write: No such file or directory\n"


@pytest.mark.parametrize("command", ["plan", "check"])
@pytest.mark.parametrize(
    "more",
    ["allocator: {conf: 'max_split_size:1'}", "parallel2: 1", "train: {sequence_length: 8, optimizer: AdamV}"],
)
def test_wrong_input_is_one_message_exit_code_2_and_no_traceback(
    tmp_path: Path, capsys: Shown, command: str, more: str
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "model: {decoder: {layers: 1, hidden: 64, heads: 2, kv_heads: 2, ffn: 64, vocab: 64}}\n"
        "cluster: {gpu: H100-SXM-80GB}\n" + ("" if "train:" in more else "train: {sequence_length: 8}\n") + more
    )

    assert cli.main([command, str(path)]) == 2

    shown = capsys.readouterr()
    assert shown.out == ""
    assert "Traceback" not in shown.err
    assert shown.err


def test_the_command_itself(job: Written) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "planner", "check", job()], capture_output=True, text=True, cwd=REPOSITORY, timeout=600
    )

    assert (ended.returncode, without_progress(ended.stderr)) == (0, "")
    assert ended.stdout.startswith("small fits: rank")


def test_json_has_the_notes_and_sources_that_the_text_has(job: Written, capsys: Shown) -> None:
    path = job()
    cli.main(["plan", path, "--format", "json"])
    plan = json.loads(capsys.readouterr().out)
    cli.main(["plan", path, "--verbose"])

    text = " ".join(capsys.readouterr().out.split())
    assert plan["sources"]
    assert [each for each in (*plan["notes"], *plan["sources"]) if " ".join(each.split()) not in text] == []


@pytest.mark.parametrize(
    ("seen", "risk", "code", "said"),
    [
        (0, None, 0, "warning: it fits only narrowly (tight)\n"),
        (0, "5%", 0, "warning: it fits only narrowly (tight)\n"),
        (6, None, 0, "warning: it may not fit (tight): sizes vary or grow, and larger ones were not seen\n"),
        (6, "5%", 3, "warning: it may not fit (tight): sizes vary or grow, and larger ones were not seen; with --risk"
         " 5% that does not fit\n"),
    ],
)  # fmt: skip
def test_a_figure_that_is_a_lower_bound_is_said_apart_and_at_no_risk_known_to_fit(
    job: Written, capsys: Shown, seen: int, risk: str | None, code: int, said: str
) -> None:
    cli.main(["plan", job(), "--format", "json"])
    plan = from_json(json.loads(capsys.readouterr().out))
    (known,) = plan.rank_classes
    tight = replace(plan, rank_classes=(replace(known, verdict=Verdict.TIGHT, judged_iterations=seen),))

    assert exit_code(argparse.Namespace(risk=risk), tight) == code

    assert capsys.readouterr().err == said
