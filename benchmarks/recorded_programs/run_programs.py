"""`make programs`: programs that others ran on GPUs, unedited on paper, beside the peaks that their rank 0 printed.

    python benchmarks/recorded_programs/run_programs.py [ROW...] [--families NAME...] [--checkouts DIR] [--pythons P]

Of each family a seed draws runs among those that can be run, or ROW names some: `1120`, `nanochat/9`, a part of a
script's name. Each runs in a process of its own under `planner run`, by the interpreter that has its torch, with
made-up data. What it came to is kept, so that what was ended goes on where it was. Nothing is fetched: the folder of
checkouts has a git directory for each repository, PLANNER_TRUTH the tables. The file of a family says the rest. Minutes
of a processor a run, hence outside CI.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import resource
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import error_table
from liger import Liger
from megatron import Megatron
from nanochat import Nanochat
from outcomes import Outcome, compare, count_ran, keep, summarize
from parameter_golf import ParameterGolf
from published_pages import PublishedPages
from recorded_run import ROOT, Family, NotPublishedError, RecordedRun
from speedrun import Speedrun

from planner.runtime.user_cache import user_cache

FAMILIES: dict[str, type[Family[Any, Any]]] = {
    family.name: family for family in (Speedrun, ParameterGolf, Nanochat, Megatron, Liger, PublishedPages)
}


def read_pythons(text: str) -> dict[str, str]:
    """Interpreters by the torch that they have: `2.7=/a/bin/python,2.9=/b/bin/python`."""
    pairs = [pair.partition("=") for pair in filter(None, text.split(","))]
    if not all(re.fullmatch(r"\d+\.\d+", version) and python for version, _, python in pairs):
        raise argparse.ArgumentTypeError(f"{text} is not as 2.7=/a/bin/python,2.9=/b/bin/python")
    return {version: python for version, _, python in pairs}


def draw_runs(runs: Sequence[RecordedRun], count: int, seed: int) -> list[RecordedRun]:
    """So many of the runs: of those of one torch, GPU and number of ranks as many as the root of their number.

    A draw in proportion would be 8 H100 with one torch; one by strata would hardly have a run of those.
    """
    sizes = Counter(run.stratum for run in runs)
    drawn = random.Random(seed)
    keys = {run.name: drawn.random() ** (sizes[run.stratum] ** 0.5) for run in runs}
    chosen = {run.name for run in sorted(runs, key=lambda run: -keys[run.name])[:count]}
    return [run for run in runs if run.name in chosen]


def is_named(family: str, run: RecordedRun, word: str) -> bool:
    """Whether a word names a run: its name, with or without the family's, or a part of one that is not a number."""
    of_family, slash, name = word.rpartition("/")
    if slash and of_family != family:
        return False
    return name == run.name or (not run.name.isdigit() and not name.isdigit() and name in run.name)


