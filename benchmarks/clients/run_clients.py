"""Runs rank 0 of every program of the catalog on paper and prints docs/results/programs.md's table of them.

    PYTHONPATH=. python benchmarks/clients/run_clients.py FOLDER [--only TEXT] [--json FILE]

FOLDER is where `materials.py` has been, or will be: it is filled if it is empty. The packages of `requirements.txt`
beside this file have to be importable: `make clients` sees to it. Processor seconds are those of the program itself
where a server forks its process, and of PyTorch's import too where it has packages of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from catalog import CLIENTS, Client

from planner.allocator.replay import replay
from planner.allocator.rules import Rules
from planner.errors import PlannerError
from planner.hardware import catalog as gpus
from planner.job.launching.line import parse
from planner.runtime.fork_server import ForkServer
from planner.tracing.program.assumptions import About
from planner.tracing.program.rank_orders import Gpu, ProgramOrder, RankRun
from planner.tracing.program.rank_process import USUAL_LIMITS, CrashedError, lasting_server, run_rank

_HERE = Path(__file__).parent
_SECONDS = 600.0
_PATIENCE = 60.0
"""Until they have evaluated and saved, which most do after some tens of steps."""


@dataclass(frozen=True, slots=True)
class Row:
    """What came of one client; `said` is the error of one that could not be run."""

    name: str
    allocated_bytes: int = 0
    reserved_bytes: int = 0
    iterations: int = 0
    answered: int = 0
    processor_seconds: float = 0.0
    ending: str = ""
    said: str = ""


def run(client: Client, server: ForkServer) -> Row:
    """Rank 0 of one client, on an H100."""
    known = gpus.by_name("H100-SXM-80GB")
    assert known is not None
    words = client.command.format(
        packages=sysconfig.get_paths()["purelib"], drivers=_HERE / "drivers", bin=Path(sys.executable).parent,
        beside=Path(sys.prefix, "beside"),
    ).split()  # fmt: skip
    line = parse(words)
    gpu = Gpu(product=known.product, arch=known.arch, total_bytes=known.total_bytes)
    order = ProgramOrder(line=line, rank=0, gpu=gpu, patience_seconds=_PATIENCE)
    before = _seconds_of_children()
    try:
        found = run_rank(order, replace(USUAL_LIMITS, seconds=_SECONDS), None if line.environment else server)
    except PlannerError as error:
        said = error.text if isinstance(error, CrashedError) else str(error)
        return Row(client.name, processor_seconds=_since(before), said=said)
    return _row(client, found, _since(before))


def _row(client: Client, found: RankRun, seconds: float) -> Row:
    peak = replay(found.trace.written_out(), Rules.from_conf(found.allocator_conf))
    return Row(
        client.name,
        allocated_bytes=peak.peak_allocated_bytes,
        reserved_bytes=peak.peak_reserved_bytes,
        iterations=found.iterations,
        answered=sum(each.count for each in found.assumptions if each.about is About.VALUE),
        processor_seconds=seconds,
        ending=found.ending,
    )


def _seconds_of_children() -> float:
    """Processor seconds of the processes that this one, and its server, have waited for (proc(5), stat)."""
    return sum(
        sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[13:15]))
        for pid in (os.getpid(), *_servers())
    ) / os.sysconf("SC_CLK_TCK")


def _servers() -> list[int]:
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return [int(each) for each in children]


def _since(before: float) -> float:
    return round(_seconds_of_children() - before, 1)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not (options.folder / "llama").exists():
        subprocess.run([sys.executable, _HERE / "materials.py", options.folder], check=True)
    os.chdir(options.folder)
    server, rows = lasting_server(), []
    for client in (each for each in CLIENTS if options.only in each.name):
        row = run(client, server)
        rows.append(row)
        print(_line(client, row), flush=True)
        if options.json:
            options.json.write_text(json.dumps([asdict(each) for each in rows], indent=1))
    failed = [each for client, each in zip(_chosen(options.only), rows, strict=True) if not _as_expected(client, each)]
    print(f"{len(rows) - len(failed)} of {len(rows)} as expected", file=sys.stderr)
    for row in failed:
        print(f"\n{row.name}:\n{row.said or row.ending}", file=sys.stderr)
    return bool(failed)


def _chosen(only: str) -> list[Client]:
    return [each for each in CLIENTS if only in each.name]


def _as_expected(client: Client, row: Row) -> bool:
    return client.refused in row.said if client.refused else not row.said


def _line(client: Client, row: Row) -> str:
    mark = " *" if client.ours else ""
    peak = f"{row.allocated_bytes / 2**20:,.1f} MiB" if not row.said else "refused" if client.refused else "failed"
    return (
        f"| {client.project} | {client.program}{mark} | {client.layout} | {peak} | {row.answered or ''} | "
        f"{row.processor_seconds} |"
    )


if __name__ == "__main__":
    sys.exit(main())
