"""Benchmarks of linkedin/Liger-Kernel: one peak of memory a row, of a kernel by Liger or by others, to 2^-11 MiB.

The table is PLANNER_TRUTH/rows-3/liger_memory.csv, out of the repository's benchmark/data/all_benchmark_data.csv: a row
ran the code of the commit that first had it. Scripts come out of a copy of the repository with the heads of
its pull requests (CHECKOUTS/liger). Interpreters need triton, transformers and pytest of their time, and those from
2026 on megatron-core.
"""

from __future__ import annotations

import csv
import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from recorded_run import TRUTH, FamilyOfTable, Figure, Launch, RecordedRun

from planner.units import MIB

ROWS = TRUTH / "rows-3" / "liger_memory.csv"
_DATA = "benchmark/data/all_benchmark_data.csv"
_SCRIPTS = "benchmark/scripts"
_PATHS = ("src", _SCRIPTS, ":(glob)test/**/*.py")
"""What a script imports: the package, its own neighbours, and references out of the tests."""
_MEASUREMENTS = Path(__file__).with_name("liger_measurements.py")
_GPUS = {
    "NVIDIA A100-SXM4-80GB": "A100-SXM-80GB",
    "NVIDIA H100 80GB HBM3": "H100-SXM-80GB",
    "NVIDIA H100 PCIe": "H100-PCIE-80GB",
    "NVIDIA GeForce RTX 4090": "RTX4090-24GB",
}
_RELEASES = (
    ("2026-05-13", "2.12"), ("2026-03-23", "2.11"), ("2026-01-21", "2.10"), ("2025-10-15", "2.9"),
    ("2025-08-06", "2.8"), ("2025-04-23", "2.7"), ("", "2.6"),
)  # fmt: skip
"""Of torch, on pypi.org; rows do not say theirs. planner knows none before 2.6: older rows run with that unless they
compile."""
_OLDEST_RELEASE = "2025-01-29"
_COMPILES = re.compile(r"torch\.compile\(|from liger_kernel\.chunked_loss")
"""In a script whose process compiles: chunked losses compile unless they are told not to. Before 2.6 what was compiled
kept weights in cycles of Python objects (on a CPU 2.5.1 does so, 2.6.0 does not), which count in later figures."""
_ARGUMENTS = {("fused_moe", "E"): ("--sweep-dim", "num_experts")}
"""With which a script measures along the axis of a row, where that is not its first, by kernel and axis."""
_STEPS = 100_000
"""More than there are calls: each program runs to its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement(RecordedRun):
    """One row."""

    commit: str = ""
    script: str = ""
    version: str
    wanted: str
    """What `liger_measurements.py` measures, as JSON."""
    arguments: tuple[str, ...] = ()
    """Of the script."""

    @property
    def process(self) -> tuple[str, ...]:
        """Equal for rows that one process measured, as far as they say."""
        return self.commit, self.script, self.version, self.torch, self.gpu, *self.arguments


@dataclass(frozen=True, slots=True)
class Program:
    """A script of a commit, and its measurements."""

    commit: str
    script: str
    version: str
    wanted: str
    arguments: tuple[str, ...]


class Liger(FamilyOfTable[Measurement, Program]):
    """All rows, in the order of the table."""

    name = "liger"
    decimals = 11
    table = ROWS

    @functools.cache  # noqa: B019
    def read_runs(self) -> list[Measurement]:
        commits = read_commits(self.repository.read_history(_DATA))
        return [self._read_run(number, row, commits.get(tuple(row.values()), [])) for number, row in self.read_rows()]

    def _read_run(self, number: int, row: Mapping[str, str], commits: Sequence[str]) -> Measurement:
        run = read_measurement(number, row)
        for commit in commits:  # figures may have been committed before their script
            if self._stops(commit):
                continue
            for name, code in self._scripts(commit):
                if measures(code, row["kernel_name"], row["kernel_provider"]):
                    obstacle = run.obstacle or find_obstacle(row["timestamp"], code)
                    return replace(run, commit=commit, script=name, obstacle=obstacle)
        return replace(run, obstacle="its script is not published")

    @functools.cache  # noqa: B019
    def _scripts(self, commit: str) -> list[tuple[str, str]]:
        return sorted(self.repository.read_beside(commit, _SCRIPTS, (".py",)).items())

    @functools.cache  # noqa: B019
    def _stops(self, commit: str) -> bool:
        """Whether the package stops in a debugger: what was measured was other code than this."""
        modules = self.repository.read_below(commit, "src/liger_kernel").values()
        return any(re.search(r"^\s*breakpoint\(\)", code, re.MULTILINE) for code in modules)

    def read_program(self, run: Measurement) -> Program:
        """All rows of one script run in one process, as they did there."""
        together = [other.wanted for other in self.read_runs() if other.process == run.process]
        return Program(run.commit, run.script, run.version, f"[{', '.join(together)}]", run.arguments)

    def write(self, run: Measurement, program: Program, folder: Path, python: str) -> Launch:  # noqa: ARG002
        own = find_folder(run, folder)
        if not own.exists():
            own.mkdir(parents=True)
            self.repository.write_tree(program.commit, own, _PATHS)
            # Which version is installed is asked of the package's metadata.
            metadata = own / "src" / f"liger_kernel-{program.version}.dist-info" / "METADATA"
            metadata.parent.mkdir()
            metadata.write_text(f"Metadata-Version: 2.1\nName: liger_kernel\nVersion: {program.version}\n")
        rows = find_peaks(run, folder).with_suffix(".rows")
        rows.write_text(program.wanted, encoding="utf-8")
        rows.with_suffix(".peaks").unlink(missing_ok=True)
        return Launch(
            folder=own,
            command=["python", str(_MEASUREMENTS), f"{_SCRIPTS}/{program.script}", str(rows), *program.arguments],
            steps=_STEPS,
            options=["--allow-writes"],
        )

    def read_written(self, run: Measurement, folder: Path, python: str) -> dict[str, Any]:  # noqa: ARG002
        peaks = find_peaks(run, folder)
        return json.loads(peaks.read_text(encoding="utf-8")) if peaks.exists() else {}

    def read_figures(self, run: Measurement, result: Mapping[str, Any]) -> list[Figure]:
        """The median that the script's own function returned, in MiB as float32; none where it raised an error."""
        peak = read_peak(run, result)
        return [Figure("allocated", run.allocated, round(peak * MIB), self.decimals)] if isinstance(peak, float) else []

    def read_error(self, run: Measurement, result: Mapping[str, Any]) -> str:
        peak = read_peak(run, result)
        return "" if isinstance(peak, float) else peak


