"""All benchmarks as one table; ends with 1 if one misses its line.

Run: python benchmarks/run.py [--quick]

What is compared is always compared within this run, on this machine, by medians of several repetitions; times are
processor seconds, so that other work on the machine matters little. Only the stages of an answer, and what a
PostgreSQL does, are by the clock.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import history_speed
import peers
import replay_speed
import service_load

from planner.allocator.rules import Rules
from planner.units import GIB

HERE = Path(__file__).parent
EXAMPLE = HERE.parent / "examples" / "nemotron-4b-ddp.yaml"  # what `make plan` plans

NOT_SLOWER_THAN_MEM_TRACKER = 1.0
REPLAYED_A_SECOND = 200_000
HIT_SECONDS = 0.005
MORE_SECONDS = 0.3
"""A plan that is new to the service may take so much longer than in a process of the command line that is warm."""
LINEAR = 1.3
"""At most this much more for each event, or layer, in the longest run than in the shortest."""

SHARDED_SECONDS, PIPELINE_SECONDS = 6.0, 20.0
"""A plan of FSDP2 over 64 ranks, of processor time; one of 16,384 ranks in a pipeline, by the clock, on two cores."""
TWICE_THE_LAYERS, TWICE_THE_SHARDS = 1.25, 1.1
"""At most so much longer for a rank class; shards should cost nothing, and the rest of their line is noise."""

LARGEST_WORLD, MORE_RANKS, STAGES = 131_072, 1.2, (18, 200)
"""A rank of the largest world may cost so much more than one of 64; each of so many stages is a rank class."""

NEW_SECONDS, AGAIN_SECONDS, HOPELESS_SECONDS = 5.0, 0.5, 30.0
"""Of a command in a cold process: a job that was never planned, one that was, one that nothing makes fit."""
COMPILED_SECONDS, MOST_COMPILED = 60.0, 2.0
"""Of a compiled job without a cache; how much longer than the eager one where Inductor's cache has what it compiled."""
MOST_ACCUMULATION = 1.1
"""At most so much longer for 256 micro-batches than for one."""

CANDIDATES, FIRST_SECONDS, SEARCH_SECONDS, PLANNED = 10_000, 10.0, 125.0, 20
"""Of a search of 120 seconds on two cores, whose process has to start and to end."""
MAX_SECONDS = 15.0
"""Of all processes together, so by the clock of one core at most."""

REPORT_SECONDS = 2.0
"""Of the report's own work for a million events, the replay not counted."""
BOUND_SECONDS = 0.005
ASKED_SECONDS = 0.1
METRICS_SECONDS, METRICS_BYTES = 0.2, 1_000_000
STEP_SECONDS = 1.0
"""Of a program's step on paper, once it is warm, for a model of 8 billion parameters."""


@dataclass(frozen=True, slots=True)
class Row:
    """A figure and, if it has one, the line that it has to keep to."""

    what: str
    figure: str
    line: str = ""
    kept: bool = True

    def show(self) -> str:
        verdict = ("kept" if self.kept else "MISSED") if self.line else ""
        return f"  {self.what:<58} {self.figure:>22}   {self.line:<20} {verdict}".rstrip()


def tracing(repetitions: int) -> Iterator[Row]:
    ours = _traced("paper", replicas=8, repetitions=repetitions + 2)
    alone = _traced("paper", repetitions=repetitions + 2)
    fake = _traced("fake", repetitions=repetitions)
    tracker = _traced("mem_tracker", repetitions=repetitions)
    yield Row("paper GPU, rank of 8 under DDP", f"{ours:.2f} s")
    yield Row("paper GPU, one rank", f"{alone:.2f} s")
    yield Row("MemTracker under FakeTensorMode, one rank", f"{tracker:.2f} s")
    yield Row("FakeTensorMode alone, nothing recorded, one rank", f"{fake:.2f} s")
    ratio = tracker / ours
    kept = ratio >= NOT_SLOWER_THAN_MEM_TRACKER
    yield Row("MemTracker / paper GPU with DDP", f"{ratio:.1f}", f">= {NOT_SLOWER_THAN_MEM_TRACKER:.1f}, aim 2", kept)
    yield Row("MemTracker / paper GPU, same step", f"{tracker / alone:.1f}")
    yield Row("FakeTensorMode alone / paper GPU, same step", f"{fake / alone:.1f}")


