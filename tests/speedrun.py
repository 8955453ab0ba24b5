"""`make speedrun`: scripts that others ran compiled on 8 H100, unedited on paper, beside the peaks that they printed.

The scripts and their peaks are PLANNER_TRUTH/programs/speedrun. Each runs in a process of its own under `planner run`;
what it came to is kept (`results/` in the folder), so that a run that was ended goes on where it was: `--again` also
runs what ran before. With `--pythons` each runs with the torch that it ran with. Tens of processor seconds a script,
hence outside CI.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import resource
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.runtime.user_cache import user_cache
from planner.units import MIB

_ROOT = Path(__file__).parents[1]
TRUTH = Path(os.environ.get("PLANNER_TRUTH", _ROOT.parent / "shared" / "truth")) / "programs" / "speedrun"
_SECOND_FILE = f"{'-' * 40}\n# triton_kernels.py\n{'-' * 40}\n"
"""Where a script's log shows the module that it imports, behind the script itself."""
_KIND_OF_RUN = re.compile(r"""run_id.*f['"]([\w-]+)/\{uuid""")
"""A folder of logs that was there where a script ran."""
_TRAIN_TOKENS, _TRAIN_FILES, _VALIDATION_TOKENS = 20_000_000, 8, 48_000_000
"""Scripts of 2026 evaluate a batch of 2 Mi tokens before each of up to 16 steps that they warm up with."""
_HEADER_NUMBERS = 256
_SEPARATOR, _DOCUMENT_TOKENS = 50256, 1000


@dataclass(frozen=True)
class Recorded:
    """A script and what its logs say: lowest and highest peak of rank 0, in whole MiB; (0, 0) was not printed."""

    file: str
    allocated: tuple[int, int]
    reserved: tuple[int, int]
    torch: str = ""
    """As it was (`2.7.0.dev20250110+cu126`)."""


def read_pythons(text: str) -> dict[str, str]:
    """Interpreters by the torch that they have: `2.7=/a/bin/python,2.9=/b/bin/python`."""
    pairs = [each.partition("=") for each in filter(None, text.split(","))]
    if not all(re.fullmatch(r"\d+\.\d+", version) and python for version, _, python in pairs):
        raise argparse.ArgumentTypeError(f"{text} is not as 2.7=/a/bin/python,2.9=/b/bin/python")
    return {version: python for version, _, python in pairs}


def minor_version(torch: str) -> str:
    """`2.7` of `2.7.0.dev20250110+cu126`: of a nightly the release after it."""
    return ".".join(torch.split(".")[:2])


