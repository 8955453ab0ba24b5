"""torchtitan's own Trainer on the paper GPU, beside a job spec of ours for the same run: peaks of both.

    pip install --no-deps --target FOLDER torchtitan==0.2.2 datasets multiprocess dill pyarrow pandas xxhash \
        python-dateutil six pytz fsspec tyro docstring_parser shtab typeguard tomli torchdata tensorboard \
        absl-py protobuf markdown werkzeug
    python tests/torchtitan_on_paper.py FOLDER

Its Trainer, model, wrapping, optimizer and loop are as released. Put in their place are the data (no tokenizer, token
ids all 0), the Triton kernels of its mixtures (there is no Triton without a GPU), and the line of the log that reads
the loss. Two steps each, one process for each case: torch keeps DTensor's decisions.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import planner.paper as paper  # before torch
from planner.allocator.conf import read_conf
from planner.allocator.replay import replay
from planner.allocator.rules import Rules
from planner.job.schema import (
    Allocator,
    Cluster,
    Decoder,
    DpShard,
    Gpu,
    Job,
    Model,
    Optimizer,
    Parallel,
    Recompute,
    Software,
    Tp,
    Train,
)
from planner.planning.job_plan import plan_job

CONF, ARCH, CUDA, STEPS = "expandable_segments:True", "sm_90", "12.8", 2
SHAPES = {
    "debugmodel": Decoder(layers=6, hidden=256, heads=16, kv_heads=16, ffn=768, vocab=2048),
    "8B": Decoder(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256),
}


@dataclass(frozen=True)
class Case:
    """One rank of one run: the flavor of torchtitan's Llama 3, and its layout."""

    flavor: str
    tokens: int
    micro_batch: int = 1
    dp: int = 8
    tp: int = 1
    recompute: str = "none"

    def __str__(self) -> str:
        split = f", TP {self.tp}" if self.tp > 1 else ""
        return f"{self.flavor}, {self.micro_batch} x {self.tokens}, FSDP2 {self.dp}{split}, recompute {self.recompute}"


CASES = (
    Case("debugmodel", 2048, micro_batch=8),
    Case("debugmodel", 2048, micro_batch=8, dp=4, tp=2),
    Case("8B", 8192),
    Case("8B", 8192, recompute="full"),
    Case("8B", 4096, dp=2, tp=4),
    Case("8B", 8192, dp=8, tp=8, recompute="full"),
)


def main(arguments: Sequence[str]) -> int:
    folder, *rest = arguments
    if rest:
        print(json.dumps(theirs(CASES[int(rest[0])], folder)))
        return 0
    print(f"{'':60}{'allocated':>32}{'reserved':>32}")
    for number, case in enumerate(CASES):
        command = [sys.executable, __file__, folder, str(number)]
        said = subprocess.run(command, capture_output=True, text=True, check=False)
        if said.returncode:
            print(f"{case!s:60}  stops: {said.stderr.strip().splitlines()[-1][:120]}")
            continue
        there, here = json.loads(said.stdout.splitlines()[-1]), ours(case)
        figures = "".join(f"{a:>16,}{b:>16,}" for a, b in zip(there, here, strict=True))
        print(f"{case!s:60}{figures}")
    return 0


def ours(case: Case) -> list[int]:
    """Peaks of allocated and reserved bytes by a spec."""
    job = Job(
        model=Model(decoder=SHAPES[case.flavor]),
        train=Train(
            micro_batch_size=case.micro_batch,
            sequence_length=case.tokens,
            precision="fsdp_mixed",
            recompute=Recompute(mode=case.recompute),
            gradient_clipping=1.0,
            optimizer=Optimizer(name="AdamW", arguments={"fused": True}),
            iterations=STEPS,
        ),
        parallel=Parallel(
            dp_shard=DpShard(degree=case.dp, keep_last=True, groups=("embedding", "norm head")),
            tp=Tp(degree=case.tp, sequence_parallel=case.tp > 1, loss_parallel=case.tp > 1),
        ),
        cluster=Cluster(nodes=-(-case.dp * case.tp // 8), gpus_per_node=8, gpu=Gpu(total_bytes=200 * 2**30, arch=ARCH)),
        software=Software(cuda=CUDA),
        allocator=Allocator(conf=CONF),
    )
    peak = plan_job(job).plan.rank_classes[0].peak
    return [peak.allocated_bytes, peak.reserved_bytes]


def theirs(case: Case, folder: str) -> list[int]:
    """The same of rank 0 of torchtitan's Trainer."""
    from planner.runtime.garbage_collection import pause_collection
    from planner.tracing.spec import host_work
    from planner.training import absent_peers

    sys.path.append(folder)
    world = case.dp * case.tp
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE=str(world), MASTER_ADDR="localhost", MASTER_PORT="1")
    with (
        pause_collection(),
        paper.gpu(ARCH, 8, cuda=CUDA) as gpu,
        absent_peers.join(0, world),
        host_work.leave_out_host_work(),
    ):
        trainer = _trainer(case)
        trainer.metrics_processor.should_log = lambda _step: False
        trainer.train()
        events = gpu.recorder.events()
        del trainer
    timeline = replay(events, Rules(**read_conf(CONF).changes))
    return [max(timeline.allocated_bytes), max(timeline.reserved_bytes)]


def _trainer(case: Case) -> Any:
    kernels: Any = types.ModuleType("torchtitan.models.moe.kernels")
    kernels.generate_permute_indices = None
    sys.modules[kernels.__name__] = kernels
    from torchtitan import train
    from torchtitan.config import JobConfig
    from torchtitan.protocols import train_spec

    spec = replace(
        train_spec.get_train_spec("llama3"), build_dataloader_fn=lambda **_: Tokens(case), build_tokenizer_fn=None
    )
    train.train_spec_module = types.SimpleNamespace(**{**vars(train_spec), "get_train_spec": lambda _name: spec})
    config = JobConfig()
    config.model.name, config.model.flavor = "llama3", case.flavor
    config.training.seq_len, config.training.local_batch_size = case.tokens, case.micro_batch
    config.training.steps, config.training.gc_freq = STEPS, 1000
    config.parallelism.data_parallel_shard_degree = case.dp
    config.parallelism.tensor_parallel_degree = case.tp
    config.activation_checkpoint.mode = case.recompute
    return train.Trainer(config)


class Tokens:
    """Batches without end, as torchtitan's loader of data gives them."""

    def __init__(self, case: Case) -> None:
        self._shape = (case.micro_batch, case.tokens)

    def __iter__(self) -> Iterator[tuple[dict[str, Any], Any]]:
        import torch

        while True:
            yield {"input": torch.zeros(self._shape, dtype=torch.int64)}, torch.zeros(self._shape, dtype=torch.int64)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert not state


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