def growth(repetitions: int) -> Iterator[Row]:
    counts = (16, 32, 64)
    each = {count: _traced("paper", layers=count, repetitions=repetitions) / count for count in counts}
    for count in counts:
        yield Row(f"{count} layers", f"{1000 * each[count]:.1f} ms a layer")
    ratio = each[counts[-1]] / each[counts[0]]
    yield Row(f"a layer of {counts[-1]} / a layer of {counts[0]}", f"{ratio:.2f}", f"<= {LINEAR}", ratio <= LINEAR)


def replaying(repetitions: int) -> Iterator[Row]:
    for name, rules in (("default rules", Rules()), ("expandable segments", Rules(expandable_segments=True))):
        a_second = {}
        for count in replay_speed.COUNTS:
            runs = [replay_speed.measure(count, rules) for _ in range(repetitions)]
            a_second[count] = count / median(seconds for seconds, _ in runs)
            what = f"{name}, {count:,} events among {runs[0][1]:,} free blocks"
            line = "" if rules.expandable_segments else f">= {REPLAYED_A_SECOND:,}"
            kept = a_second[count] >= REPLAYED_A_SECOND or not line
            yield Row(what, f"{a_second[count]:,.0f} events/s", line, kept)
        first, last = a_second[replay_speed.COUNTS[0]], a_second[replay_speed.COUNTS[-1]]
        ratio = first / last
        yield Row(f"{name}, an event of the longest / of the shortest", f"{ratio:.2f}", f"<= {LINEAR}", ratio <= LINEAR)


def remembering(repetitions: int) -> Iterator[Row]:
    """Storing ten thousand plans takes longer than asking for them: each question is repeated more often."""
    with history_speed.sqlite() as url:
        yield from _remembered("SQLite", history_speed.measure(url, repetitions=3 * repetitions))
    with history_speed.postgresql() as url_or_none:
        if url_or_none is None:
            yield Row("PostgreSQL", "not installed")
            return
        yield from _remembered("PostgreSQL", history_speed.measure(url_or_none, repetitions=3 * repetitions))


def _remembered(database: str, measured: history_speed.Measured) -> Iterator[Row]:
    for question, seconds in measured.seconds.items():
        most = METRICS_SECONDS if question == history_speed.METRICS else ASKED_SECONDS
        yield Row(f"{database}, {question}", f"{1000 * seconds:.1f} ms", f"< {1000 * most:.0f} ms", seconds < most)
    size = measured.metrics_bytes
    yield Row(f"{database}, size of /metrics", f"{size:,} bytes", f"< {METRICS_BYTES:,}", size < METRICS_BYTES)


def serving(repetitions: int) -> Iterator[Row]:
    """Plans that are in the store, over HTTP, by a service of its own."""
    runs = [service_load.measure() for _ in range(repetitions)]
    per_second = median(run.per_second for run in runs)
    inside = median(run.inside_median_ms for run in runs)
    least, most = service_load.WANTED_PER_SECOND, service_load.WANTED_MEDIAN_MS
    what = f"{service_load.CONNECTIONS} connections, answers of {runs[0].answer_bytes:,} bytes"
    yield Row(what, f"{per_second:.0f} a second", f">= {least:.0f}", per_second >= least)
    yield Row("one at a time, median inside the service", f"{inside:.1f} ms", f"< {most:.0f} ms", inside < most)


