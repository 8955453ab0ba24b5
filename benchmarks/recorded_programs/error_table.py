"""How far plans of every recorded run were off, by kind: the data of intervals, and docs/results/intervals.md.

python benchmarks/recorded_programs/error_table.py  # both anew, from tests/data; `make programs RECORD=yes` too
"""

from __future__ import annotations

import json
import os
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from outcomes import KEPT, Outcome, judged_figure, read_kept
from recorded_run import ROOT

from planner import records
from planner.hardware import catalog
from planner.job.kinds import Kind
from planner.job.overhead import outside
from planner.job.schema import Gpu, Software
from planner.truth.calibration import recorded_errors
from planner.truth.calibration.interval import Calibration, interval
from planner.truth.calibration.recorded_errors import ENOUGH_RUNS, RecordedError, band, bound, is_covered
from planner.verdict import Verdict, decide
from planner.versions import cuda_of

PUBLISHED = KEPT.parent / "published_errors.json"
DATA = ROOT / "planner" / "truth" / "calibration" / "recorded_errors.json"
PAGE = ROOT / "docs" / "results" / "intervals.md"
SUMMARIZED = (ROOT / "README.md", ROOT / "docs" / "flaws.md")
_MANY = 20
_SOURCES = {
    "liger": lambda outcome: outcome.title.split()[0],
    "megatron": lambda outcome: outcome.title.split()[0],
    "nanochat": lambda _: "all",
    "pages": lambda outcome: outcome.run.partition("-")[0],
    "parameter-golf": lambda outcome: outcome.title,
    "speedrun": lambda outcome: outcome.run,
}
"""Whose run it is, within a family: what is off for the same cause."""
_HEAD = """# Intervals

How far plans were from what was recorded, by kind of job, and the interval that follows from it. Plans and reports
read the same rows (`planner/truth/calibration/recorded_errors.json`, which
`benchmarks/recorded_programs/error_table.py` writes with this page). A run counts with its reserved peak, or its
allocated peak where nothing else was recorded. Its error is recorded / planned - 1, against the nearer end of what was
printed. *Below*: what 19 of 20 runs stayed below. *Covered*: runs that lie in the interval which the runs of all other
sources give, or those of all other families.

The interval of a kind is the shortest that holds 95 % of its runs and one further run. A kind with fewer than 39 runs
(few) has a wider one: its own range, stretched, and the interval of the next wider kind for the share of runs that is
missing. A wider kind lends only runs without a trait (the last part of a name).

Kinds come from the answer of each run. Runs of before 2026-11-28 have it from their program: scripts of
parameter-golf, nanochat and the speedrun compile their model, the others do not; whether the host's lead decides was
seen in runs of 2026-11-28 for the speedrun and most of parameter-golf.

"""
_RAN_OUT = """
Of the three published runs that ran out of memory (torchtitan-83, -84 and -87 of published.json) planner says that all
exceed, and of their neighbours that ran, with half or a quarter of the batch, that they fit
(`tests/planning/plans/test_published_verdicts.py`).
"""


def read_errors() -> list[RecordedError]:
    """Of all runs that are kept, and of those that were published as figures only."""
    return [*errors_of_outcomes(read_kept()), *_of_published(inferred=False)]


def errors_of_outcomes(kept: Mapping[str, Sequence[Outcome]]) -> Iterator[RecordedError]:
    """Of those that ended, by their family."""
    for family, outcomes in kept.items():
        for outcome in outcomes:
            if outcome.figures and outcome.kind is not None:
                figure = judged_figure(outcome.figures)
                source = f"{family}: {_SOURCES[family](outcome)}"
                error = round(-figure.missed_bytes / figure.planned_bytes, 6) + 0.0
                yield RecordedError(
                    source=source, family=family, run=outcome.run, kind=outcome.kind, figure=figure.name, error=error
                )


def _of_published(*, inferred: bool) -> Iterator[RecordedError]:
    """`inferred`: those of which a part was inferred from their own figures."""
    groups: list[dict[str, Any]] = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    for group in groups:
        if group.get("inferred", False) is not inferred:
            continue
        kind = records.from_plain(Kind, {**records.to_plain(Kind()), **group["kind"]}, group["source"])
        for number, percent in enumerate(group["percent"], 1):
            yield RecordedError(
                source=group["source"], family=group["family"], run=str(number), kind=kind,
                figure=group["figure"], error=round(percent / 100, 6),
            )  # fmt: skip


def judge_outcome(outcome: Outcome) -> Verdict | None:
    """What planner says of a run on its GPU, or on the smallest that its name may mean; None of one that did not end,
    or whose GPU the catalog does not have."""
    gpu = min(catalog.by_any_name(outcome.gpu), key=lambda known: known.total_bytes, default=None)
    if gpu is None or outcome.kind is None:
        return None
    job_gpu = Gpu(name=gpu.name, total_bytes=gpu.total_bytes, arch=gpu.arch)
    held = outside(job_gpu, Software(torch=outcome.torch, cuda=cuda_of(outcome.torch)), [outcome.ranks])
    device = judged_figure(outcome.figures).planned_bytes + held.total_bytes
    highest = interval(device, held, Calibration.none(), kind=outcome.kind)[1]
    return decide(runs_out=device > gpu.total_bytes, highest_bytes=highest, capacity_bytes=gpu.total_bytes)


def write_data(rows: Sequence[RecordedError]) -> str:
    """A line for each run."""
    return "[\n" + ",\n".join(json.dumps(records.to_plain(row)) for row in rows) + "\n]\n"