def start_with(python: str, path: str) -> dict[str, str]:
    """The environment in which this planner runs by an interpreter, whose own torchrun and python come first."""
    executables = os.pathsep.join((str(Path(python).parent), os.environ.get("PATH", "")))
    return {**os.environ, "PATH": executables, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PLANNER_PYTHON": "here"}


def read_recorded() -> list[Recorded]:
    """All scripts of the manifest, by their dates."""
    rows = json.loads((TRUTH / "manifest.json").read_text(encoding="utf-8"))["rows"]
    found = [
        Recorded(row["file"], tuple(row["allocated_range"]), tuple(row["reserved_range"]), row["torch"]) for row in rows
    ]
    return sorted(found, key=lambda each: each.file)


def error_percent(peak_bytes: int, recorded: tuple[int, int]) -> float | None:
    """How far from the nearer end of a range of whole MiB, in percent; 0 inside, None where nothing was printed."""
    low, high = recorded
    if not high:
        return None
    peak = peak_bytes // MIB  # as the scripts print it
    if peak < low:
        return (peak - low) / low * 100
    return (max(peak, high) - high) / high * 100


def write_tokens(path: Path, tokens: int, separator: int = _SEPARATOR) -> None:
    """A file of documents as scripts read it: 256 int32 (a number of the format, its version, how many), then uint16;
    what separates documents is the highest token."""
    import numpy as np

    header = np.zeros(_HEADER_NUMBERS, dtype=np.int32)
    header[:3] = 20240520, 1, tokens
    drawn = np.random.default_rng(1).integers(0, separator, tokens, dtype=np.uint16)
    drawn[::_DOCUMENT_TOKENS] = separator
    path.write_bytes(header.tobytes() + drawn.tobytes())


def write_data(folder: Path) -> None:
    """The data that the scripts of this record train and evaluate with."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, tokens in (("fineweb_train_000001.bin", _TRAIN_TOKENS), ("fineweb_val_000000.bin", _VALIDATION_TOKENS)):
        path = folder / name
        if path.exists() and path.stat().st_size == 4 * _HEADER_NUMBERS + 2 * tokens:
            continue
        write_tokens(path, tokens)
    for number in range(2, _TRAIN_FILES + 1):
        again = folder / f"fineweb_train_{number:06}.bin"
        if not again.exists():
            again.hardlink_to(folder / "fineweb_train_000001.bin")


def write_program(recorded: Recorded, folder: Path) -> Path:
    """The script as it ran, alone in a folder with the module that its log shows behind it, if any."""
    text, found, module = (TRUTH / recorded.file).read_text(encoding="utf-8").partition(_SECOND_FILE)
    own = folder / Path(recorded.file).stem
    own.mkdir(parents=True, exist_ok=True)
    (own / recorded.file).write_text(text, encoding="utf-8")
    if found:
        (own / "triton_kernels.py").write_text(module, encoding="utf-8")
    return own / recorded.file


def run(recorded: Recorded, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """One script under `planner run`: its answer, or its error; with the seconds of a processor."""
    write_data(folder / "data" / "fineweb10B")
    program = write_program(recorded, folder / "programs")
    work = folder / "work"
    for name in ("data", "logs"):
        (folder / name).mkdir(exist_ok=True)
        if not (work / name).exists():  # some scripts look beside the folder that they start in
            work.mkdir(exist_ok=True)
            (work / name).symlink_to(folder / name)
    for kind in _KIND_OF_RUN.findall(program.read_text(encoding="utf-8")):
        (folder / "logs" / kind).mkdir(exist_ok=True)
    path = os.pathsep.join(filter(None, (str(_ROOT), options.triton, os.environ.get("PYTHONPATH"))))
    version = minor_version(recorded.torch)
    python = _python_of(recorded, options)
    command = [
        python or sys.executable, "-m", "planner", "run", "--format", "json", "--ranks", "0",
        "--steps", str(options.steps), *(() if python else ("--torch", version)),
        "--seconds", str(options.seconds), "--", "torchrun", "--standalone", "--nproc_per_node=8", str(program),
    ]  # fmt: skip
    result = run_planner(command, work, start_with(python or sys.executable, path))
    return {"key": _key(recorded, options), **result}


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


def _python_of(recorded: Recorded, options: argparse.Namespace) -> str:
    """The interpreter that has the torch of a script; empty: all run with that of here."""
    if not options.pythons:
        return ""
    version = minor_version(recorded.torch)
    if version not in options.pythons:
        raise SystemExit(f"{recorded.file} ran with torch {version}: --pythons has {', '.join(options.pythons)}")
    python: str = options.pythons[version]
    return python


def _key(recorded: Recorded, options: argparse.Namespace) -> str:
    digest = hashlib.sha256((TRUTH / recorded.file).read_bytes()).hexdigest()[:16]
    python = _python_of(recorded, options)
    return f"{digest} steps={options.steps}" + (f" python={python}" if python else "")


def _results(chosen: list[Recorded], folder: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for recorded in chosen:
        kept = folder / "results" / f"{Path(recorded.file).stem}.json"
        result = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
        is_done = "answer" in result and result["key"] == _key(recorded, options)
        if not options.shown and (options.again or not is_done):
            print(f"running {recorded.file}", file=sys.stderr, flush=True)
            result = run(recorded, folder, options)
            kept.parent.mkdir(exist_ok=True)
            kept.write_text(json.dumps(result), encoding="utf-8")
        yield result


def peaks_of(answer: dict[str, Any]) -> tuple[int, int]:
    """Allocated and reserved bytes of rank 0 as the script would print them: since it last reset the counters."""
    return answer["counted"]["max_allocated_bytes"], answer["counted"]["max_reserved_bytes"]


def error_of(result: dict[str, Any]) -> str:
    """The line that says what was wrong."""
    lines = [line for line in result.get("stderr", "").splitlines() if line.strip()]
    said = [line.partition(": ")[2] for line in lines if line.partition(": ")[0].endswith(".py")]
    return said[-1] if said else (lines[-1] if lines else "not run")


def _range(pair: tuple[int, int]) -> str:
    return "-" if not pair[1] else str(pair[0]) if pair[0] == pair[1] else f"{pair[0]} to {pair[1]}"


def _line(recorded: Recorded, result: dict[str, Any]) -> str:
    name, seconds = Path(recorded.file).stem, result.get("seconds", "")
    cells = [name, _range(recorded.allocated), _range(recorded.reserved)]
    if "answer" not in result:
        return " | ".join((*cells, "", "", "", "", error_of(result)[:160], str(seconds)))
    allocated, reserved = peaks_of(result["answer"])
    for peak, pair in ((allocated, recorded.allocated), (reserved, recorded.reserved)):
        error = error_percent(peak, pair)
        cells += [f"{peak / MIB:.1f}", "" if error is None else f"{error:+.3f} %"]
    seen = result["answer"]["seen"]
    assumed = f"{len(result['answer']['assumptions'])} assumptions; {seen.get('eval', 0)} evaluations seen"
    return " | ".join((*cells, assumed, str(seconds)))


def summarise(errors: Mapping[str, Sequence[float]], ending: str, failed: int) -> int:
    """Prints the medians and worst of errors in percent, and how it ended; 1 if some failed."""
    for name, found in errors.items():
        if found:
            print(f"{name}: median {statistics.median(found):.3f} %, worst {max(found):.3f} % of {len(found)}")
    print(ending)
    return 1 if failed else 0


def main() -> int:
    """Prints one row a script, and the medians; 0 if every script that was asked for ran."""
    parser = argparse.ArgumentParser(description="Recorded training scripts on paper, beside the peaks they printed.")
    parser.add_argument("names", nargs="*", help="parts of scripts' names (default: all)")
    parser.add_argument("--folder", type=Path, default=user_cache() / "speedrun", help="data, logs and results")
    parser.add_argument("--steps", type=int, default=3, help="iterations; 0: until it is steady (default: 3)")
    parser.add_argument("--seconds", type=float, default=1800, help="how long one may take (default: 1800)")
    parser.add_argument(
        "--triton", default=os.environ.get("PLANNER_TRITON", ""), help="a folder with the package triton"
    )
    parser.add_argument(
        "--pythons", type=read_pythons, default="", help="an interpreter for each torch: 2.7=/a/bin/python,2.9=…"
    )
    parser.add_argument("--again", action="store_true", help="run what was run before, too")
    parser.add_argument("--shown", action="store_true", help="run nothing, show what there is")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    chosen = [each for each in read_recorded() if not options.names or any(name in each.file for name in options.names)]
    print(
        "script | recorded allocated | reserved | allocated (MiB) | error | reserved (MiB) | error | rests on | seconds"
    )
    errors: dict[str, list[float]] = {"allocated": [], "reserved": []}
    failed = 0
    for recorded, result in zip(chosen, _results(chosen, options.folder, options), strict=True):
        print(_line(recorded, result), flush=True)
        failed += "answer" not in result
        if "answer" in result:
            pairs = (recorded.allocated, recorded.reserved)
            for name, peak, pair in zip(errors, peaks_of(result["answer"]), pairs, strict=True):
                error = error_percent(peak, pair)
                errors[name] += [] if error is None else [abs(error)]
    return summarise(errors, f"{failed} of {len(chosen)} scripts did not run", failed)


if __name__ == "__main__":
    raise SystemExit(main())
