"""What a program finds under torch.cuda: every public name gives what it gives on a GPU, or refuses by a name."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from program_runs import STEP, Program, Run

from planner.allocator.replay import replay

WALK = """
import inspect, json, sys, torch, torch.cuda as cuda
from planner.errors import TraceError
held = torch.zeros(3 << 20, dtype=torch.uint8, device="cuda")
NEEDS = {
    "can_device_access_peer": (0, 0), "caching_allocator_alloc": (512,), "caching_allocator_delete": (0,),
    "caching_allocator_enable": (True,),
    "check_error": (0,), "get_stream_from_external": (0,), "manual_seed": (1,), "manual_seed_all": (1,),
    "set_device": (0,), "set_per_process_memory_fraction": (1.0,), "set_rng_state": (cuda.get_rng_state(),),
    "set_rng_state_all": (cuda.get_rng_state_all(),), "set_stream": (cuda.current_stream(),),
    "set_sync_debug_mode": (0,), "device": (0,), "device_of": (held,), "stream": (None,), "StreamContext": (None,),
    "ExternalStream": (0,), "graph": (cuda.CUDAGraph(),),
    "make_graphed_callables": (torch.nn.Linear(4, 4).cuda(), (torch.zeros(2, 4, device="cuda"),)),
    "DeferredCudaCallError": (), "CudaError": (0,),
}
found = {}
for name in cuda.__all__:
    value = getattr(cuda, name, None)
    if inspect.ismodule(value) or isinstance(value, (bool, tuple)):
        found[name] = "value"
        continue
    try:
        value(*NEEDS.get(name, ()))
        found[name] = "answered"
    except TraceError:
        found[name] = "refused"
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error}".splitlines()[0]
print(json.dumps(found), file=open(sys.argv[1], "w"))
"""
REFUSED = {"CUDAPluggableAllocator", "MemPool", "change_current_allocator", "use_mem_pool"}
VALUES = {"amp", "default_generators", "graphs", "has_half", "has_magma", "jiterator", "memory", "nccl", "nvtx",
          "profiler", "random", "sparse", "streams", "tunable"}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("face")


def test_every_public_name(run: Run, program: Program, folder: Path) -> None:
    run(f"python {program(WALK + STEP)} {folder}/found.json")

    found = json.loads((folder / "found.json").read_text())
    assert {name for name, what in found.items() if what == "refused"} == REFUSED
    assert {name for name, what in found.items() if what == "value"} == VALUES
    others = {name: what for name, what in found.items() if what not in ("answered", "refused", "value")}
    assert others == {"GreenContext": "TypeError: GreenContext: No constructor defined!"}  # as on a GPU


def test_what_is_refused_says_what_it_stands_for(run: Run, program: Program) -> None:
    """Dynamo of torch 2.15 asks `use_mem_pool` for that wherever a compiled region enters something."""
    lines = "import torch\nassert callable(torch.cuda.use_mem_pool.__wrapped__)\n"

    assert run(f"python {program(lines + STEP)}").trace.events


def test_figures_are_those_of_the_replayed_allocator(run: Run, program: Program) -> None:
    lines = """
import torch
free, total = torch.cuda.mem_get_info()
assert torch.cuda.get_device_properties(0).total_memory == total and total > 79 * 2**30
assert torch.cuda.get_device_name() == "NVIDIA H100 80GB HBM3" and total - free == 2**30
large, small = torch.zeros(5 << 20, device="cuda"), torch.zeros(100, device="cuda")
del large
assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == (512, 22 << 20)
assert torch.cuda.max_memory_allocated() == (20 << 20) + 512 == torch.accelerator.max_memory_allocated()
assert torch.cuda.mem_get_info()[0] == free - (22 << 20)
assert torch.accelerator.get_memory_info() == torch.cuda.mem_get_info()
stats = torch.cuda.memory_stats()
assert stats["allocation.large_pool.freed"] == stats["allocation.small_pool.current"] == 1
assert stats["inactive_split_bytes.small_pool.current"] == (2 << 20) - 512
assert "512 B" in torch.cuda.memory_summary()
torch.cuda.empty_cache()
assert torch.cuda.memory_reserved() == 2 << 20 == torch.cuda.memory_stats()["reserved_bytes.small_pool.current"]
torch.cuda.reset_peak_memory_stats()
assert torch.cuda.max_memory_allocated() == 512
assert torch.version.cuda == "13.0" and torch.cuda.FloatTensor(2, 3).shape == (2, 3)
assert isinstance(small, torch.cuda.FloatTensor) and small.type(torch.cuda.HalfTensor).dtype is torch.float16
state = torch.cuda.get_rng_state()
torch.cuda.manual_seed(7)
assert state.numel() == 16 and torch.cuda.initial_seed() == 7
torch.cuda.set_rng_state(state)
def keep_state(x):  # as Dynamo does where it compiles inside of a transformation
    torch.cuda.set_rng_state(torch.cuda.get_rng_state())
    return x.sum()
