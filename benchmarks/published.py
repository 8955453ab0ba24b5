"""Published runs of other people and the specs that rebuild them (examples/published/), for `make accuracy`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from planner.events import Phase
from planner.job.loading import load_job
from planner.planning.plan import PlanningResult, plan_job
from planner.units import GIB

_ROOT = Path(__file__).parents[1]
_SPECS = _ROOT / "examples" / "published"
TRUTH = Path(os.environ.get("PLANNER_TRUTH", _ROOT.parent / "shared" / "truth")) / "published.json"

RUNS = {
    "torchtitan-llama-3-8b": ("torchtitan-0", "torchtitan-1", "torchtitan-6", "torchtitan-7", "torchtitan-8"),
    "torchtitan-llama-3-8b-always": ("torchtitan-2", "torchtitan-3"),
    "torchtitan-llama-3-8b-never": ("torchtitan-4", "torchtitan-5"),
    "torchtitan-llama-3-8b-fused": ("torchtitan-9",),
    "torchtitan-llama-3-8b-torch-norm": ("torchtitan-10", "torchtitan-11", "torchtitan-12"),
    "torchtitan-llama-3-8b-a100": ("torchtitan-118",),
    "torchtitan-llama-3.1-8b-batch-2": ("llama3.1-8B, dp_shard 8, batch 2",),
    "torchtitan-llama-2-7b-full": ("torchtitan-60", "torchtitan-61"),
    "torchtitan-llama-2-7b-selective": ("torchtitan-62", "torchtitan-63"),
    "torchao-llama-3-8b-none": ("torchao-11",),
    "torchao-llama-3-8b-every-second": ("torchao-14",),
    "torchao-llama-3-8b-full": ("torchao-17",),
    "torchtitan-qwen3-32b-tp8": ("qwen3-32B, dp_shard 4 x tp 8 (sequence parallel), batch 16",),
    "torchtitan-qwen3-32b-tp8-batch-32": ("qwen3-32B, dp_shard 4 x tp 8 (sequence parallel), batch 32",),
    "torchtitan-qwen3-32b-fsdp16": ("qwen3-32B, dp_shard 16, batch 4",),
    "torchtitan-qwen3-32b-tp4": ("torchtitan-80",),
}
"""A spec, and the ids of the rows that were measured of it: FSDP2 in eager mode, with and without tensor parallelism.
Rows of rows-2.json have none and are called by model, layout and batch."""

COMPILED = {
    "torchtitan-llama-2-7b-full-compiled": ("torchtitan-64",),
    "torchtitan-llama-2-7b-selective-compiled": ("torchtitan-66",),
    "torchtune-llama-3.2-3b-compiled": ("torchtune-10",),
    "torchao-vit-h-compiled": ("torchao-20",),
}
"""The same, compiled."""

LEFT_OUT = {
    "torchtitan-13": "shows a leak of reference cycles",
    "torchtitan-56 to -59": "FSDP1: active and reserved hinge on when other streams pass",
    "torchtitan-77, -78": "Qwen3-32B on 8 GPUs of which 86 and 94 % are full; whether the first recomputes is not said",
    "torchtitan-81 to -87": "out of memory without a figure",
    "rows-2, llama2-7B": "tensor parallel with a torch of 2024-03, whose collectives hold their tensors (accuracy.md)",
    "rows-2, llama3-8B over 8 and 64, DeepSeek-V3": "run as programs (benchmarks/published_programs)",
    "torchtitan-98, -100": "SimpleFSDP, which is another program",
    "torchao-12, -15": "float8",
    "torchao-25": "torchtune on a data set whose lengths are not known",
}


@dataclass(frozen=True)
class Published:
    """One published figure beside ours, in bytes; `what` is `allocated`, `active`, `reserved` or `load`."""

    row: str
    case: str
    what: str
    step: str
    predicted: int
    published: int


def figures(runs: Mapping[str, tuple[str, ...]] = RUNS) -> Iterator[Published]:
    """Every row of the runs; nothing without the truth files."""
    if not TRUTH.exists():
        return
    rows = _rows()
    for name, ids in runs.items():
        for each in ids:
            row = rows[each]
            what, step = _what(row.get("metric", "reserved")), "first" if row.get("step") == 1 else "later"
            unit = 10**9 if "1e9" in row.get("metric", "") else GIB
            yield Published(each, name, what, step, _predicted(name, what, step), round(row["gib"] * unit))


def _rows() -> dict[str, dict[str, Any]]:
    rows = {row["id"]: row for row in json.loads(TRUTH.read_text())}
    more = TRUTH.with_name("rows-2.json")
    for row in json.loads(more.read_text())["torchtitan"] if more.exists() else ():
        if "reserved_gib" in row:
            rows[f"{row['model']}, {row['layout']}, batch {row['batch']}"] = {**row, "gib": row["reserved_gib"]}
    return rows


def _what(metric: str) -> str:
    if "active" in metric.lower():
        return "active"
    if "allocated" in metric:
        return "allocated"
    return "load" if "init" in metric else "reserved"


def _predicted(name: str, what: str, step: str) -> int:
    found = _planned(name)
    if what == "active":
        return max(found.timelines[0].active_bytes)
    if what == "allocated":
        return found.timelines[0].peak_allocated_bytes
    phases = found.plan.rank_classes[0].phases
    if what == "load":
        return max(each.peak_reserved_bytes for each in phases if each.phase is Phase.LOAD)
    last = 1 if step == "first" else max(each.iteration for each in phases)
    return max(each.peak_reserved_bytes for each in phases if each.iteration <= last)


@cache
def _planned(name: str) -> PlanningResult:
    return plan_job(load_job(_SPECS / f"{name}.yaml"))


def as_markdown(found: list[Any]) -> str:
    """The table of docs/results/accuracy.md."""
    lines = ["| row | spec | figure | step | predicted | published | error |", "|---|---|---|---|---:|---:|---:|"]
    for each in found:
        error = (each.predicted - each.published) / each.published * 100
        sizes = f"{each.predicted / GIB:.2f} | {each.published / GIB:.2f} | {error:+.2f} %"
        lines.append(f"| {each.row} | {each.case} | {each.what} | {each.step} | {sizes} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(as_markdown([*figures(), *figures(COMPILED)]))
