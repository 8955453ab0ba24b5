"""Torch's own CUDA code on the CUDA runtime on paper: what libraries do that nobody has here, and what is captured."""

from __future__ import annotations

import re

import pytest
from program_runs import Program, Run

from planner.errors import ProgramError
from planner.events import Alloc, Category, Role
from planner.job.loading import load_yaml
from planner.step_work import LaunchKind
from planner.tracing.isolated import trace_isolated
from planner.units import MIB

SPEC = """
model:
  decoder: {{layers: 2, hidden: 512, heads: 4, kv_heads: 2, ffn: 1024, vocab: 4096}}
train:
  micro_batch_size: 2
  sequence_length: 1024
  precision: bf16_autocast
  optimizer: {{name: AdamW}}
  iterations: 3
cluster: {{nodes: 1, gpus_per_node: 1, gpu: {gpu}}}
"""


@pytest.mark.parametrize(
    ("gpu", "missing"),
    [
        ("V100-SXM2-32GB", ["sm_70"]),
        ("GB10-128GB", []),
        ("MI300X-192GB", ["gfx942"]),
    ],
)
def test_gpus_for_which_torch_has_no_kernels_are_named(gpu: str, missing: list[str]) -> None:
    trace = trace_isolated(load_yaml(SPEC.format(gpu=gpu)))

    assert re.findall(r"no kernels for (\w+)", trace.other_kernels) == missing


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


def test_recurrent_networks_of_every_kind_train_and_their_workspaces_are_named(program: Program, run: Run) -> None:
    assert run(f"python {program(RECURRENT)}").trace.unknown_workspaces == ("cuDNN recurrent network",)


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


def test_a_benchmark_of_convolutions_takes_the_largest_workspace_that_has_room(program: Program, run: Run) -> None:
    def largest_workspace(benchmark: bool) -> int:
        code = CONVOLUTION.replace("{left}", "0").replace(
            "import torch\n", f"import torch\ntorch.backends.cudnn.benchmark = {benchmark}\n"
        )
        allocs = [event for event in run(f"python {program(code)}").trace.written_out() if isinstance(event, Alloc)]
        return max(a.requested_bytes for a in allocs if a.origin and a.origin.op == "cudnn_convolution.workspace")

    assert largest_workspace(benchmark=True) > largest_workspace(benchmark=False)


REPLICATED = """
import torch

model = torch.nn.DataParallel(torch.nn.Linear(64, 64).cuda())
model(torch.zeros(240, 64, device="cuda")).sum().backward()
assert model.module.bias.grad is not None
torch.zeros(1024, device=f"cuda:{torch.cuda.device_count() - 1}")
"""


def test_a_model_that_is_replicated_over_every_gpu_of_a_large_node_trains(program: Program, run: Run) -> None:
    ran = run(f"python {program(REPLICATED)}", gpus=120)

    assert ran.devices == tuple(range(120))


REFUSED = {
    "import torch, os; os.environ['TORCH_CUDNN_V8_API_DISABLED'] = '1'\n"
    "torch.nn.Conv2d(3, 8, 3).cuda()(torch.zeros(1, 3, 16, 16, device='cuda'))": (
        "cudnnGetConvolutionForwardAlgorithm_v7 of libcudnn"
    ),
    "import ctypes, torch; torch.zeros(1, device='cuda')\n"
    "if ctypes.CDLL(None).ncclMemAlloc(0, 1): raise ValueError('no memory of NCCL')": "ncclMemAlloc of libnccl",
}


@pytest.mark.parametrize("code", REFUSED)
def test_a_library_that_cannot_answer_is_named_in_the_error(program: Program, run: Run, code: str) -> None:
    with pytest.raises(ProgramError, match=f"before, it called {REFUSED[code]}, which cannot answer without a GPU"):
        run(f"python {program(code)}")
