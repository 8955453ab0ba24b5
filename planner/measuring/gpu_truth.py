"""`make gpu-truth`: measures the whole matrix on one GPU, each case in a process of its own; resumable.

    python -m planner.measuring.gpu_truth --out DIR [--device cuda|cpu] [--small] [--jobs N] [--only TEXT]

Into DIR go measurements.jsonl, a line a case, and snapshots.tar.xz with the most useful histories. Cases that stand in
the file already are skipped, unless they failed. It needs torch, PyYAML and transformers, and no installation.
"""

from __future__ import annotations

import argparse
import datetime
import io
import json
import lzma
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path

from planner.measuring.matrix import Case, cases
from planner.measuring.measurement import DeviceFacts, Measurement
from planner.units import MIB

MEASUREMENTS, SNAPSHOTS = "measurements.jsonl", "snapshots.tar.xz"
_SNAPSHOT_BYTES = 6 * MIB
"""So much of them is kept, smallest first: they go into the repository."""
_CASE_SECONDS = 240


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 if every case has an answer, 1 if some failed or were not reached in time."""
    arguments = _parser().parse_args(argv)
    if arguments.case:
        return _one(arguments)
    arguments.out.mkdir(parents=True, exist_ok=True)
    wanted = [case for case in cases(small=arguments.small) if arguments.only in case.name]
    done = _done(arguments.out / MEASUREMENTS)
    left = [case for case in wanted if case.name not in done]
    print(f"{len(wanted)} cases, {len(wanted) - len(left)} of them measured before", file=sys.stderr)
    failed = _all(left, arguments)
    _pack(arguments.out)
    print(f"{len(left) - len(failed)} measured, {len(failed)} not: {', '.join(failed) or 'none'}", file=sys.stderr)
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gpu_truth", description="Measures the matrix of cases on one GPU.")
    parser.add_argument("--out", type=Path, required=True, help="the folder for what is measured")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1 or cpu (default: cuda)")
    parser.add_argument("--small", action="store_true", help="small sizes: a rehearsal")
    parser.add_argument("--jobs", type=int, default=4, help="processes at a time (default: 4)")
    parser.add_argument("--only", default="", help="cases whose name has this text")
    parser.add_argument("--seconds", type=float, default=560, help="no case is begun after so long (default: 560)")
    parser.add_argument("--case", default="", help=argparse.SUPPRESS)
    parser.add_argument("--shared", action="store_true", help=argparse.SUPPRESS)
    return parser


def _done(path: Path) -> set[str]:
    if not path.exists():
        return set()
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return {str(each["case"]) for each in lines if not each["error"]}


def _all(left: Sequence[Case], arguments: argparse.Namespace) -> list[str]:
    """Runs the cases: first those that want to be alone, then several at a time. Names of those without an answer."""
    began = time.monotonic()
    failed: list[str] = []
    for together, group in ((1, [c for c in left if c.alone]), (arguments.jobs, [c for c in left if not c.alone])):
        waiting = list(group)
        with ThreadPoolExecutor(together) as pool:
            running: dict[Future[str], Case] = {}
            while waiting or running:
                while waiting and len(running) < together and time.monotonic() - began < arguments.seconds:
                    case = waiting.pop(0)
                    running[pool.submit(_spawn, case, arguments, together > 1)] = case
                if not running:
                    break
                finished, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    case = running.pop(future)
                    trouble = future.result()
                    failed += [case.name] if trouble else []
                    print(f"{time.monotonic() - began:6.0f} s  {case.name}  {trouble or 'ok'}", file=sys.stderr)
        failed += [case.name for case in waiting]
    return failed


def _spawn(case: Case, arguments: argparse.Namespace, shared: bool) -> str:
    """One case in a process of its own; its lines are appended here. What went wrong, or nothing."""
    folder = arguments.out / "cases"
    folder.mkdir(exist_ok=True)
    answer = folder / f"{case.name}.jsonl"
    answer.unlink(missing_ok=True)
    command = [sys.executable, "-m", "planner.measuring.gpu_truth", "--out", str(arguments.out), "--case", case.name]
    command += [
        "--device",
        arguments.device,
        *(["--small"] if arguments.small else []),
        *(["--shared"] if shared else []),
    ]
    environment = {**os.environ, "KINETO_LOG_LEVEL": "99", "TOKENIZERS_PARALLELISM": "false"}
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        environment.pop(name, None)
    if case.allocator_conf:
        environment["PYTORCH_ALLOC_CONF"] = case.allocator_conf
    try:
        ended = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_CASE_SECONDS, check=False
        )
        trouble = "" if ended.returncode == 0 else _last_line(ended.stderr)
    except subprocess.TimeoutExpired:
        trouble = f"not done after {_CASE_SECONDS} s"
    lines = answer.read_text(encoding="utf-8") if answer.exists() else ""
    if trouble and not lines:
        lines = _failed(case, trouble)
    with (arguments.out / MEASUREMENTS).open("a", encoding="utf-8") as file:
        file.write(lines)
    return trouble


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:500] if lines else "ended without a word"


def _failed(case: Case, trouble: str) -> str:
    from planner.measuring import store

    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    nothing = Measurement(
        case=case.name, job={}, device=DeviceFacts(kind="none"), software={}, date=date, error=trouble
    )
    return store.line(nothing) + "\n"


def _one(arguments: argparse.Namespace) -> int:
    """The process of one case: writes its lines into a file of its own."""
    case = next(each for each in cases(small=arguments.small) if each.name == arguments.case)
    from planner.measuring import store

    store.append(arguments.out / "cases" / f"{case.name}.jsonl", _measured(case, arguments))
    return 0


def _measured(case: Case, arguments: argparse.Namespace) -> Iterator[Measurement]:
    import torch

    from planner.measuring.measure import measure

    device = torch.device(arguments.device)
    if case.job is not None:
        path = arguments.out / "snapshots" / f"{case.name}.pickle.xz" if case.snapshot else None
        path = path if device.type == "cuda" else None
        yield measure(case.job, device, case=case.name, snapshot=path, alone=not arguments.shared).measurement
        return
    yield from _operators(case, device, small=arguments.small)


def _operators(case: Case, device: object, *, small: bool) -> Iterator[Measurement]:
    import torch

    from planner.measuring.operators import Operator, phases_of_steps
    from planner.measuring.software import allocator_conf, device_facts, software

    assert isinstance(device, torch.device)
    about = Measurement(
        case=case.name,
        job={},
        device=device_facts(device),
        software=software(),
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        allocator_conf=allocator_conf(),
    )
    yield replace(about, operator={"family": [entry["name"] for entry in case.operators]})
    for entry in case.operators:
        named = replace(about, case=f"operator-{entry['name']}")
        try:
            if device.type == "cuda":
                torch.cuda.empty_cache()
                torch._C._cuda_clearCublasWorkspaces()
            operator = Operator(entry, device, small=small)
            cold = operator.cold()
            steps = operator.run()
        except Exception as error:  # an operator that this torch refuses is an answer too
            yield replace(named, error=f"{type(error).__name__}: {error}".splitlines()[0][:500])
            continue
        yield replace(named, operator={**steps, "first_run": cold}, phases=phases_of_steps(steps))


def _pack(folder: Path) -> None:
    """The histories as one archive, smallest first, until it is large enough."""
    found = sorted((folder / "snapshots").glob("*.pickle.xz"), key=lambda path: path.stat().st_size)
    if not found:
        return
    total = 0
    with tarfile.open(folder / SNAPSHOTS, "w:xz") as archive:
        for path in found:
            total += path.stat().st_size
            if total > _SNAPSHOT_BYTES:
                break
            content = lzma.decompress(path.read_bytes())
            entry = tarfile.TarInfo(path.name.removesuffix(".xz"))
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


if __name__ == "__main__":
    sys.exit(main())