def write_page(rows: Sequence[RecordedError], kept: Mapping[str, Sequence[Outcome]]) -> str:
    """By kind, verdicts, and the runs that are not covered."""
    kinds: defaultdict[tuple[str, ...], list[RecordedError]] = defaultdict(list)
    for row in rows:
        kinds[row.kind.path].append(row)
    ordered = sorted(kinds)
    lines = [
        "| kind | runs | reserved | sources | median | from | to | interval | below | covered | by other families |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [_kind_row(kinds[path], rows) for path in ordered]
    lines.append(_all_row(rows))
    lines += [
        *_say_inferred(rows),
        *_verdicts(kept),
        f"## Runs that their interval does not cover\n\nOf {len(rows)}, each source left out:\n",
    ]
    lines += ["| kind | source | run | figure | error |", "|---|---|---|---|---:|"]
    lines += [
        f"| {row.kind.name} | {row.source} | {row.run} | {row.figure} | {row.error:+.2%} |"
        for path in ordered
        for row in kinds[path]
        if not is_covered(row, rows)
    ]
    return _HEAD + "\n".join(lines) + "\n"


def _say_inferred(rows: Sequence[RecordedError]) -> Iterator[str]:
    inferred = list(_of_published(inferred=True))
    covered, errors = sum(is_covered(row, rows) for row in inferred), sorted(row.error for row in inferred)
    half = statistics.median(abs(error) for error in errors)
    yield "\npeft's runs ([rows](accuracy.md#methods-of-peft)) are not in it: the lengths of their batches were"
    yield f"inferred from their own peaks. {covered} of {len(inferred)} lie in the interval of their kind (eager"
    yield f"programs, one rank), half are within {half:.2%} of the plan, all between {errors[0]:+.2%} and"
    yield f"{errors[-1]:+.2%}.\n"


def _verdicts(kept: Mapping[str, Sequence[Outcome]]) -> Iterator[str]:
    yield "## Verdicts\n"
    yield "Of runs that ran, each on its GPU, by the planned peak and what lies outside of the allocator:\n"
    yield "| family | on a GPU of the catalog | fits | tight | exceeds |"
    yield "|---|---:|---:|---:|---:|"
    for family, outcomes in kept.items():
        verdicts = Counter(verdict for outcome in outcomes if (verdict := judge_outcome(outcome)) is not None)
        yield f"| {family} | {verdicts.total()} | {' | '.join(str(verdicts[verdict]) for verdict in Verdict)} |"
    yield _RAN_OUT


def _kind_row(members: Sequence[RecordedError], rows: Sequence[RecordedError]) -> str:
    kind, errors = members[0].kind, [row.error for row in members]
    low, high = band(rows, kind)
    cells = [
        kind.name + ("" if len(members) >= ENOUGH_RUNS else " (few)"),
        str(len(members)),
        str(sum(row.figure == "reserved" for row in members)),
        str(len({row.source for row in members})),
        f"{statistics.median(errors):+.2%}",
        f"{min(errors):+.2%}",
        f"{max(errors):+.2%}",
        f"{low:+.2%} to {high:+.2%}",
        f"{bound(rows, kind, 0.05):+.2%}",
        *_covered(members, rows),
    ]
    return f"| {' | '.join(cells)} |"


def _all_row(rows: Sequence[RecordedError]) -> str:
    reserved, sources = sum(row.figure == "reserved" for row in rows), len({row.source for row in rows})
    covered, by_families = _covered(rows, rows)
    return f"| all | {len(rows)} | {reserved} | {sources} | | | | | | {covered} | {by_families} |"


def _covered(members: Sequence[RecordedError], rows: Sequence[RecordedError]) -> tuple[str, str]:
    inside = sum(is_covered(row, rows) for row in members)
    by_families = sum(is_covered(row, rows, by_family=True) for row in members)
    return f"{inside} ({inside / len(members):.1%})", f"{by_families} ({by_families / len(members):.1%})"


def summarize(rows: Sequence[RecordedError], kept: Mapping[str, Sequence[Outcome]]) -> str:
    """What README and docs/flaws.md say of all intervals."""
    kinds = Counter(row.kind.name for row in rows)
    covered = Counter(row.kind.name for row in rows if is_covered(row, rows))
    shares = sorted(covered[name] / count for name, count in kinds.items() if count >= _MANY)
    verdicts = Counter(judge_outcome(outcome) for outcomes in kept.values() for outcome in outcomes)
    return (
        f"Of {len(rows)} recorded runs {covered.total()} lie in the interval that the runs of other sources give; of"
        f" {len(shares)} kinds with {_MANY} runs or more {shares[0]:.1%} to {shares[-1]:.1%}. Of"
        f" {verdicts.total() - verdicts[None]} that ran on a GPU of the catalog {verdicts[Verdict.FITS]} fit,"
        f" {verdicts[Verdict.TIGHT]} are tight and {verdicts[Verdict.EXCEEDS]} exceed"
    )


def insert_summary(page: Path, summary: str) -> str:
    """The page with the paragraph after its marker replaced."""
    link = os.path.relpath(PAGE, page.parent)
    before, marker, after = page.read_text(encoding="utf-8").partition("<!-- intervals -->\n")
    assert marker, f"{page} has no place for it"
    said, _, rest = after.partition("\n")
    assert not said or said.startswith("Of "), f"{page} says something else there"
    return f"{before}{marker}{summary} ([by kind]({link})).\n\n{rest.lstrip()}"


def write_all() -> None:
    """The data, its page, and what other pages say of it, anew."""
    rows = read_errors()
    DATA.write_text(write_data(rows), encoding="utf-8")
    recorded_errors.recorded_errors.cache_clear()
    recorded_errors.reserved_band.cache_clear()
    kept = read_kept()
    PAGE.write_text(write_page(rows, kept), encoding="utf-8")
    for page in SUMMARIZED:
        text = insert_summary(page, summarize(rows, kept))
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_all()
