"""What recorded runs came to on paper: kept in tests/data/recorded_runs, shown by docs/results/recorded-runs.md.

python benchmarks/recorded_programs/outcomes.py      # writes the page anew; `make programs RECORD=yes` does both
"""

from __future__ import annotations

import json
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recorded_run import ROOT, Figure, RecordedRun

from planner import records
from planner.job.kinds import Kind

KEPT = ROOT / "tests" / "data" / "recorded_runs"
PAGE = ROOT / "docs" / "results" / "recorded-runs.md"
_HEAD = """# Recorded runs

Every run that `make programs` was asked for ([how](programs.md#recorded-programs)): unedited programs on paper, each
with the torch that it had (Megatron-LM's with 2.10, but 134, 324 and 532), beside what its log printed, in MiB; runs
that did not end have their reason. Errors are against the nearer end of what was printed. Generated from
`tests/data/recorded_runs`; causes are [discussed by family](programs.md), [intervals](intervals.md) follow from the
errors.

"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One run beside paper; without figures it did not end, for `reason`."""

    run: str
    title: str
    torch: str
    gpu: str
    ranks: int
    date: str
    seconds: float = 0.0
    """Of a processor."""
    figures: tuple[Figure, ...] = ()
    kind: Kind | None = None
    """As its report says; None of a run that did not end."""
    reason: str = ""
    step_seconds: float = 0.0
    """Of an iteration as it was printed, and of the slowest rank on paper; 0: nobody says it."""
    planned_step_seconds: float = 0.0


def compare(run: RecordedRun, figures: Sequence[Figure], result: Mapping[str, Any], date: str) -> Outcome:
    """What a run's result says, figure by figure."""
    return Outcome(
        run=run.name, title=run.title, torch=run.torch, gpu=run.product, ranks=run.ranks, date=date,
        seconds=float(result.get("seconds", 0)), figures=tuple(figures), reason="" if figures else reason_of(result),
        kind=_kind(result["answer"]) if figures else None,
        step_seconds=run.step_seconds, planned_step_seconds=_step_seconds(result["answer"]) if figures else 0.0,
    )  # fmt: skip


def _step_seconds(answer: Mapping[str, Any]) -> float:
    steps = [rank_class["step"]["seconds"] for rank_class in answer["rank_classes"] if "step" in rank_class]
    return float(max(steps, default=0.0))


def _kind(answer: Mapping[str, Any]) -> Kind:
    """Of the fullest ranks, which come first."""
    return records.from_plain(Kind, answer["rank_classes"][0]["kind"])


def judged_figure(figures: Sequence[Figure]) -> Figure:
    """The reserved peak, or what there is."""
    return next((figure for figure in figures if figure.name == "reserved"), figures[0])


def reason_of(result: Mapping[str, Any]) -> str:
    """The line of a run without an answer that says what was wrong."""
    lines = [line for line in result.get("stderr", "").splitlines() if line.strip()]
    said = [number for number, line in enumerate(lines) if line.startswith("  allowed: ") and number]
    if said:  # of an error in three lines the first, without its place
        return re.sub(r"^\S+\.py(:\d+)?: ", "", lines[said[-1] - 1])
    messages = [line.partition(": ")[2] for line in lines if line.partition(": ")[0].endswith(".py")]
    return messages[-1] if messages else (lines[-1] if lines else "not run")


def summarize(outcomes: Sequence[Outcome]) -> Iterator[tuple[str, list[float]]]:
    """The errors of every kind of figure, in percent without their signs."""
    names = dict.fromkeys(figure.name for outcome in outcomes for figure in outcome.figures)
    for name in names:
        yield name, [abs(figure.error) for outcome in outcomes for figure in outcome.figures if figure.name == name]


def count_ran(outcomes: Sequence[Outcome]) -> str:
    """As `21 of 28`."""
    return f"{sum(bool(outcome.figures) for outcome in outcomes)} of {len(outcomes)}"


def read_kept() -> dict[str, list[Outcome]]:
    """By family, what is kept."""
    return {
        path.stem: [records.from_plain(Outcome, each) for each in json.loads(path.read_text(encoding="utf-8"))]
        for path in sorted(KEPT.glob("*.json"))
    }


def keep(family: str, outcomes: Sequence[Outcome]) -> None:
    """Adds outcomes of a family to those that are kept, in the place of older ones of the same runs, and the page."""
    kept = read_kept()
    known = {outcome.run: outcome for outcome in (*kept.get(family, []), *outcomes)}
    ordered = sorted(known.values(), key=lambda outcome: (not outcome.run.isdigit(), outcome.run.zfill(6)))
    KEPT.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(records.to_plain(outcome)) for outcome in ordered)
    (KEPT / f"{family}.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    PAGE.write_text(write_page(dict(sorted({**kept, family: ordered}.items()))), encoding="utf-8")


def write_page(kept: Mapping[str, Sequence[Outcome]]) -> str:
    """The page of everything that is kept."""
    lines = ["| family | ran | what | median error | worst | within 1 % |"]
    lines += ["|---|---:|---|---:|---:|---:|"]
    for family, outcomes in kept.items():
        lines += _summary_rows(family, outcomes)
    lines += _summary_rows("all", [outcome for outcomes in kept.values() for outcome in outcomes])
    for family, outcomes in kept.items():
        torches = Counter(outcome.torch or "unknown" for outcome in outcomes)
        of_torches = ", ".join(f"{torch} ({torches[torch]})" for torch in sorted(torches, key=_version))
        lines += ["", f"## {family}", "", f"Torch of the runs: {of_torches}.", "", *_table(outcomes)]
    return _HEAD + "\n".join(lines) + "\n"


def _summary_rows(family: str, outcomes: Sequence[Outcome]) -> Iterator[str]:
    first = f"{family} | {count_ran(outcomes)}"
    for name, errors in summarize(outcomes):
        within = f"{sum(error <= 1 for error in errors)} of {len(errors)}"
        yield f"| {first} | {name} | {statistics.median(errors):.3f} % | {max(errors):.3f} % | {within} |"
        first = " | "


def _version(torch: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", torch)))


def _table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    names = [name for name, _ in summarize(outcomes)]
    heads = "".join(f" {name} there | here | error |" for name in names)
    yield f"| run | title | torch | GPU | ranks |{heads} seconds | date |"
    yield f"|---|---|---|---|---:|{'---:|---:|---:|' * len(names)}---:|---|"
    for outcome in outcomes:
        figures = {figure.name: figure for figure in outcome.figures}
        cells = [outcome.run, outcome.title, outcome.torch, outcome.gpu, str(outcome.ranks)]
        for name in names:
            cells += figures[name].cells() if name in figures else ["", "", ""]
        if outcome.reason:
            cells[5] = f"did not run: {outcome.reason[:200]}"
        cells += [f"{outcome.seconds:.0f}" if outcome.seconds else "", outcome.date]
        yield f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


if __name__ == "__main__":
    PAGE.write_text(write_page(read_kept()), encoding="utf-8")
