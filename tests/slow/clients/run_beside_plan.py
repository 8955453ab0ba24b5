"""Runs programs for which planner can make a spec too, and prints docs/results/programs.md's table of run beside plan.

    PYTHONPATH=. python tests/slow/clients/run_beside_plan.py FOLDER [--only TEXT]

FOLDER is that of `materials.py`. No spec is written by hand: the importers read it out of the launch line and the
program's own configuration, or the run saves it (`--save-spec`).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from planner.allocator.replay import replay
from planner.allocator.rules import Rules
from planner.events import Event
from planner.job.importers.job_import import ImportSources, import_job
from planner.job.launching.line import parse
from planner.job.loading import load_yaml
from planner.job.named_gpus import look_up
from planner.job.schema import Job
from planner.job.shorthand import Shorthand
from planner.planning.job_plan import plan_job
from planner.planning.program import inputs_of
from planner.planning.program_spec import spec_text
from planner.runtime.fork_server import ForkServer
from planner.tracing.program.rank_orders import Gpu, ProgramOrder, RankRun
from planner.tracing.program.rank_process import USUAL_LIMITS, lasting_server, run_rank

GPU = "H100-SXM-80GB"
ITERATIONS = 3
Peaks = tuple[int, int, int]
"""Requested, allocated, reserved bytes."""
_HERE = Path(__file__).parent
_PROGRAMS = _HERE.parents[1] / "tracing/running/programs"
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 32000, "hidden_size": 1024,
    "intermediate_size": 2816, "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 8,
    "max_position_embeddings": 2048, "dtype": "float32",
}  # fmt: skip
_ZERO = {
    "zero_optimization": {"stage": 2}, "bf16": {"enabled": True}, "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "train_batch_size": "auto",
}  # fmt: skip
_TITAN = """
[model]
name = "llama3"
flavor = "debugmodel"
hf_assets_path = "tests/assets/tokenizer"
[training]
dataset = "c4_test"
local_batch_size = 8
seq_len = 2048
steps = 10
[activation_checkpoint]
mode = "none"
[parallelism]
{parallelism}
"""
_TORCHRUN = "torchrun --nproc-per-node 4"
_EXPANDABLE = "PYTORCH_ALLOC_CONF=expandable_segments:True"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A program, and how its spec comes about."""

    program: str
    layout: str
    line: str
    spec: Callable[[str, RankRun], Job]
    """Of the launch line, and of the run."""

    @property
    def name(self) -> str:
        return f"{self.program}, {self.layout}"


def _of_trainer(line: str, _run: RankRun) -> Job:
    config = line.partition("--config ")[2].split()[0]
    length = int(line.partition("--sequence_length ")[2].split()[0])
    sources = ImportSources(torchrun=line, model=Path(config), gpu=GPU, sequence_length=length)
    return import_job(sources, Path()).job


def _of_torchtitan(line: str, _run: RankRun) -> Job:
    config = Path(line.split()[-1])
    sources = ImportSources(torchtitan=config, words=Shorthand(gpus=f"{parse(line.split()).world_size}x{GPU}"))
    return import_job(sources, Path()).job


def _saved(line: str, run: RankRun) -> Job:
    words = line.split()
    return load_yaml(spec_text(run, inputs_of(parse(words), words, look_up(GPU))))


def _trainer(layout: str, start: str, more: str = "") -> Pair:
    flags = "--output_dir out --per_device_train_batch_size 4 --bf16 true --report_to none --save_strategy no"
    return Pair(
        program="transformers Trainer",
        layout=layout,
        line=f"{start} {_PROGRAMS}/fine_tune_by_flags.py --config pair/llama.json --sequence_length 1024 "
        f"--max_steps 100 {flags} {more}",
        spec=_of_trainer,
    )


def _torchtitan(layout: str, ranks: int, *, conf: str = _EXPANDABLE, **parallelism: int) -> Pair:
    """With the allocator settings of its own `run_train.sh`, unless it says otherwise."""
    name = f"pair/titan-{ranks}{''.join(f'-{key}-{value}' for key, value in parallelism.items())}.toml"
    text = "\n".join(f"{key} = {value}" for key, value in parallelism.items())
    Path(name).write_text(_TITAN.format(parallelism=text))
    start = f"env PYTHONPATH={Path(sys.prefix, 'beside/triton')} {conf}"
    return Pair(
        program="torchtitan, llama3 debugmodel", layout=layout, spec=_of_torchtitan,
        line=f"{start} torchrun --nproc-per-node {ranks} -m torchtitan.train --job.config_file {name}",
    )  # fmt: skip


