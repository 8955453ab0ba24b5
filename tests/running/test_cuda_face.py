"""What a program finds under torch.cuda: every public name gives what it gives on a GPU, or refuses by a name."""

from __future__ import annotations

from collections.abc import Callable

from program_runs import Run

WALK = """
import inspect, json, sys, torch, torch.cuda as cuda
from planner.errors import TraceError
held = torch.zeros(3 << 20, dtype=torch.uint8, device="cuda")
NEEDS = {
    "can_device_access_peer": (0, 1), "caching_allocator_delete": (0,), "caching_allocator_enable": (True,),
    "check_error": (0,), "get_stream_from_external": (0,), "manual_seed": (1,), "manual_seed_all": (1,),
    "set_device": (0,), "set_per_process_memory_fraction": (1.0,), "set_rng_state": (cuda.get_rng_state(),),
    "set_rng_state_all": (cuda.get_rng_state_all(),), "set_stream": (cuda.current_stream(),), "set_sync_debug_mode": (0,),
    "device": (0,), "device_of": (held,), "stream": (None,), "StreamContext": (None,), "ExternalStream": (0,),
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
STEP = """
model = torch.nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.zeros(2, 4, device="cuda")).sum().backward()
optimizer.step()
"""
REFUSED = {
    "CUDAGraph", "CUDAPluggableAllocator", "GreenContext", "MemPool", "caching_allocator_alloc",
    "change_current_allocator", "graph", "make_graphed_callables", "use_mem_pool",
}  # fmt: skip
VALUES = {"amp", "default_generators", "graphs", "has_half", "has_magma", "jiterator", "memory", "nccl", "nvtx",
          "profiler", "random", "sparse", "streams", "tunable"}  # fmt: skip


def test_every_public_name(run: Run, program: Callable[[str], str], tmp_path_factory: object) -> None:
    import json
    import tempfile

    with tempfile.NamedTemporaryFile() as out:
        run(f"python {program(WALK + STEP)} {out.name}")
        found = json.load(out)

    assert {name for name, what in found.items() if what == "refused"} == REFUSED
    assert {name for name, what in found.items() if what == "value"} == VALUES
    others = {name: what for name, what in found.items() if what not in ("answered", "refused", "value")}
    assert others == {}
