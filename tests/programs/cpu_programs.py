"""Programs that run on a CPU as they do on a GPU: what each really took there, measured once and kept.

    PYTHONPATH=. python tests/programs/cpu_programs.py

measures all of them again (`make cpu-programs`). Each rank is a process of its own, over gloo where there are several;
torch's profiler sees every allocation from the program's first line to its end. As in `tests/data/cpu_runs` oneDNN is
off, and NNPACK, whose kernels are their own; the copies that gloo makes for itself are left out: no GPU's collective
makes them.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import runpy
import shlex
import socket
import subprocess
import sys
from pathlib import Path

RECORDED = Path(__file__).parents[1] / "data" / "cpu_programs.json"
_PROGRAMS = Path(__file__).parents[1] / "running/programs"
_PACKAGES = ("torch", "transformers", "accelerate")
_FLAGS = "--output_dir out --max_steps 4 --per_device_train_batch_size 8 --report_to none --save_strategy no"
COMMANDS = {
    "transformers Trainer": "python {programs}/fine_tune_by_flags.py --config {programs}/small_llama.json " + _FLAGS,
    "accelerate": "python {programs}/accelerated.py",
    "convolutions, evaluation": "python {programs}/everywhere.py pictures",
    "DDP": "torchrun --nproc-per-node 2 {programs}/everywhere.py ddp",
    "FSDP2": "torchrun --nproc-per-node 2 {programs}/everywhere.py fsdp",
}
"""What differs between the machines is in no command: a program looks for a GPU itself."""


def command(name: str) -> str:
    """With its path."""
    return COMMANDS[name].format(programs=_PROGRAMS)


def software() -> dict[str, str]:
    """Without which build of torch: on a CPU they do the same."""
    return {name: importlib.metadata.version(name).partition("+")[0] for name in _PACKAGES}


def read() -> dict[str, int] | None:
    """The peak of rank 0 of each program; None if other software than this was measured."""
    found = json.loads(RECORDED.read_text(encoding="utf-8"))
    return found["peak_bytes"] if found["software"] == software() else None


def measure(name: str) -> int:
    """The peak in bytes of rank 0, the lowest of five runs: frees on gloo's thread are missed now and then, and a free
    that is missed only raises it."""
    return min(_run(name) for _ in range(5))


def _run(name: str) -> int:
    """All ranks of a program; what rank 0 says."""
    words = shlex.split(command(name))
    ranks = int(words[words.index("--nproc-per-node") + 1]) if words[0] == "torchrun" else 1
    words = words[next(index for index, word in enumerate(words) if word.endswith(".py")) :]
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    started = []
    for rank in range(ranks):
        world = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
        variables = {**world, "MASTER_ADDR": "localhost", "MASTER_PORT": port} if ranks > 1 else {}
        environment = {**os.environ, **variables, "CUDA_VISIBLE_DEVICES": ""}
        child = [sys.executable, __file__, *words]
        started.append(subprocess.Popen(child, stdout=subprocess.PIPE, text=True, env=environment))
    said = [each.communicate()[0] for each in started]
    if any(each.returncode for each in started):
        raise RuntimeError(f"{name} ended with {[each.returncode for each in started]}")
    return int(said[0].splitlines()[-1])


def _record(words: list[str]) -> int:
    """Runs the program in this process, as `python` would; the most that it had of the CPU's allocator, in bytes."""
    import torch

    from planner.events import Alloc, Free
    from planner.truth.measuring.recorders import COLLECTIVES, HostRecorder

    torch.backends.mkldnn.enabled = False
    torch.backends.nnpack.set_flags(False)

    recorder = HostRecorder()
    sys.argv = words
    sys.path.insert(0, str(Path(words[0]).parent))
    with recorder.profile():
        runpy.run_path(words[0], run_name="__main__")
    held = peak = 0
    sizes: dict[int, int] = {}
    for event in recorder.build_recording().events:
        if isinstance(event, Alloc) and not (event.origin and event.origin.op.startswith(COLLECTIVES)):
            sizes[event.block] = event.requested_bytes
            held += event.requested_bytes
            peak = max(peak, held)
        elif isinstance(event, Free):
            held -= sizes.pop(event.block, 0)
    return peak


def main() -> int:
    if len(sys.argv) > 1:
        print(_record(sys.argv[1:]))
        return 0
    found = {name: measure(name) for name in COMMANDS}
    document = {"measured": datetime.date.today().isoformat(), "software": software(), "peak_bytes": found}
    RECORDED.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(RECORDED.read_text(encoding="utf-8"), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