def pairs() -> tuple[Pair, ...]:
    """All of them; their configurations are written into the folder `pair`."""
    Path("pair").mkdir(exist_ok=True)
    for name, content in (("llama", LLAMA), ("fsdp", {"version": 2}), ("zero", _ZERO)):
        Path("pair", f"{name}.json").write_text(json.dumps(content))
    sharded = "--fsdp full_shard --fsdp_config pair/fsdp.json"
    more = "--gradient_checkpointing true --gradient_accumulation_steps 2"
    expandable = f"env {_EXPANDABLE} {_TORCHRUN}"
    return (
        _trainer("one", "python"),
        _trainer("one, recomputed, accumulated", "python", more),
        _trainer("DDP 4", _TORCHRUN),
        _trainer("FSDP2 4", _TORCHRUN, sharded),
        _trainer("FSDP2 4, expandable segments", expandable, sharded),
        _trainer("FSDP2 4, recomputed, accumulated", _TORCHRUN, f"{sharded} {more}"),
        _trainer("ZeRO-2 4", _TORCHRUN, "--deepspeed pair/zero.json"),
        _torchtitan("one", 1, data_parallel_shard_degree=1),
        _torchtitan("DDP 4", 4, data_parallel_replicate_degree=4, data_parallel_shard_degree=1),
        _torchtitan("FSDP2 8", 8),
        _torchtitan("FSDP2 8, segments as they are by default", 8, conf=""),
        _torchtitan("FSDP2 4, TP 2", 8, tensor_parallel_degree=2),
        _torchtitan("HSDP 2x4", 8, data_parallel_replicate_degree=2),
        Pair(program="loop of its own", layout="DDP 4", line=f"{_TORCHRUN} {_PROGRAMS}/in_a_world.py ddp", spec=_saved),
        Pair(
            program="loop of its own", layout="FSDP2 4", line=f"{_TORCHRUN} {_PROGRAMS}/in_a_world.py fsdp", spec=_saved
        ),
    )


def ran(pair: Pair, server: ForkServer) -> RankRun:
    """Rank 0 of its program."""
    known, line = look_up(GPU), parse(pair.line.split())
    gpu = Gpu(product=known.product, arch=known.arch, total_bytes=known.total_bytes)
    order = ProgramOrder(line=line, rank=0, gpu=gpu, steps=ITERATIONS)
    return run_rank(order, replace(USUAL_LIMITS, seconds=600), None if line.environment else server)


def spec_of(pair: Pair, run: RankRun) -> Job:
    """Its spec, of as many iterations and with the allocator settings that the program was seen to have."""
    job = pair.spec(pair.line, run)
    return replace(
        job, train=replace(job.train, iterations=ITERATIONS), allocator=replace(job.allocator, conf=run.allocator_conf)
    )


def planned(job: Job) -> Peaks:
    """Rank 0 of a spec; in a fresh process."""
    from planner import paper  # noqa: F401 - before torch
    from planner.tracing.program.packages import libraries

    with libraries.declared():  # transformers imports torchvision, whose wheel wants another torch than ours
        trace = plan_job(job).traces[0].trace
    return peaks_of(trace.written_out(), job.allocator.conf)


def peaks_of(events: Sequence[Event], conf: str) -> Peaks:
    found = replay(events, Rules.from_conf(conf))
    return max(found.requested_bytes), found.peak_allocated_bytes, found.peak_reserved_bytes


def line_of(pair: Pair, run: Peaks, plan: Peaks) -> str:
    """A row of the table."""
    cells = (f"{there / 2**20:,.1f} | {(here / there - 1) * 100:+.3f} %" for there, here in zip(run, plan, strict=True))
    return f"| {pair.program} | {pair.layout} | {' | '.join(cells)} |"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    if not (options.folder / "llama").exists():
        subprocess.run([sys.executable, _HERE / "materials.py", options.folder], check=True)
    os.chdir(options.folder)
    server = lasting_server()
    fresh = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1)
    for pair in (each for each in pairs() if options.only in each.name):
        run = ran(pair, server)
        plan = fresh.submit(planned, spec_of(pair, run)).result()
        print(line_of(pair, peaks_of(run.trace.written_out(), run.allocator_conf), plan), flush=True)
    fresh.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
