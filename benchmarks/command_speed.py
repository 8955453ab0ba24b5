"""Seconds that a person waits for `planner plan`, from a cold process.

Run: python benchmarks/command_speed.py {new,again,hopeless,compiled,compiled-again,eager} [--accumulation N]

`new` plans Llama-3-8B by FSDP2 without the cache; `again` plans it with a cache that has its trace; `hopeless` is the
same model under DDP with micro-batches of 16 sequences, which no advice makes fit. `compiled` plans it with its blocks
and its loss compiled, without a cache; `compiled-again` with what Inductor compiled and no trace; `eager` plans that
job without torch.compile.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

EXAMPLES = Path(__file__).parent.parent / "examples"


def sharded(folder: Path, *, accumulation: int = 1) -> Path:
    """Llama-3-8B as examples/llama-3-8b-fsdp2.yaml has it, with so many micro-batches in a step."""
    return _write(folder, "llama-3-8b-fsdp2.yaml", train={"gradient_accumulation_steps": accumulation})


def replicated(folder: Path) -> Path:
    """The same model under DDP on GPUs that are too small by far."""
    without = {"recompute": "none", "micro_batch_size": 16}
    return _write(
        folder, "llama-3-8b-sft.yaml", train=without,
        parallel={"dp_replicate": 8}, cluster={"gpu": "H100-SXM-80GB"},
    )  # fmt: skip


def compiled(folder: Path, *, eager: bool = False) -> Path:
    """examples/llama-3-8b-fsdp2-compiled.yaml, or the same without torch.compile."""
    return _write(folder, "llama-3-8b-fsdp2-compiled.yaml", train={"compile": False} if eager else {})


def _forget_traces(cache: Path) -> None:
    for each in cache.glob("*.trace"):
        each.unlink()


def measure(job: Path, cache: Path | None) -> dict[str, float]:
    """Clock and processor seconds of one command."""
    command = [sys.executable, "-m", "planner", "plan", str(job), *([] if cache else ["--no-cache"])]
    environment = {**os.environ, "PLANNER_CACHE": str(cache or "none")}
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=False)
    if ended.returncode not in (0, 3):
        raise SystemExit(f"{' '.join(command)} ended with {ended.returncode}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_seconds": time.perf_counter() - began, "processor_seconds": processor}


def _write(folder: Path, example: str, **changes: dict[str, Any]) -> Path:
    spec = yaml.safe_load((EXAMPLES / example).read_text(encoding="utf-8"))
    for section, values in changes.items():
        spec[section] = {**spec.get(section, {}), **values}
    if "hf_config" in spec["model"]:
        spec["model"]["hf_config"] = str(EXAMPLES / spec["model"]["hf_config"])
    path = folder / example
    path.write_text(yaml.safe_dump(spec), encoding="utf-8")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=("new", "again", "hopeless", "compiled", "compiled-again", "eager"))
    parser.add_argument("--accumulation", type=int, default=1)
    said = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if said.case == "hopeless":
            job = replicated(folder)
        elif said.case in ("new", "again"):
            job = sharded(folder, accumulation=said.accumulation)
        else:
            job = compiled(folder, eager=said.case == "eager")
        cache = folder / "cache" if said.case.endswith("again") else None
        if cache is not None:
            measure(job, cache)
        if cache is not None and said.case == "compiled-again":
            _forget_traces(cache)
        print(json.dumps(measure(job, cache)))


if __name__ == "__main__":
    main()
