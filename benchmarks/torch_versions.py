"""`make torch-versions`: eighteen examples planned with each torch at hand; the peaks that versions differ by.

    python benchmarks/torch_versions.py PYTHON... [--examples NAME...]

Each PYTHON is an interpreter with a torch of its own, besides transformers and peft. What its torch was
found to take replaces what planner/upstream/version_peaks.json had of that version (docs/results/torch-versions.md).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXAMPLES = (
    "bert-large-mlm",
    "gpt2-xl",
    "gpt2-xl-zero-1",
    "llama-3-8b-activation-offload",
    "llama-3-8b-cp2",
    "llama-3-8b-fsdp2",
    "llama-3-8b-fsdp2-compiled",
    "llama-3-8b-fsdp2-offload",
    "llama-3-8b-hsdp",
    "llama-3-8b-lora",
    "llama-3-8b-lora-compiled",
    "llama-3-8b-pp4",
    "llama-3-8b-tp8",
    "nemotron-4b-ddp-bucket-view",
    "own-model",
    "qwen-3-tp4",
    "qwen3-30b-a3b-ep",
    "vit-h-14",
)


def main(words: list[str]) -> int:
    """0 if every example was planned."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pythons", nargs="*", default=[sys.executable], metavar="PYTHON")
    parser.add_argument("--examples", nargs="+", default=EXAMPLES, metavar="NAME")
    given = parser.parse_args(words)
    # What an interpreter lacks of planner is found here; traces that were kept are not taken for planned ones.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PLANNER_CACHE": "none"}
    failed = 0
    for python in given.pythons:
        command = [python, __file__, "--examples", *given.examples]
        with subprocess.Popen(
            command, env={**environment, "PLANNED_HERE": "yes"}, stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None
            for line in child.stdout:
                print(line, end="", flush=True)
                version, example, found = json.loads(line)
                _write(version, example, found)
                failed += isinstance(found, str)
        failed += bool(child.returncode)
    return 1 if failed else 0


def plan_here(examples: list[str]) -> int:
    """One line of JSON for each example: the version of this process's torch, the name, its peaks or why not."""
    from planner.api import child
    from planner.api.given import read_job
    from planner.errors import PlannerError
    from planner.truth.calibration.interval import Calibration
    from planner.upstream import torch_releases

    version = "{}.{}".format(*torch_releases.installed())
    for example in examples:
        found: list[int] | str
        try:
            job = read_job(ROOT / "examples" / f"{example}.yaml").job
            peaks = [
                each.peak
                for each in child.call("planner.planning.plan:plan_job", job, Calibration.none()).plan.rank_classes
            ]
            found = [max(each.allocated_bytes for each in peaks), max(each.reserved_bytes for each in peaks)]
        except (PlannerError, RuntimeError) as error:
            found = str(error).splitlines()[0]
        print(json.dumps([version, example, found]), flush=True)
    return 0


def _write(version: str, example: str, found: list[int] | str) -> None:
    from planner.upstream.torch_releases import PEAKS, read_peaks, sort_versions

    known = {each: dict(peaks) for each, peaks in read_peaks().items()}
    known.setdefault(version, {})[example] = found
    versions = ",\n".join(
        f' "{each}": {{\n'
        + ",\n".join(f'  "{name}": {json.dumps(known[each][name])}' for name in sorted(known[each]))
        + "\n }"
        for each in sort_versions(known)
    )
    PEAKS.write_text("{\n" + versions + "\n}\n")


if __name__ == "__main__":
    sys.exit(plan_here(sys.argv[2:]) if os.environ.pop("PLANNED_HERE", "") else main(sys.argv[1:]))