assert torch.func.functionalize(keep_state)(torch.ones(2, device="cuda")).shape == ()
assert torch.cuda.initial_seed() == 67280421310721  # nobody had set one
"""

    assert run(f"python {program(lines + STEP)}").iterations == 1


def test_a_stream_records_an_event(run: Run, program: Program) -> None:
    lines = """
import torch
stream, event = torch.cuda.Stream(), torch.cuda.Event()
assert stream.record_event(event) is event
stream.wait_event(event)
assert isinstance(torch.cuda.current_stream().record_event(), torch.cuda.Event)
"""

    assert run(f"python {program(lines + STEP)}").iterations == 1


def test_the_peaks_that_a_program_would_print_are_counted_since_it_last_reset_them(run: Run, program: Program) -> None:
    lines = """
import torch
torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
torch.cuda.reset_peak_memory_stats()
"""
    found = run(f"python {program(lines + STEP)}")

    assert found.counted["resets"] == 1
    assert found.counted["max_allocated_bytes"] < 1 << 28 == replay(found.trace.written_out()).peak_allocated_bytes


def test_a_snapshot_has_the_replayed_segments_and_blocks(run: Run, program: Program, folder: Path) -> None:
    path = folder / "snapshot.pickle"
    lines = f"""
import torch
kept = torch.empty(5 << 20, dtype=torch.uint8, device="cuda")
{STEP}
del kept
held = [torch.empty(count << 20, dtype=torch.uint8, device="cuda") for count in (3, 12)]
segments = torch.cuda.memory_snapshot()
assert sum(each["total_size"] for each in segments) == torch.cuda.memory_reserved()
assert sum(each["allocated_size"] for each in segments) == torch.cuda.memory_allocated()
blocks = [block for each in segments for block in each["blocks"]]
assert {{each["state"] for each in blocks}} == {{"active_allocated", "inactive"}}
assert 12 << 20 in [each["requested_size"] for each in blocks]
torch.cuda.memory._dump_snapshot({str(path)!r})
"""

    run(f"python {program(lines)}")

    assert sum(each["total_size"] for each in pickle.loads(path.read_bytes())["segments"]) >= 15 << 20


def test_a_kernel_compiled_from_its_source_is_launched_as_nothing(run: Run, program: Program) -> None:
    lines = """
import torch
fill = torch.cuda._compile_kernel("extern \\"C\\" __global__ void fill(float* x) { *x = 1; }", "fill")
fill.set_shared_memory_config(1024)
given = torch.zeros(4, device="cuda")
before = torch.cuda.memory_allocated()
fill((1, 1, 1), (32, 1, 1), (given,), shared_mem=1024)
assert torch.cuda.memory_allocated() == before
"""
    assert run(f"python {program(lines + STEP)}").is_whole


@pytest.mark.parametrize(
    ("config", "expected_bytes"), [(":4096:8", 32 << 20), (":4096:2:16:8", 8320 << 10), ("many", 32 << 20)]
)
def test_a_workspace_of_cublas_is_as_large_as_the_program_says_before_the_first_product(
    run: Run, program: Program, config: str, expected_bytes: int
) -> None:
    """`:KIB:COUNT` pairs are added (torch 2.13, aten/src/ATen/cuda/CublasHandlePool.cpp); others leave the default."""
    lines = f"""
import os, torch
os.environ["CUBLAS_WORKSPACE_CONFIG"] = "{config}"
left, out = torch.zeros(8, 8, device="cuda"), torch.zeros(8, 8, device="cuda")
before = torch.cuda.memory_allocated()
torch.mm(left, left, out=out)
assert torch.cuda.memory_allocated() - before == {expected_bytes} == torch._C._cuda_getCublasWorkspaceSize()
"""

    assert run(f"python {program(lines + STEP)}").is_whole


def test_workspaces_of_cublas_are_given_back_where_the_program_clears_them(run: Run, program: Program) -> None:
    lines = """
import torch
left, out = torch.zeros(8, 8, device="cuda"), torch.zeros(8, 8, device="cuda")
before = torch.cuda.memory_allocated()
torch.mm(left, left, out=out)
torch._C._cuda_clearCublasWorkspaces()
assert torch.cuda.memory_allocated() == before
torch.mm(left, left, out=out)
assert torch.cuda.memory_allocated() - before == torch._C._cuda_getCublasWorkspaceSize()
"""

    assert run(f"python {program(lines + STEP)}").is_whole
