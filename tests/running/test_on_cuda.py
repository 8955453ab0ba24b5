"""Torch's own CUDA code on the CUDA runtime on paper allocates what the modelled kernels do."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from program_runs import Run

from planner import cuda_on_paper
from planner.allocator.replay import replay
from planner.events import Alloc, Category, Role
from planner.job.loading import load_yaml
from planner.planning.trace_source import PRELOAD
from planner.step_work import LaunchKind
from planner.tracing.isolated import trace_isolated
from planner.tracing.program.rank_orders import RankRun
from planner.units import KIB, MIB

Program = Callable[[str], str]

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="torch is not a CUDA build")

TRANSFORMER = """
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.norm, self.other_norm = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.other_norm(x))))

class Model(nn.Module):
    def __init__(self, words=4096, width=256, layers=3):
        super().__init__()
        self.words, self.blocks = nn.Embedding(words, width), nn.ModuleList(Block(width, 4) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
    def forward(self, tokens):
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), tokens.flatten())

if "RANK" in os.environ:
    dist.init_process_group("nccl")
model = Model().cuda()
{wrapped}
optimizer = torch.optim.AdamW(model.parameters())
for step in range(4):
    tokens = torch.randint(4096, (4, 512), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(tokens)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item())
"""
DDP = "model = nn.parallel.DistributedDataParallel(model)"
FSDP2 = """
from torch.distributed.fsdp import fully_shard
for block in model.blocks:
    fully_shard(block)
fully_shard(model)
"""
FSDP1 = """
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
model = FullyShardedDataParallel(model, auto_wrap_policy=ModuleWrapPolicy({Block}))
"""


@pytest.fixture
def run_modelled(run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    def run_it(command: str, **options: object) -> RankRun:
        with monkeypatch.context() as patch:
            patch.setenv("PLANNER_ON_CUDA", "0")
            return run(command, **options)  # type: ignore[arg-type]

    return run_it  # type: ignore[return-value]


def is_of_cudnn(alloc: Alloc) -> bool:
    """Which is asked itself, and says 256 bytes more than the modelled kernels for its attention."""
    return "cudnn" in getattr(alloc.origin, "op", "")


def requested(ran: RankRun, least_bytes: int) -> list[tuple[int, int]]:
    """Of every allocation its bytes and its stream, as the how manieth that was met; without those of cuDNN."""
    allocs = [event for event in ran.trace.written_out() if isinstance(event, Alloc)]
    streams = dict[int, int]()
    return [
        (event.requested_bytes, streams.setdefault(event.stream, len(streams)))
        for event in allocs
        if not is_of_cudnn(event) and event.requested_bytes >= least_bytes
    ]


def roles(ran: RankRun) -> Counter[Category]:
    events = ran.trace.written_out()
    left_out = {event.block for event in events if isinstance(event, Alloc) and is_of_cudnn(event)}
    return Counter(event.category for event in events if isinstance(event, Role) and event.block not in left_out)


@pytest.mark.parametrize(
    ("launcher", "wrapped", "least_bytes"),
    [
        ("python", "", 0),
        pytest.param("torchrun --nproc-per-node 4", DDP, 0, marks=pytest.mark.soak),
        pytest.param("torchrun --nproc-per-node 4", FSDP1, 0, marks=pytest.mark.soak),
        # Copies of many tensors at once have lists of them on the device, which the modelled kernels do not know.
        ("torchrun --nproc-per-node 4", FSDP2, 64 * KIB),
    ],
    ids=["alone", "ddp", "fsdp1", "fsdp2"],
)
def test_the_same_is_allocated_in_the_same_order(
    program: Program, run: Run, run_modelled: Run, launcher: str, wrapped: str, least_bytes: int
) -> None:
    command = f"{launcher} {program(TRANSFORMER.replace('{wrapped}', wrapped))}"

    modelled, on_cuda = run_modelled(command), run(command)

    assert requested(on_cuda, least_bytes) == requested(modelled, least_bytes)
    assert roles(on_cuda) == roles(modelled)
    assert on_cuda.assumptions == modelled.assumptions


SPEC = """
model:
  decoder: {{layers: 2, hidden: 512, heads: 4, kv_heads: 2, ffn: 1024, vocab: 4096}}
train:
  micro_batch_size: 2
  sequence_length: 1024
  precision: bf16_autocast
  optimizer: {{name: AdamW}}
  iterations: 3
