"""The capacity of a cluster (`planner.capacity/1`) as text for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.units import show_bytes

MOST_ROWS = 20
_SHOWN_GPU_SECONDS = 180
"""Fewer would be shown as 0.0 hours."""

Document = Mapping[str, Any]
_NO_JOBS = """\
no job is bound to a plan (those that have ended are counted with --since 30d); a job is bound by
  planner check JOB.yaml --server $PLANNER_SERVER -- COMMAND    which starts it too
  the hooks of Slurm, Ray and Kubernetes                        docs/admission.md
  PUT $PLANNER_SERVER/v1/jobs/SYSTEM/ID                         {"plan_id": "pl-..."}, of POST /v1/plans\
"""


def render_capacity(document: Document) -> str:
    """Groups and their sums, then what was asked besides: jobs on other GPUs, what queues need."""
    return "\n".join(_lines(document)) + "\n"


def _lines(document: Document) -> Iterator[str]:
    head = ["team", "queue", "gpu", "jobs", "gpus", "asked for", "predicted", "headroom", "measured (of GPUs)",
            "wrong/judged", "out of memory"]  # fmt: skip
    totals = document["totals"]
    rows: list[list[object]] = [
        _group(row, row["team"] or "-", row["queue"] or "-", row["gpu"]) for row in document["rows"]
    ]
    if not rows:
        yield _NO_JOBS
    else:
        shown = rows[:MOST_ROWS]
        if len(rows) > MOST_ROWS:
            shown.append(["...", "", f"{len(rows) - MOST_ROWS} more", *[""] * 8])
        if len(rows) > 1:
            shown.append(_group(totals, "all", "", ""))
        yield from _table(head, shown, words=3)
        if (spent := totals.get("gpu_seconds") or 0) >= _SHOWN_GPU_SECONDS:
            yield ""
            yield f"GPU hours of jobs that have started: {spent / 3600:,.1f}"
        if predicted := totals.get("host_predicted_bytes"):
            requested = totals["host_requested_bytes"]
            of_requested = f" of {show_bytes(requested)}" if requested else ""
            yield ""
            yield f"Main memory of their nodes: at least {show_bytes(predicted)}{of_requested}"
    if shared := document.get("shared"):
        yield ""
        yield "GPUs with more than one job, summed over their processes"
        rows = [
            [one["verdict"], one["gpu"], one["gpu_uuid"], " + ".join(one["jobs"]), show_bytes(one["predicted_bytes"]),
             show_bytes(one["highest_bytes"]), show_bytes(one["total_bytes"])]
            for one in shared[:MOST_ROWS]
        ]  # fmt: skip
        yield from _table(["verdict", "gpu", "uuid", "jobs", "predicted", "at most (95 %)", "of"], rows, words=4)
        if len(shared) > MOST_ROWS:
            yield f"and {len(shared) - MOST_ROWS} more"
    for kind in document.get("on") or ():
        yield ""
        yield from _on_gpu(kind)
    if needs := document.get("needs"):
        yield ""
        yield "What waits needs"
        rows = [[need["queue"], need["gpu"] or "none of these", need["jobs"], _gpus(need["gpus"])] for need in needs]
        yield from _table(["queue", "gpu", "jobs", "gpus"], rows, words=2)
    if document.get("left_out"):
        yield ""
        yield f"{document['left_out']} more jobs were not looked at"


def _group(row: Document, team: str, queue: str, gpu: str) -> list[object]:
    measured = "-"
    if row["measured_gpus"]:
        measured = f"{show_bytes(row['measured_bytes'])} ({row['measured_gpus']} of {_gpus(row['gpus'])})"
    wrong = f"{row['wrong_verdicts']}/{row['judged']}" if row["judged"] else "-"
    sizes = [show_bytes(row[f"{name}_bytes"]) for name in ("requested", "predicted", "headroom")]
    # A service of before counts no such jobs.
    ran_out = [f"{row[f'ran_out_{memory}']} {memory}" for memory in ("gpu", "host") if row.get(f"ran_out_{memory}")]
    return [team, queue, gpu, row["jobs"], _gpus(row["gpus"]), *sizes, measured, wrong, " + ".join(ran_out) or "-"]


def _gpus(count: float) -> str:
    """Shares of GPUs are a part of one."""
    return f"{count:.2f}".rstrip("0").rstrip(".")


def _on_gpu(kind: Document) -> Iterator[str]:
    jobs, gpus = kind["jobs"], kind["gpus"]
    counts = ", ".join(
        f"{jobs[verdict]} {verdict} ({_gpus(gpus[verdict])} GPUs)" for verdict in ("fits", "tight", "exceeds")
    )
    yield f"On {kind['gpu']} ({show_bytes(kind['total_bytes'])}): {counts}"
    rows = [
        [
            job["verdict"], f"{job['system']}/{job['job_id']}", job["name"] or "-", job["planned_gpu"],
            job["ranks"], show_bytes(job["least_bytes"]), show_bytes(job["highest_bytes"]),
        ]
        for job in kind["listed"][:MOST_ROWS]
    ]  # fmt: skip
    if rows:
        head = ["verdict", "job", "name", "planned for", "ranks", "at least", "at most (95 %)"]
        yield from _table(head, rows, words=4)
    if cut := sum(jobs.values()) - len(rows):
        yield f"and {cut} smaller ones"


def _table(head: Sequence[str], rows: Sequence[Sequence[object]], words: int) -> Iterator[str]:
    """The first columns are words, the others figures."""
    # Names come from users: they must not steer a terminal.
    cells = [
        ["".join(character if character.isprintable() else "?" for character in str(cell)) for cell in row]
        for row in (head, *rows)
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        aligned = [
            cell.ljust(width) if place < words else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(aligned).rstrip()