def making(repetitions: int) -> Iterator[Row]:
    """The plan_provider of a service with one tracing process, beside a process that is as warm."""
    seconds = _child("service_speed.py", str(2 * repetitions - 1))
    for what in ("hit in memory", "hit in the database"):
        yield Row(what, f"{1000 * seconds[what]:.1f} ms", f"< {1000 * HIT_SECONDS:.0f} ms", seconds[what] < HIT_SECONDS)
    yield Row("a new plan", f"{seconds['new plan']:.2f} s")
    yield Row("the same in a warm process", f"{seconds['in a warm process']:.2f} s")
    more = seconds["more than in a warm process"]
    yield Row("more, median of pairs", f"{more:.2f} s", f"<= {MORE_SECONDS} s", more <= MORE_SECONDS)


def laying_out(repetitions: int) -> Iterator[Row]:
    """Plans of all ranks. The large one is made once: it takes long, and by the clock of a machine that may be busy."""
    sharded = median(_child("layout_speed.py", "sharded")["processor_seconds"] for _ in range(repetitions))
    what, kept = "FSDP2 over 64 ranks, Llama-3-8B's shape", sharded < SHARDED_SECONDS
    yield Row(what, f"{sharded:.2f} s", f"< {SHARDED_SECONDS:.0f} s", kept)
    world = _child("layout_speed.py", "sharded", "--dp", str(LARGEST_WORLD))
    ratio = world["processor_seconds"] / world["rank_classes"] / sharded
    what = f"{LARGEST_WORLD:,} ranks, each of {world['rank_classes']} rank classes / the one of 64"
    yield Row(what, f"{ratio:.2f}", f"<= {MORE_RANKS}", ratio <= MORE_RANKS)
    few, many = (
        _child("layout_speed.py", "staged", "--layers", str(count))["processor_seconds"] / count for count in STAGES
    )
    what = f"a rank class of {STAGES[1]} / of {STAGES[0]}, small stages"
    yield Row(what, f"{1000 * many:.0f} ms, {many / few:.2f}", f"<= {LINEAR}", many / few <= LINEAR)
    large = _child("layout_speed.py", "pipeline", "--processes", "2")
    seconds, load = large["wall_seconds"], os.getloadavg()[0]
    what, kept = f"16,384 ranks, {large['rank_classes']} classes, by the clock", seconds < PIPELINE_SECONDS
    yield Row(what, f"{seconds:.1f} s", f"< {PIPELINE_SECONDS:.0f} s, two cores", kept)
    yield Row("the same, of two processes; load of the machine", f"{large['processor_seconds']:.1f} s; {load:.1f}")
    usual, layers, shards = (
        median(
            _child("layout_speed.py", "pipeline", "--one-class", *more)["processor_seconds"] for _ in range(repetitions)
        )
        for more in ((), ("--layers", "252"), ("--dp", "64"))
    )
    yield Row("one rank class of it", f"{usual:.2f} s")
    # Over more than 128 ranks the key and value projections do not divide: a class then has two parts to be traced.
    ratios = (
        ("with 252 layers / with 126", layers / usual, TWICE_THE_LAYERS),
        ("with 128 shards / with 64", usual / shards, TWICE_THE_SHARDS),
    )
    for what, ratio, most in ratios:
        yield Row(what, f"{ratio:.2f}", f"<= {most}", ratio <= most)