cluster: {{nodes: 1, gpus_per_node: 4, gpu: A100-SXM-80GB}}
{more}
"""


@pytest.mark.parametrize(
    ("more", "rank"),
    [
        ("parallel: {dp_replicate: 4}", 0),
        pytest.param("parallel: {tp: {degree: 2}, dp_shard: {degree: 2}}", 1, marks=pytest.mark.soak),
        ("parallel: {cp: {degree: 2}, dp_shard: {degree: 2}}", 3),
    ],
    ids=["replicated", "tensor parallel", "context parallel"],
)
def test_the_step_of_a_spec_has_the_same_peaks(monkeypatch: pytest.MonkeyPatch, more: str, rank: int) -> None:
    job = load_yaml(SPEC.format(more=more))

    def peak() -> tuple[int, int]:
        server = cuda_on_paper.start_server(PRELOAD)
        try:
            timeline = replay(trace_isolated(job, rank, server=server).written_out())
        finally:
            server.close()
        return timeline.peak_allocated_bytes, timeline.peak_reserved_bytes

    on_cuda = peak()
    monkeypatch.setenv("PLANNER_ON_CUDA", "0")

    assert on_cuda == peak()


@pytest.mark.parametrize(
    ("gpu", "missing"),
    [("V100-SXM2-32GB", ["sm_70"]), ("GB10-128GB", []), ("MI300X-192GB", ["gfx942"])],
)
def test_gpus_for_which_torch_has_no_kernels_are_named(gpu: str, missing: list[str]) -> None:
    job = load_yaml(
        SPEC.format(more="").replace("gpus_per_node: 4, gpu: A100-SXM-80GB", f"gpus_per_node: 1, gpu: {gpu}")
    )

    counted = trace_isolated(job).counted_workspaces

    assert re.findall(r"no kernels for (\w+)", " ".join(counted)) == missing


GRAPHED = """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)).cuda()
inputs = torch.zeros(64, 256, device="cuda")

def step():
    model.zero_grad()
    model(inputs).sum().backward()

stream = torch.cuda.Stream()
stream.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(stream):
    step()
torch.cuda.current_stream().wait_stream(stream)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    step()
for _ in range({replays}):
    graph.replay()
"""


def test_a_captured_step_lies_in_a_pool_of_its_own_and_its_replays_take_time_but_no_memory(
    program: Program, run: Run
) -> None:
    once, thrice = (run(f"python {program(GRAPHED.replace('{replays}', str(count)))}").trace for count in (1, 3))

    allocs = [event for event in once.written_out() if isinstance(event, Alloc)]
    gradients = {
        event.block for event in once.written_out() if isinstance(event, Role) and event.category is Category.GRADIENT
    }
    pools = [alloc.pool for alloc in allocs if alloc.block in gradients]
    assert pools == [0, 0, 0, 0, 1, 1, 1, 1]  # of the warm-up, and of the capture
    assert [event for event in thrice.written_out() if isinstance(event, Alloc)] == allocs
    kernels, three_times_as_many = (
        sum(launch.kind == LaunchKind.KERNEL for launch in trace.work.launches) for trace in (once, thrice)
    )
    assert three_times_as_many == 3 * kernels > 0


RECURRENT = """
import torch

KINDS = (("LSTM", {}), ("GRU", {"bidirectional": True}), ("RNN", {"bias": False}), ("LSTM", {"proj_size": 32}))
for kind, more in KINDS:
    network = getattr(torch.nn, kind)(64, 128, 2, **more).cuda()
    lengths = [50] * 4 + [25] * 4
    packed = torch.nn.utils.rnn.pack_padded_sequence(torch.randn(50, 8, 64, device="cuda"), lengths)
    network(packed)[0].data.sum().backward()
"""


def test_recurrent_networks_take_what_is_known_of_them_and_the_rest_is_named(
    program: Program, run: Run, run_modelled: Run
) -> None:
    command = f"python {program(RECURRENT)}"

    modelled, on_cuda = run_modelled(command), run(command)

    assert requested(on_cuda, 64 * KIB) == requested(modelled, 64 * KIB)
    assert on_cuda.trace.unknown_workspaces == ("cuDNN recurrent network",)


DECOMPOSED = """
import torch

matrix = torch.randn(256, 256, device="cuda")
torch.linalg.eigh(matrix)
torch.linalg.qr(matrix)
torch.nn.Linear(256, 256).cuda()(torch.fft.rfft(matrix).real[:, :1].expand(-1, 256)).sum().backward()
"""


def test_workspaces_whose_sizes_only_a_gpu_knows_are_named(program: Program, run: Run) -> None:
    ran = run(f"python {program(DECOMPOSED)}")

    assert ran.trace.unknown_workspaces == ("cuFFT", "cuSOLVER")


CONVOLUTION = """
import torch

convolution = torch.nn.Conv2d(64, 64, 3, padding=1).cuda()
pictures = torch.zeros(256, 64, 112, 112, device="cuda")
free, _ = torch.cuda.mem_get_info()
held = torch.empty(free - {left}, dtype=torch.uint8, device="cuda") if {left} else None
convolution(pictures).sum().backward()
"""


def test_a_convolution_takes_another_way_where_its_workspace_has_no_room(program: Program, run: Run) -> None:
    def workspaces(left: int) -> list[int]:
        ran = run(f"python {program(CONVOLUTION.replace('{left}', str(left)))}")
        allocs = [event for event in ran.trace.written_out() if isinstance(event, Alloc)]
        return [a.requested_bytes for a in allocs if a.origin and a.origin.op == "cudnn_convolution.workspace"]

    result = 256 * 64 * 112 * 112 * 4  # of the convolution, then its gradient

    assert max(workspaces(0)) > 64 * MIB >= max(workspaces(result + 64 * MIB), default=0)
