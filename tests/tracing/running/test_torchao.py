"""Programs with torchao: state, weights and what is gathered have the bytes of the tensors that they flatten to."""

from __future__ import annotations

from program_runs import Program, Run

from planner.events import Alloc, Category, Role
from planner.tracing.program.rank_orders import RankRun

WEIGHT = 1024 * 1024
"""Elements of every weight."""
Bytes = set[tuple[str, str, int]]


def bytes_of(found: RankRun, category: Category) -> Bytes:
    """Every block that is of this category at any time, by name and dtype."""
    events = found.trace.events
    born = {
        event.block: (event.origin.dtype, event.requested_bytes)
        for event in events
        if isinstance(event, Alloc) and event.origin is not None
    }
    roles = (event for event in events if isinstance(event, Role) and event.category is category)
    return {(role.name, *born[role.block]) for role in roles}


OPTIMIZERS = """
import torch
from torch import nn
from torchao.optim import AdamW4bit, AdamW8bit, AdamWFp8
model = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(3))).cuda()
optimizers = [made(layer.parameters()) for made, layer in zip((AdamW8bit, AdamW4bit, AdamWFp8), model)]
for _ in range(2):
    model(torch.randn(16, 1024, device="cuda")).sum().backward()
    for optimizer, stance in zip(optimizers, ("default", "force_eager", "force_eager")):  # compiling takes long
        with torch.compiler.set_stance(stance):
            optimizer.step()
        optimizer.zero_grad()
"""