def searching(_: int) -> Iterator[Row]:
    """Once each, from cold processes: by the clock of two cores, and what all processes took together."""
    found, load = _child("search_speed.py", "search"), os.getloadavg()[0]
    yield Row(f"{found['candidates']:,} candidates, {found['jobs']:,} of them jobs", "", f">= {CANDIDATES:,}",
              found["jobs"] >= CANDIDATES)  # fmt: skip
    yield Row("first answer", f"{found['first_seconds']:.1f} s", f"< {FIRST_SECONDS:.0f} s, two cores",
              found["first_seconds"] < FIRST_SECONDS)  # fmt: skip
    yield Row("done", f"{found['wall_seconds']:.0f} s", f"< {SEARCH_SECONDS:.0f} s",
              found["wall_seconds"] < SEARCH_SECONDS)  # fmt: skip
    yield Row(f"exact plans, {found['fitting']} of which fit", str(found["planned"]), f">= {PLANNED}",
              found["planned"] >= PLANNED)  # fmt: skip
    yield Row("processor seconds; load of the machine", f"{found['processor_seconds']:.0f} s; {load:.1f}")
    found = _child("search_speed.py", "max")
    seconds = found["processor_seconds"]
    what = f"planner max micro_batch_size, Llama-3-8B by FSDP2: {found['value']}, {found['planned']} plans"
    yield Row(what, f"{seconds:.1f} s, {found['wall_seconds']:.0f} by the clock", f"< {MAX_SECONDS:.0f} s",
              seconds < MAX_SECONDS)  # fmt: skip


def commanding(repetitions: int) -> Iterator[Row]:
    """What a person waits for: whole commands, each in a process of its own."""

    def spent(*arguments: str) -> tuple[float, float]:
        runs = [_child("command_speed.py", *arguments) for _ in range(repetitions)]
        return median(run["wall_seconds"] for run in runs), median(run["processor_seconds"] for run in runs)

    for what, case, most in (
        ("a new job, Llama-3-8B by FSDP2", "new", NEW_SECONDS),
        ("the same job again", "again", AGAIN_SECONDS),
        ("Llama-3-8B by DDP, and nothing makes it fit", "hopeless", HOPELESS_SECONDS),
    ):
        seconds, _ = spent(case)
        yield Row(what, f"{seconds:.2f} s", f"<= {most:g} s", seconds <= most)
    cold, warm, eager = (spent(case)[1] for case in ("compiled", "compiled-again", "eager"))
    what, kept = "Llama-3-8B by FSDP2, blocks and loss compiled, processor time", cold <= COMPILED_SECONDS
    yield Row(what, f"{cold:.2f} s", f"<= {COMPILED_SECONDS:g} s", kept)
    ratio = warm / eager
    what, line = "the same with Inductor's cache / the eager job", f"<= {MOST_COMPILED:g}"
    yield Row(what, f"{warm:.2f} / {eager:.2f} s, {ratio:.2f}", line, ratio <= MOST_COMPILED)
    each = {count: spent("new", "--accumulation", str(count))[1] for count in (1, 8, 32, 256)}
    for count, seconds in each.items():
        ratio = seconds / each[1]
        line = f"<= {MOST_ACCUMULATION}" if count > 1 else ""
        what = f"with {count} micro-batches in a step, processor time"
        yield Row(what, f"{seconds:.2f} s, {ratio:.2f} of 1", line, ratio <= MOST_ACCUMULATION)


def running(repetitions: int) -> Iterator[Row]:
    """A program as it is: what it takes on paper besides its imports."""
    runs = [_child("program_speed.py") for _ in range(repetitions)]
    built, first, step = (median(run[name] for run in runs) for name in ("built", "first", "step"))
    yield Row("built on the host in float32, sharded, moved", f"{built:.2f} s")
    yield Row("its first step", f"{first:.2f} s")
    yield Row("a later step", f"{step:.2f} s", f"<= {STEP_SECONDS:g} s", step <= STEP_SECONDS)


def beside_peers() -> Iterator[Row]:
    """Once each: an error has no noise, and the seconds are whole processes of seconds to minutes."""
    found = []
    for each in peers.estimates():
        measured = each.job.measured
        if each.tool == peers.TOOLS[0]:
            yield Row(each.job.name, f"{measured.bytes / GIB:.2f} GiB {measured.figure}")
        yield Row(f"    {each.tool}", each.show())
        found.append(each)
    for what, figure in peers.medians(found):
        yield Row(what, figure)


