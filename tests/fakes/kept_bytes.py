"""What a program keeps during its optimizer's steps: on paper by its events, and trained on CPUs over gloo."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from planner.events import Alloc, Event, Free, Mark, Phase, Role

KEPT = ("parameter", "gradient", "optimizer_state", "bucket")
COUNTING = '''
"""Runs a program and writes for its rank what each of its optimizer's steps leaves behind, the most of it."""
import json, os, runpy, sys
from torch.optim.optimizer import register_optimizer_step_post_hook

most = {"parameter": 0, "gradient": 0, "optimizer_state": 0, "views": 0}

def count(tensors):
    local = [each._local_tensor if hasattr(each, "_local_tensor") else each for each in tensors]
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in local if each.dim()}
    return sum(storages.values())

def look(optimizer, *_):
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    states = [each for state in optimizer.state.values() for each in state.values()]
    gradients = [each.grad for each in parameters if each.grad is not None]
    views = [each for each in gradients if each._base is not None]
    own = [each for each in gradients if each._base is None]
    for name, tensors in zip(most, (parameters, own, states, views)):
        most[name] = max(most[name], count(tensors))

register_optimizer_step_post_hook(look)
_, answers, program, *_ = sys.argv
sys.argv = sys.argv[2:]
trained = runpy.run_path(program, run_name="__main__")["trained"]
account = getattr(trained.model, "_get_ddp_logging_data", dict)()
views = most.pop("views")
if not account:  # a view of a bucket is of the bucket's memory
    most["gradient"] += views
most["bucket"] = sum(int(size) for size in str(account.get("rebuilt_bucket_sizes", 0)).split(","))
with open(f"{answers}.{os.environ['RANK']}", "w") as answer:
    json.dump(most, answer)
'''


def most_kept(events: Iterable[Event]) -> dict[str, int]:
    """The most bytes of each category that there are during an optimizer's step."""
    most = Counter[str]()
    sizes: dict[int, int] = {}
    categories: dict[int, str] = {}
    in_step = False
    for event in events:
        match event:
            case Alloc():
                sizes[event.block] = event.requested_bytes
            case Role():
                categories[event.block] = event.category.value
            case Free():
                categories.pop(event.block, None)
            case Mark():
                in_step = event.phase is Phase.OPTIMIZER_STEP
        if in_step:
            now = Counter[str]()
            for block, category in categories.items():
                now[category] += sizes[block]
            most |= now
    return {name: most[name] for name in KEPT}


def trained(program: Path, folder: Path, *options: str) -> list[dict[str, Any]]:
    """What each of two ranks of a program keeps, trained on this CPU over gloo."""
    counting = folder / "counting.py"
    counting.write_text(COUNTING)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    words = [*torchrun, str(counting), str(folder / "kept"), str(program), *options]
    subprocess.run(words, check=True, capture_output=True)
    return [json.loads((folder / f"kept.{rank}").read_text()) for rank in range(2)]