def test_optimizer_state_of_few_bits(run: Run, program: Program) -> None:
    """Codes, a scale for each 128 or 256 of them, and a table of what the codes stand for."""
    found = run(f"env PYTHONPATH={{beside}} python {program(OPTIMIZERS)}")

    expected: Bytes = set()
    for moment in ("exp_avg", "exp_avg_sq"):
        eight, four, float8 = (f"{layer}.weight.{moment}" for layer in range(3))
        expected |= {(eight, "uint8", WEIGHT), (eight, "float32", 4 * WEIGHT // 256), (eight, "float32", 4 * 256)}
        expected |= {(four, "uint8", WEIGHT // 2), (four, "float32", 4 * WEIGHT // 128), (four, "float32", 4 * 16)}
        expected |= {(float8, "float8_e4m3fn", WEIGHT), (float8, "float32", 4 * WEIGHT // 256)}
    assert bytes_of(found, Category.OPTIMIZER_STATE) == expected


FROZEN = """
import torch
from torch import nn
from torchao.quantization import Int8WeightOnlyConfig, quantize_
from torchao.quantization.quantize_.workflows.nf4.nf4_tensor import linear_nf4, to_nf4

class Adapted(nn.Module):  # as torchtune's LoRALinear
    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.a, self.b = nn.Linear(1024, 8, bias=False), nn.Linear(8, 1024, bias=False)

    def forward(self, given):
        is_nf4 = type(self.weight).__name__ == "NF4Tensor"
        multiply = linear_nf4 if is_nf4 else nn.functional.linear
        return multiply(given, self.weight) + self.b(self.a(given))

torch.set_default_dtype(torch.bfloat16)
torch.set_default_device("cuda")
whole = nn.Linear(1024, 1024, bias=False)
nf4 = Adapted(to_nf4(whole.weight.detach()))
quantize_(whole, Int8WeightOnlyConfig())
model = nn.Sequential(nf4, Adapted(whole.weight.detach()))
del whole
optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad])
for _ in range(2):
    model(torch.randn(64, 1024)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_frozen_weights_below_adapters(run: Run, program: Program) -> None:
    """NF4: two codes a byte, a scale of a byte for each 64, for each 256 of those a factor, their mean, and the sixteen
    values of codes; int8: a byte each, a scale and a zero point for each row."""
    found = run(f"env PYTHONPATH={{beside}} python {program(FROZEN)}")

    adapters = {(f"{layer}.{part}.weight", "bfloat16", 2 * 8 * 1024) for layer in (0, 1) for part in "ab"}
    nf4 = {("0.weight", "uint8", WEIGHT // 2), ("0.weight", "int8", WEIGHT // 64)}
    nf4 |= {("0.weight", "bfloat16", 2 * count) for count in (WEIGHT // 64 // 256, 1, 16)}
    int8 = {("1.weight", "int8", WEIGHT), ("1.weight", "float32", 4 * 1024), ("1.weight", "int8", 1024)}
    assert bytes_of(found, Category.PARAMETER) == adapters | nf4 | int8


GATHERED = """
import os, torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torchao.float8 import Float8LinearConfig, convert_to_float8_training, precompute_float8_dynamic_scale_for_fsdp
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
with torch.device("meta"):
    model = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(3)))
convert_to_float8_training(model, config=Float8LinearConfig(enable_fsdp_float8_all_gather=True))
options = dict(
    mesh=init_device_mesh("cuda", (2,)),
    mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
)
for layer in [*model, model]:
    fully_shard(layer, **options)
model.to_empty(device="cuda")
for each in model.parameters():
    nn.init.normal_(each)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    model(torch.randn(64, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    precompute_float8_dynamic_scale_for_fsdp(model)
"""


def test_weights_that_ranks_gather_in_float8(run: Run, program: Program) -> None:
    """As torchtitan does: this rank has half of each weight in float32, and all gather a byte of each element, in a
    buffer for both ranks."""
    found = run(f"env PYTHONPATH={{beside}} torchrun --nproc-per-node 2 {program(GATHERED)}")

    own = {(f"{layer}.weight", "float32", 4 * WEIGHT // 2) for layer in range(3)}
    gathered = {(f"{layer}.weight (gathered)", "float8_e4m3fn", WEIGHT) for layer in range(3)}
    moments = {(f"{name}.{each}", *sizes) for name, *sizes in own for each in ("exp_avg", "exp_avg_sq")}
    sent = {
        each for each in bytes_of(found, Category.COMMUNICATION) if each[0] == "foreach_all_gather" and each[2] > 64
    }
    assert bytes_of(found, Category.PARAMETER) == own | gathered
    assert bytes_of(found, Category.OPTIMIZER_STATE) == moments
    assert sent == {("foreach_all_gather", "float8_e4m3fn", WEIGHT)}


BLOCK_SCALED = """
import torch
from torch import nn
from torchao.prototype.moe_training.config import MXFP8TrainingOpConfig
from torchao.quantization import quantize_
model = nn.Linear(1024, 1024, bias=False, device="cuda", dtype=torch.bfloat16)
quantize_(model, MXFP8TrainingOpConfig(), filter_fn=lambda *_: True)
optimizer = torch.optim.SGD(model.parameters())
for _ in range(2):
    given = torch.randn(64, 1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    model(given).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_products_in_mxfp8(run: Run, program: Program) -> None:
    """Inputs, weights and gradients are cast along their rows by one kernel and along their columns by another: a byte
    for each element and for each 32 of them."""
    found = run(f"env PYTHONPATH={{beside}} python {program(BLOCK_SCALED)}", gpu_name="B200-SXM-180GB")

    cast: dict[str, set[tuple[str, int]]] = {}
    for event in found.trace.events:
        if isinstance(event, Alloc) and event.origin is not None and event.origin.op.startswith("torchao."):
            cast.setdefault(event.origin.op, set()).add((event.origin.dtype, event.requested_bytes))
    data = {("float8_e4m3fn", elements) for elements in (64 * 1024, WEIGHT)}
    assert cast == {
        "torchao.triton_to_mxfp8_dim0": data | {("uint8", elements // 32) for _, elements in data},
        "torchao.mxfp8_quantize": data | {("float8_e8m0fnu", elements // 32) for _, elements in data},
    }
    assert (
        bytes_of(found, Category.PARAMETER)
        == bytes_of(found, Category.GRADIENT)
        == {("weight", "bfloat16", 2 * WEIGHT)}
    )
