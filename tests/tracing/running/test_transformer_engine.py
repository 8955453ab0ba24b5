"""TransformerEngine: what its extension allocates, and layers of the package itself where it is installed.

Source: TransformerEngine 2.11, transformer_engine/pytorch/csrc/extensions; sizes below are derived by hand from it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest
import torch
from program_runs import Program, Run
from told_events import told_events

import planner.paper
from planner.errors import TraceError
from planner.paper.transformer_engine import extension
from planner.paper.transformer_engine.extension import EXTENSION

HAS_IT = all(importlib.util.find_spec(each) for each in ("transformer_engine", "onnxscript"))
D_TYPE = EXTENSION["DType"]


def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="cuda")


def told(code: Callable[[], Any]) -> list[str]:
    """Without what the test itself allocates."""
    return [line for line in told_events(code) if " empty " not in line]


def product(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, **named: Any) -> Any:
    given = {"transA": True, "transB": False, "quantizer": None, "output_dtype": None, "bias": None, "grad": False,
             "gelu": False, "accumulate": out is not None} | named  # fmt: skip
    return EXTENSION["generic_gemm"](
        A=a, B=b, D=out, bias_type=D_TYPE.kBFloat16, gelu_in=None, workspace=None, workspace_size=0,
        use_split_accumulator=False, **given,
    )  # fmt: skip


def test_products_make_their_result_unless_they_are_given_one() -> None:
    def run() -> Any:
        weight, given, grad = empty(96, 64), empty(10, 2, 64), empty(10, 2, 96)
        return (
            product(weight, given, None),
            product(weight, grad, None, transA=False, grad=True),
            product(given, grad, empty(96, 64, dtype=torch.float32), transA=False, transB=True, grad=True),
            product(weight, given, None, bias=empty(96), gelu=True),
        )

    assert told(run) == [
        "+ gemm 10x2x96 bfloat16",
        "+ gemm 10x2x64 bfloat16",
        "+ gemm 10x2x96 bfloat16",
        "+ gemm 10x2x96 bfloat16",  # what GELU is given
    ]


def test_a_product_of_groups_gives_the_biases_back_and_keeps_none_of_the_results_that_it_made() -> None:
    def run(out: list[torch.Tensor] | None) -> Any:
        groups = [empty(96, 64), empty(96, 64)], True, [empty(10, 64), empty(6, 64)], False, out
        biases = [empty(96), empty(96)]
        assert EXTENSION["te_general_grouped_gemm"](*groups, D_TYPE.kBFloat16, [10, 6], biases, 6, False) == biases

    assert told(lambda: run(None)) == [
        "+ grouped_gemm 10x96 bfloat16",
        "+ grouped_gemm 6x96 bfloat16",
        "- grouped_gemm 10x96",
        "- grouped_gemm 6x96",
    ]
    assert told(lambda: run([empty(10, 96), empty(6, 96)])) == []


def test_an_rms_norm_keeps_a_figure_a_row_and_its_backward_sums_by_blocks() -> None:
    def run() -> Any:
        given, weight = empty(6, 32), empty(32)
        made = EXTENSION["rmsnorm_fwd"](given, weight, 1e-5, None, None, D_TYPE.kBFloat16, 0, False)
        return made, EXTENSION["rmsnorm_bwd"](made[0], given, made[2], weight, 0, False)

    blocks = 2 * 132  # two on each multiprocessor of an H100
    assert told(run) == [
        "+ rmsnorm_fwd 6 float32",
        "+ rmsnorm_fwd 6x32 bfloat16",
        "+ rmsnorm_fwd 1 uint8",
        "- rmsnorm_fwd 1",
        "+ rmsnorm_bwd 6x32 bfloat16",
        "+ rmsnorm_bwd 32 bfloat16",
        f"+ workspace {blocks * 32 * 4} uint8",
        f"- workspace {blocks * 32 * 4}",
    ]


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> Callable[[tuple[int, int]], None]:
    def pretend(found: tuple[int, int]) -> None:
        monkeypatch.setattr(extension, "_release", lambda: found)

    return pretend


def forward(layout: str, *, corner: tuple[bool, ...] = ()) -> Any:
    """Two sequences of 16 rows; four heads of query for two of key and value."""
    q, k, v = empty(16, 2, 4, 8), empty(16, 2, 2, 8), empty(16, 2, 2, 8)
    lengths = empty(3, dtype=torch.int32)
    names = {"QKV_Layout": layout, "Bias_Type": "NVTE_NO_BIAS", "Mask_Type": "NVTE_CAUSAL_MASK",
             "Softmax_Type": "NVTE_VANILLA_SOFTMAX"}  # fmt: skip
    kinds = [EXTENSION[f"NVTE_{kind}"][name] for kind, name in names.items()]
    out, kept, seed = EXTENSION["fused_attn_fwd"](
        16, 16, True, 0.1, 0.0, True, *kinds, [-1, 0], *corner, lengths, lengths, q, k, v, torch.bfloat16, None, None,
        None, None, None, None, None, None, None, 4, False, False,
    )  # fmt: skip
    grads = EXTENSION["fused_attn_bwd"](
        16, 16, 0.1, 0.0, True, *kinds, [-1, 0], *corner, False, lengths, lengths, q, k, v, out, out, torch.bfloat16,
        D_TYPE.kBFloat16, [kept, seed], None, None, None, None, None, False,
    )  # fmt: skip
    return out, kept, seed, grads


@pytest.mark.parametrize(("version", "corner"), [((2, 11), ()), ((2, 13), (False,))])
def test_attention_keeps_statistics_and_a_seed(
    release: Callable[[tuple[int, int]], None], version: tuple[int, int], corner: tuple[bool, ...]
) -> None:
    release(version)
    front_end = 2 * 4 * 16 * (8 + 1) * 4  # the query's gradient and row sums in float32

    assert told(lambda: forward("NVTE_SBHD_SBHD_SBHD", corner=corner)) == [
        "+ fused_attn_fwd 16x2x4x8 bfloat16",
        "+ fused_attn_fwd 2 int64",
        "+ workspace 1 uint8",
        "- workspace 1",
        "+ fused_attn_fwd 2x4x16x1 float32",
        "+ fused_attn_bwd 16x2x4x8 bfloat16",
        "+ fused_attn_bwd 16x2x2x8 bfloat16",
        "+ fused_attn_bwd 16x2x2x8 bfloat16",
        f"+ workspace {front_end} uint8",
        f"- workspace {front_end}",
    ]


def test_what_is_not_modelled_is_refused_by_its_name(release: Callable[[tuple[int, int]], None]) -> None:
    release((2, 11))
    with planner.paper.gpu("sm_90"):
        with pytest.raises(TraceError, match="packed or paged sequences"):
            forward("NVTE_THD_THD_THD")
        with pytest.raises(TraceError, match="Quantizer"):
            product(empty(4, 4), empty(4, 4), None, quantizer=type("Quantizer", (), {})())
    with pytest.raises(TraceError, match="quantize of TransformerEngine"):
        EXTENSION["quantize"]()
    with pytest.raises(TraceError, match="CommOverlap of TransformerEngine"):
        EXTENSION["CommOverlap"]()


PROGRAM = """
import torch
import transformer_engine.pytorch as te