def reporting(repetitions: int) -> Iterator[Row]:
    runs = [_child("report_speed.py") for _ in range(repetitions)]
    parts = {name: median(run[name] for run in runs) for name in runs[0] if name != "events"}
    for name, seconds in parts.items():
        yield Row(name, f"{seconds:.2f} s")
    total = sum(parts.values())
    yield Row(f"{runs[0]['events']:,} events", f"{total:.2f} s", f"<= {REPORT_SECONDS:g} s", total <= REPORT_SECONDS)


def answering(repetitions: int) -> Iterator[Row]:
    runs = [_child("answer_stages.py", str(EXAMPLE)) for _ in range(repetitions)]
    stages = {name: median(run[name] for run in runs) for name in runs[0]}
    total = sum(stages.values())
    for name, seconds in stages.items():
        yield Row(name, f"{seconds:.2f} s {100 * seconds / total:3.0f} %")
    yield Row("start to answer", f"{total:.2f} s 100 %")


def bounding(repetitions: int) -> Iterator[Row]:
    found = _child("bound_speed.py", "--repetitions", str(repetitions))
    kept = found["slowest_seconds"] <= BOUND_SECONDS
    yield Row(f"slowest of {found['jobs']} examples, median", f"{found['slowest_seconds'] * 1000:.2f} ms",
              f"<= {BOUND_SECONDS * 1000:g} ms", kept)  # fmt: skip


def _traced(means: str, *, layers: int = 32, replicas: int = 1, repetitions: int) -> float:
    """Median processor seconds, measured in a process of its own: the paper GPU is never where its peers are."""
    options = {"--layers": layers, "--replicas": replicas, "--repetitions": repetitions}
    arguments = [str(part) for option in options.items() for part in option]
    return float(median(_child("trace_speed.py", means, *arguments)["seconds"]))


def _child(script: str, *arguments: str) -> Any:
    # One thread: a pool that waits for work spends processor seconds too.
    ended = subprocess.run(
        [sys.executable, str(HERE / script), *arguments],
        stdout=subprocess.PIPE, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    return json.loads(ended.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description="All benchmarks as one table.")
    parser.add_argument("--quick", action="store_true", help="one repetition of each")
    repetitions = 1 if parser.parse_args().quick else 3
    missed = 0
    for title, rows in (
        ("Replay: events a second, 10,000 free blocks around", replaying(repetitions)),
        (f"History of {history_speed.PLANS:,} plans, 50 of them active with 16 rank classes", remembering(repetitions)),
        ("Lower bound of a job that is read", bounding(repetitions)),
        ("Plans from the store over HTTP", serving(repetitions)),
        ("Plans that are new to the service, Llama-3-8B", making(repetitions)),
        ("Commands from a cold process: planner plan", commanding(repetitions)),
        ("planner run: Llama-3-8B in transformers' code, FSDP2 over 8 ranks, 8,192 tokens", running(repetitions)),
        ("Large layouts: Llama-3.1-405B's shape, TP 8, PP 16, dp_shard 128, 32 micro-batches", laying_out(repetitions)),
        ("planner search: Llama-3-70B's shape on 256 GPUs; planner max", searching(repetitions)),
        ("Eight jobs that were measured, beside other tools: said, error, processor seconds", beside_peers()),
        ("The report of a million events, without the replay", reporting(repetitions)),
        (f"Start to answer: planner plan {EXAMPLE.name}, by the clock", answering(repetitions)),
        ("Growth of the trace with the layers, Llama-3-8B's otherwise", growth(repetitions)),
        ("Trace of a Llama-3-8B-shaped step, 8,192 tokens, 3 iterations, AdamW", tracing(repetitions)),
    ):
        print(title, flush=True)
        for row in rows:
            print(row.show(), flush=True)
            missed += not row.kept
        print(flush=True)
    print("every line is kept" if not missed else f"lines missed: {missed}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
