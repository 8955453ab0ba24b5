"""All benchmarks as one table; ends with 1 if one misses its line.

Run: python benchmarks/run.py [--quick]

What is compared is always compared within this run, on this machine, by medians of several repetitions; times are
processor seconds, so that other work on the machine matters little. Only the stages of an answer are by the clock.
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

import replay_speed

from planner.allocator.rules import Rules

HERE = Path(__file__).parent
EXAMPLE = HERE.parent / "examples" / "nemotron-4b-ddp.yaml"  # what `make plan` plans

NOT_SLOWER_THAN_MEM_TRACKER = 1.0
REPLAYED_A_SECOND = 200_000
LINEAR = 1.3
"""At most this much more for each event, or layer, in the longest run than in the shortest."""


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


def answering(repetitions: int) -> Iterator[Row]:
    runs = [_child("answer_stages.py", str(EXAMPLE)) for _ in range(repetitions)]
    stages = {name: median(run[name] for run in runs) for name in runs[0]}
    total = sum(stages.values())
    for name, seconds in stages.items():
        yield Row(name, f"{seconds:.2f} s {100 * seconds / total:3.0f} %")
    yield Row("start to answer", f"{total:.2f} s 100 %")


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
