"""The capacity of a cluster (`planner.capacity/1`) as text for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.units import show_bytes

MOST_ROWS = 20
"""Of each table; what is cut is counted."""

Document = Mapping[str, Any]
_NO_JOBS = """\
no job is bound to a plan (those that have ended are counted with --since 30d); a job is bound by
  planner check JOB.yaml --server $PLANNER_SERVER -- COMMAND    which starts it too
  the hooks of Slurm, Ray and Kubernetes                        docs/admission.md
  PUT $PLANNER_SERVER/v1/jobs/SYSTEM/ID                         {"plan_id": "pl-..."}, of POST /v1/plans or /v1/runs\
"""


def render_capacity(document: Document) -> str:
    """Groups and their sums, then what was asked besides: jobs on other GPUs, what queues need, new nodes."""
    return "\n".join(_lines(document)) + "\n"


def _lines(document: Document) -> Iterator[str]:
    head = ["team", "queue", "gpu", "jobs", "gpus", "asked for", "predicted", "headroom", "measured", "wrong/judged",
            "out of memory"]  # fmt: skip
    rows: list[Sequence[object]] = [
        _group(row, row["team"] or "-", row["queue"] or "-", row["gpu"]) for row in document["rows"]
    ]
    if not rows:
        yield _NO_JOBS
    else:
        shown = rows[:MOST_ROWS]
        if len(rows) > MOST_ROWS:
            shown.append(["...", "", f"{len(rows) - MOST_ROWS} more"] + [""] * 8)
        if len(rows) > 1:
            shown.append(_group(document["totals"], "all", "", ""))
        yield from _table(head, shown, words=3)
        if document["totals"].get("host_predicted_bytes"):
            yield ""
            yield _hosts(document["totals"])
    for kind in document.get("on") or ():
        yield ""
        yield from _on(kind)
    if document.get("needs"):
        yield ""
        yield "What waits needs"
        needs = [[each["queue"], each["gpu"] or "none of these", each["jobs"], each["gpus"]]
                 for each in document["needs"]]  # fmt: skip
        yield from _table(["queue", "gpu", "jobs", "gpus"], needs, words=2)
    if document.get("added"):
        yield ""
        yield from _format_added_nodes(document["added"])
    if document.get("left_out"):
        yield ""
        yield f"{document['left_out']} more jobs were not looked at"


def _hosts(totals: Document) -> str:
    said = f" of {show_bytes(totals['host_requested_bytes'])}" if totals["host_requested_bytes"] else ""
    return f"Main memory of their nodes: {show_bytes(totals['host_predicted_bytes'])} predicted{said}"


def _group(row: Document, team: str, queue: str, gpu: str) -> list[object]:
    measured = show_bytes(row["measured_bytes"]) if row["measured_gpus"] else "-"
    wrong = f"{row['wrong_verdicts']}/{row['judged']}" if row["judged"] else "-"
    sizes = [show_bytes(row[f"{name}_bytes"]) for name in ("requested", "predicted", "headroom")]
    # A service of before counts no such jobs.
    ran_out = [f"{row[f'ran_out_{memory}']} {memory}" for memory in ("gpu", "host") if row.get(f"ran_out_{memory}")]
    return [team, queue, gpu, row["jobs"], row["gpus"], *sizes, measured, wrong, " + ".join(ran_out) or "-"]


def _on(kind: Document) -> Iterator[str]:
    said = ", ".join(
        f"{kind['jobs'][verdict]} {verdict} ({kind['gpus'][verdict]} GPUs)" for verdict in ("fits", "tight", "exceeds")
    )
    yield f"On {kind['gpu']} ({show_bytes(kind['total_bytes'])}): {said}"
    rows = [
        [
            each["verdict"], f"{each['system']}/{each['job_id']}", each["name"] or "-", each["planned_gpu"],
            each["ranks"], show_bytes(each["least_bytes"]), show_bytes(each["highest_bytes"]),
        ]
        for each in kind["listed"][:MOST_ROWS]
    ]  # fmt: skip
    if rows:
        yield from _table(
            ["verdict", "job", "name", "planned for", "ranks", "at least", "at most (95 %)"], rows, words=4
        )
    cut = sum(kind["jobs"].values()) - len(rows)
    if cut:
        yield f"and {cut} smaller ones"


def _format_added_nodes(found: Document) -> Iterator[str]:
    yield (
        f"{found['nodes']} more nodes with {found['gpus']} {found['gpu']}: {found['started_jobs']} waiting jobs start "
        f"on {found['started_gpus']} of them, {found['idle_gpus']} stay idle"
    )
    yield (
        f"{found['waiting_jobs']} jobs still wait for {found['waiting_gpus']} GPUs; "
        f"{found['too_large_jobs']} are too large for this type"
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[object]], words: int) -> Iterator[str]:
    """The first columns are words, the others figures."""
    cells = [list(head), *([_printable(cell) for cell in row] for row in rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(head))]
    for row in cells:
        padded = (
            cell.ljust(width) if place < words else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )  # fmt: skip
        yield "  ".join(padded).rstrip()


def _printable(cell: object) -> str:
    """Names come from whoever submitted a job: they do not steer a terminal."""
    return "".join(character if character.isprintable() else "?" for character in str(cell))
