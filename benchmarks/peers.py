"""What planner and its peers say of eight jobs that other people measured: bytes, error, processor seconds.

Run: python benchmarks/peers.py [--tool TOOL ...]

Each tool answers for each job in a process of its own; seconds are the processor seconds of that whole process, imports
included, for one answer. benchmarks/peer_jobs/jobs.yaml says what was measured and which tool takes which job;
benchmarks/peer_*.py how each tool is asked and what its figure means. Nothing here has a line to keep.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import peer_jobs
from peer_jobs import TOOLS, PeerJob

from planner.units import GIB

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Estimate:
    """One answer; `missing` says why there is none, and only then are bytes and seconds 0."""

    job: PeerJob
    tool: str
    bytes: int = 0
    seconds: float = 0.0
    missing: str = ""

    @property
    def error_percent(self) -> float:
        return 100 * (self.bytes - self.job.measured.bytes) / self.job.measured.bytes

    def show(self) -> str:
        if self.missing:
            return self.missing
        return f"{self.bytes / GIB:.2f} GiB {self.error_percent:+.1f} % {self.seconds:.1f} s"


def estimates(tools: Sequence[str] = TOOLS) -> Iterator[Estimate]:
    """Of each job by each tool, as they come."""
    for job in peer_jobs.read():
        for tool in tools:
            yield ask(tool, job) if tool in job.tools else Estimate(job, tool, missing=job.others[tool])


def ask(tool: str, job: PeerJob) -> Estimate:
    """Raises CalledProcessError for a tool that is installed and fails."""
    # One thread: a pool that waits for work spends processor seconds too. No job is answered from a cache.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PLANNER_CACHE": "none"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, str(HERE / "peer_estimate.py"), tool, job.name]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode:
        sys.stderr.write(ended.stderr)
        ended.check_returncode()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    said = json.loads(ended.stdout)
    if "missing" in said:
        return Estimate(job, tool, missing=said["missing"])
    return Estimate(job, tool, said["bytes"], seconds)


def medians(found: Sequence[Estimate]) -> Iterator[tuple[str, str]]:
    """Of each tool over the jobs that it takes, and planner's over the same jobs where it takes them."""
    by_tool = {tool: [each for each in found if each.tool == tool and not each.missing] for tool in TOOLS}
    ours = {each.job.name: each for each in by_tool["planner"]}
    for tool, said in by_tool.items():
        if not said:
            continue
        yield f"{tool}, median of {len(said)}", _median_of(said)
        same = [ours[each.job.name] for each in said if each.job.name in ours]
        if same and tool != "planner":
            yield f"  planner, the same {len(same)}", _median_of(same)


def _median_of(said: Sequence[Estimate]) -> str:
    return f"{median(abs(e.error_percent) for e in said):.1f} % {median(e.seconds for e in said):.1f} s"


def as_markdown(found: Sequence[Estimate]) -> str:
    """Errors and seconds as a table with a column for each tool."""
    lines = [f"| job | measured | {' | '.join(TOOLS)} |", f"|---|---:|{'---:|' * len(TOOLS)}"]
    for job in dict.fromkeys(each.job.name for each in found):
        said = {each.tool: each for each in found if each.job.name == job}
        measured = next(iter(said.values())).job.measured
        cells = [said[tool].show() if tool in said else "" for tool in TOOLS]
        lines.append(f"| {job} | {measured.bytes / GIB:.2f} GiB {measured.figure} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", action="append", choices=TOOLS, help="only this one; may be given several times")
    said = parser.parse_args()
    found = []
    for each in estimates(said.tool or TOOLS):
        print(f"{each.job.name}: {each.tool}: {each.show()}", file=sys.stderr, flush=True)
        found.append(each)
    print(as_markdown(found))
    for what, figure in medians(found):
        print(f"{what}: {figure}")


if __name__ == "__main__":
    main()