def start_with(python: str, path: str) -> dict[str, str]:
    """The environment in which this planner runs by an interpreter, whose own torchrun and python come first."""
    executables = os.pathsep.join((str(Path(python).parent), os.environ.get("PATH", "")))
    return {**os.environ, "PATH": executables, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PLANNER_PYTHON": "here"}


def run_planner(command: list[str], work: Path, environment: dict[str, str]) -> dict[str, Any]:
    """What a command of planner printed: its answer, if it has one, its errors, and the seconds of a processor."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = subprocess.run(
        command, cwd=work, capture_output=True, text=True, check=False,
        env=environment, preexec_fn=lambda: os.nice(10),
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    result: dict[str, Any] = {"seconds": round(seconds, 1), "stderr": ended.stderr}
    try:
        return {**result, "answer": json.loads(ended.stdout)}
    except ValueError:
        return result


def find_result(family: Family[Any, Any], run: RecordedRun, options: argparse.Namespace) -> dict[str, Any]:
    """What a run came to, kept or now; without an answer if it failed, could not be run or was not."""
    if run.obstacle:
        return {"stderr": run.obstacle}
    python = options.pythons.get(run.torch, "") if options.pythons else sys.executable
    if not python:
        return {"stderr": f"no interpreter with torch {run.torch} in --pythons"}
    try:
        program = family.read_program(run)
    except NotPublishedError as error:
        return {"stderr": str(error)}
    result = find_result_of(family, run, program, python, options)
    if is_other_model(run, result) and (other := family.read_other_program(run, program)) is not None:
        result_of_other = find_result_of(family, run, other, python, options, "-other")
        return result_of_other if "answer" in result_of_other else result
    return result


def find_result_of(
    family: Family[Any, Any], run: RecordedRun, program: Any, python: str, options: argparse.Namespace, suffix: str = ""
) -> dict[str, Any]:
    """What a run came to if it was this program: kept, or run now."""
    said = repr((run.gpu, run.ranks, program, options.steps))
    key = f"{hashlib.sha256(said.encode()).hexdigest()[:16]} python={python if options.pythons else ''}"
    kept = options.folder / family.name / "results" / f"{run.name}{suffix}.json"
    # Runs may differ in their seeds alone, which change no size.
    equal = next((other for other in read_results(kept) if "answer" in other and other["key"] == key), None)
    if equal and (options.shown or not options.again):
        return equal
    if options.shown:
        shown: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
        return shown
    print(f"running {family.name}/{run.name}: {run.title}", file=sys.stderr, flush=True)
    launch = family.write(run, program, options.folder / family.name, python)
    ranks = ",".join(map(str, sorted({0, run.rank})))
    command = [
        python, "-m", "planner", "run", "--format", "json", "--ranks", ranks, "--gpu", run.gpu,
        "--steps", str(launch.steps if options.steps is None else options.steps), "--seconds", str(options.seconds),
        *(() if options.pythons else ("--torch", run.torch)), *launch.options, "--", *launch.command,
    ]  # fmt: skip
    path = os.pathsep.join(filter(None, (str(ROOT), *launch.paths, options.triton, os.environ.get("PYTHONPATH"))))
    environment = start_with(python, path) | launch.environment
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    result: dict[str, Any] = {"key": key, "date": today, **run_planner(command, launch.folder, environment)}
    if "answer" in result:
        result["written"] = family.read_written(run, options.folder / family.name, python)
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(result), encoding="utf-8")
    return result


def read_results(kept: Path) -> Iterator[dict[str, Any]]:
    """All that are kept of a family, one of them first."""
    for path in sorted(kept.parent.glob("*.json"), key=lambda path: (path != kept, path)):
        yield json.loads(path.read_text(encoding="utf-8"))


def print_line(outcome: Outcome, result: Mapping[str, Any]) -> str:
    """A run in one line."""
    cells = [outcome.run, outcome.title[:44], outcome.torch, outcome.gpu, str(outcome.ranks)]
    cells += [f"{figure.name} {', '.join(figure.cells())}" for figure in outcome.figures]
    if outcome.figures:
        answer = result["answer"]
        cells.append(f"{answer['seen'].get('eval', 0)} evaluations; {len(answer['assumptions'])} assumptions")
    else:
        cells.append(outcome.reason[:200])
    return " | ".join((*cells, f"{outcome.seconds:.0f} s"))


def sum_up(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Medians and worst, then what did not run with its reason."""
    yield f"{count_ran(outcomes)} ran"
    for name, errors in summarize(outcomes):
        spread = f"median {statistics.median(errors):.3f} %, worst {max(errors):.3f} % of {len(errors)}"
        yield f"{name}: {spread}, {errors.count(0)} of them 0"
    for outcome in outcomes:
        if not outcome.figures:
            yield f"{outcome.run} did not run: {outcome.reason}"


def is_other_model(run: RecordedRun, result: Mapping[str, Any]) -> bool:
    """Whether its program said another number of parameters than the run's log."""
    return bool(run.parameters) and result.get("written", {}).get("parameters", 0) not in {0, run.parameters}


def refuse_other_model(run: RecordedRun, result: dict[str, Any]) -> dict[str, Any]:
    """The result; without its answer where the program's model is not that of the run."""
    if not is_other_model(run, result):
        return result
    parameters = result["written"]["parameters"]
    reason = (
        f"a setting is nowhere said: its model had {run.parameters:,} parameters, by what is said it has {parameters:,}"
    )
    return {name: value for name, value in result.items() if name != "answer"} | {"stderr": reason}


def refuse_cut_off(result: dict[str, Any]) -> dict[str, Any]:
    """The result; without its answer where the time was over (--seconds) before the program came to what was asked."""
    ending = result.get("answer", {}).get("ending", "")
    if "its time is over" not in ending:
        return result
    return {name: value for name, value in result.items() if name != "answer"} | {"stderr": ending}


def run_family(family: Family[Any, Any], options: argparse.Namespace) -> list[Outcome]:
    """Prints one line a run that is drawn or named, and what they come to."""
    runs = family.read_runs()
    if options.rows:
        chosen = [run for run in runs if any(is_named(family.name, run, word) for word in options.rows)]
    else:
        obstacles = Counter(run.obstacle or run.inferred for run in runs if run.obstacle or run.inferred)
        chosen = draw_runs([run for run in runs if not run.obstacle and not run.inferred], options.count, options.seed)
        left_out = "".join(f"; {number} are not drawn: {obstacle}" for obstacle, number in obstacles.items())
        print(f"{family.name}: {len(chosen)} of {len(runs)} runs{left_out}")
    outcomes = []
    for run in chosen:
        result = find_result(family, run, options)
        result = refuse_cut_off(refuse_other_model(run, result))
        figures = family.read_figures(run, result) if "answer" in result else []
        error = family.read_error(run, result)
        outcomes.append(compare(run, figures, result | ({"stderr": error} if error else {}), result.get("date", "")))
        print(print_line(outcomes[-1], result), flush=True)
    for line in sum_up(outcomes) if chosen else ():
        print(f"{family.name}: {line}")
    if options.record and outcomes:
        keep(family.name, outcomes)
        error_table.write_all()
    return outcomes


def main() -> int:
    """0 if every run that was drawn or named ran."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", help="names of runs (default: those of the draw)")
    parser.add_argument("--families", nargs="+", choices=list(FAMILIES), help="default: all that are at hand")
    parser.add_argument("--checkouts", type=Path, help="a folder with a git directory for each repository")
    parser.add_argument(
        "--pythons", type=read_pythons, default={}, help="an interpreter for each torch: 2.7=/a/bin/python,2.9=…"
    )
    parser.add_argument("--seed", type=int, default=25, help="of the draw (default: 25)")
    parser.add_argument("--count", type=int, default=40, help="how many are drawn of a family (default: 40)")
    parser.add_argument(
        "--folder", type=Path, default=user_cache() / "recorded-programs", help="data, programs and results"
    )
    parser.add_argument("--steps", type=int, help="iterations (default: the family's); 0: until it is steady")
    parser.add_argument("--seconds", type=float, default=1800, help="how long one may take (default: 1800)")
    parser.add_argument(
        "--triton", default=os.environ.get("PLANNER_TRITON", ""), help="a folder with the package triton"
    )
    parser.add_argument("--again", action="store_true", help="run what was run before, too")
    parser.add_argument("--shown", action="store_true", help="run nothing, show what there is")
    parser.add_argument("--record", action="store_true", help="into tests/data/recorded_runs and its page, too")
    options = parser.parse_intermixed_args()
    options.folder = options.folder.absolute()
    failed = asked = 0
    for family in [FAMILIES[name](options.checkouts) for name in options.families or FAMILIES]:
        if family.missing:
            print(f"{family.name} is left out: there has to be {family.missing}")
            failed += bool(options.families)
            continue
        outcomes = run_family(family, options)
        asked += len(outcomes)
        failed += sum(not outcome.figures for outcome in outcomes)
    return 1 if failed or not asked else 0


if __name__ == "__main__":
    raise SystemExit(main())