ROWS, BATCH, HIDDEN, HEADS, WIDE = 64, 2, 128, 4, 256
kind = {"params_dtype": torch.bfloat16, "device": "cuda", "bias": False, "fuse_wgrad_accumulation": True}

class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = te.LayerNormLinear(HIDDEN, 3 * HIDDEN, normalization="RMSNorm", **kind)
        self.attention = te.DotProductAttention(HEADS, HIDDEN // HEADS, attn_mask_type="causal", qkv_format="sbhd")
        self.out = te.Linear(HIDDEN, HIDDEN, **kind)
        self.first = te.LayerNormLinear(HIDDEN, WIDE, normalization="RMSNorm", **kind)
        self.second = te.Linear(WIDE, HIDDEN, **kind)

    def forward(self, x):
        q, k, v = self.qkv(x).view(ROWS, BATCH, 3, HEADS, -1).unbind(2)
        x = x + self.out(self.attention(q, k, v))
        return x + self.second(torch.nn.functional.gelu(self.first(x)))

model = torch.nn.Sequential(Layer(), Layer())
for each in model.parameters():
    each.main_grad = torch.zeros_like(each, dtype=torch.float32)
optimizer = te.optimizers.FusedAdam(model.parameters())
x = torch.zeros(ROWS, BATCH, HIDDEN, dtype=torch.bfloat16, device="cuda", requires_grad=True)

def taken():
    return torch.cuda.memory_stats()["requested_bytes.all.current"]

tokens = ROWS * BATCH
kept = 2 * (
    2 * tokens * (2 * HIDDEN + 2 * HIDDEN + 3 * HIDDEN + HIDDEN)  # sums, norms, qkv, attention
    + 2 * tokens * 2 * WIDE  # before and after gelu
    + 2 * 4 * tokens  # of the two norms
    + 4 * BATCH * HEADS * ROWS + 2 * 8  # statistics and seed
)
for step in range(3):
    before = taken()
    result = model(x)
    if step:  # before, workspaces and lengths are made that stay
        assert taken() - before == kept, (taken() - before, kept)
    result.backward(torch.zeros_like(result))
    del result
    for each in model.parameters():
        each.grad = each.main_grad.to(each.dtype)
    optimizer.step()
    for each in model.parameters():
        each.grad = None
"""


@pytest.mark.skipif(not HAS_IT, reason="transformer-engine's Python part and onnxscript are not installed")
def test_layers_of_the_package_keep_what_their_source_says(run: Run, program: Program) -> None:
    found = run(f"python {program(PROGRAM)}")

    assert found.iterations == 3


@pytest.mark.skipif(HAS_IT, reason="transformer-engine's Python part is installed")
def test_a_program_that_needs_it_is_told_what_to_install(run: Run, program: Program) -> None:
    with pytest.raises(TraceError, match="which is not installed here") as caught:
        run(f"python {program('import transformer_engine.pytorch')}")

    assert "pip install --no-deps transformer-engine" in caught.value.remedy


@pytest.mark.parametrize(
    ("capability", "dropout", "deterministic", "backend"),
    [
        ((9, 0), 0.1, True, "NVTE_F16_arbitrary_seqlen"),
        ((10, 0), 0.1, False, "NVTE_F16_arbitrary_seqlen"),
        ((10, 0), 0.1, True, "NVTE_No_Backend"),
    ],
)
def test_blackwell_has_no_fused_attention_that_gives_the_same_each_time_with_dropout(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], dropout: float, deterministic: bool, backend: str
) -> None:
    """Source, TransformerEngine 2.14: common/fused_attn/fused_attn.cpp."""
    monkeypatch.setattr(extension, "_release", lambda: (2, 14))
    asked = (D_TYPE.kBFloat16, D_TYPE.kBFloat16, 4, 0, 2, 0, dropout, 8, 8, 1024, 1024, 64, 64, -1, 0, False, False)

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device=None: capability)

    with planner.paper.gpu("sm_90"):
        assert EXTENSION["get_fused_attn_backend"](True, *asked, deterministic).name == backend