def find_folder(run: Measurement, folder: Path) -> Path:
    """That of the code that a row ran, in the family's."""
    return folder / "programs" / f"{run.commit[:12]}-{run.version}"


def find_peaks(run: Measurement, folder: Path) -> Path:
    """What the process of a row writes."""
    return find_folder(run, folder) / ("".join((Path(run.script).stem, *run.arguments)) + ".peaks")


def read_peak(run: Measurement, result: Mapping[str, Any]) -> float | str:
    """A row's peak or error in what its process has written; empty where it has not."""
    peak: float | str = result.get("written", {}).get(run.name, "")
    return peak


def read_commits(history: str) -> dict[tuple[str, ...], list[str]]:
    """The commits that added a row, by `git log -p` of the data with lines `commit HASH`."""
    commits: dict[tuple[str, ...], list[str]] = {}
    commit = ""
    for line in history.splitlines():
        if line.startswith("commit "):
            commit = line.removeprefix("commit ")
        elif line.startswith("+") and ",memory," in line:
            commits.setdefault(tuple(next(csv.reader([line[1:]]))), []).append(commit)
    return commits


def read_measurement(number: int, row: Mapping[str, str]) -> Measurement:
    """A row as a run whose script is not looked for yet."""
    wanted = {
        "name": str(number), "kernel": row["kernel_name"], "provider": row["kernel_provider"],
        "mode": row["kernel_operation_mode"], "x_name": row["x_name"],
        "x": int(row["x_value"]) if row["x_value"].isdigit() else row["x_value"],
        "config": json.loads(row["extra_benchmark_config_str"]),
    }  # fmt: skip
    gpu = _GPUS.get(row["gpu_name"], "")
    return Measurement(
        name=str(number),
        title="{kernel} {provider} {mode} {x_name}={x}".format(**wanted),
        torch=next(version for date, version in _RELEASES if row["timestamp"] >= date),
        gpu=gpu,
        product=row["gpu_name"].removeprefix("NVIDIA "),
        ranks=1,
        allocated=(float(row["y_value_50"]),) * 2,
        obstacle="" if gpu else "its GPU is not known",
        version=row["liger_version"],
        wanted=json.dumps(wanted),
        arguments=_ARGUMENTS.get((row["kernel_name"], row["x_name"]), ()),
    )


def measures(code: str, kernel: str, provider: str) -> bool:
    """Whether a script has series of this name and by this provider."""
    has_series = re.search(rf"""kernel_name["']?\s*[=:]\s*["']{re.escape(kernel)}["']""", code)
    return has_series is not None and f'"{provider}"' in code


def find_obstacle(time: str, code: str) -> str:
    """Why a row of a script cannot be run."""
    if time < _OLDEST_RELEASE and _COMPILES.search(code):
        return "it compiled with a torch before 2.6, which planner does not know"
    return ""
