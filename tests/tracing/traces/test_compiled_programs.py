"""Programs that torch.compile compiles for the paper GPU: what they allocate, and what is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from other_gpus import compiled_on, printed_on
from own_caches import use_cache

from planner import paper  # before torch
from planner.errors import TraceError
from planner.events import TIMING, Alloc, Event
from planner.job.schema import (
    Cluster,
    Compile,
    Cp,
    Decoder,
    DpReplicate,
    Gpu,
    Input,
    Job,
    Loss,
    Model,
    Parallel,
    Pp,
    Train,
)
from planner.paper import compiled
from planner.paper.compiled import Compiling, patches
from planner.step_work import Launch
from planner.tracing.job_program import trace
from planner.upstream import torch_releases

import torch  # isort: skip
from torch import nn  # isort: skip
from torch._dynamo import compiled_autograd  # isort: skip
from torch._dynamo.backends.distributed import SubmodCompiler  # isort: skip

_GPU = Gpu(name="H100", total_bytes=80 << 30, arch="sm_90")
_PROGRAMS = str(Path(__file__).parents[1] / "programs")
_DECODER = Decoder(layers=2, hidden=64, heads=2, kv_heads=2, ffn=160, vocab=500)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """One for all tests of the process, as that of a user; not the user's."""
    use_cache(tmp_path_factory.getbasetemp() / "cache", monkeypatch)
    monkeypatch.delenv("PLANNER_CACHE", raising=False)


@pytest.fixture(autouse=True, scope="module")
def _library() -> None:
    """Built where the user's cache is, before another one takes its place."""
    with paper.gpu("sm_90"):
        return


def job(*scope: str, arch: str = "sm_90", **compile_: Any) -> Job:
    asked = Compile(scope=scope, **compile_) if scope else None
    return Job(
        model=Model(decoder=_DECODER),
        train=Train(micro_batch_size=2, sequence_length=64, compile=asked, iterations=2),
        cluster=Cluster(gpu=replace(_GPU, arch=arch)),
    )


@contextmanager
def compiling() -> Iterator[tuple[paper.Paper, Compiling]]:
    with paper.gpu("sm_90") as gpu, compiled.enable(gpu.recorder, as_asked=True) as account:
        yield gpu, account


def allocated(gpu: paper.Paper, run: Callable[[], object]) -> list[Alloc]:
    """What is allocated while something runs."""
    before = len(gpu.recorder.events())
    run()
    return [each for each in gpu.recorder.events()[before:] if isinstance(each, Alloc)]


def origins(gpu: paper.Paper, run: Callable[[], object]) -> list[tuple[str, str, tuple[int, ...]]]:
    found = [each.origin for each in allocated(gpu, run)]
    return [(each.op, each.module, each.shape) for each in found if each is not None]


def test_a_plan_from_inductors_cache_is_the_plan_that_filled_it() -> None:
    cold, warm = trace(job("model", "loss")), trace(job("model", "loss"))
    assert cold.events == warm.events
    assert cold.assumed == warm.assumed


def test_compiled_modules_are_named_as_eager_ones_are() -> None:
    eager, compiled_ = trace(job()), trace(job("model"))
    named = {each.origin.module for each in compiled_.events if isinstance(each, Alloc) and each.origin}
    assert {"layers.0.ffn.gate", "layers.1.attention", "head"} <= named
    assert named <= {each.origin.module for each in eager.events if isinstance(each, Alloc) and each.origin}


def test_processes_that_compile_at_a_time_share_a_cache(tmp_path: Path) -> None:
    """Both compile into an empty folder, which neither leaves damaged."""

    def compile_something(_: int = 0) -> Any:
        return compiled_on("sm_90", tmp_path, "lambda x: (x.sin() + x.cos()).sum(0)", "[torch.randn(64, 64).cuda()]")

    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(compile_something, range(2))
    assert list((tmp_path / "inductor").iterdir()) != []
    assert one == other == compile_something()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(x)))


def test_equal_blocks_are_compiled_once() -> None:
    with compiling() as (_, account):
        blocks = nn.Sequential(*(Block() for _ in range(12))).cuda()
        for block in blocks:
            block.forward = torch.compile(block.forward)
        blocks(torch.randn(4, 64, device="cuda", requires_grad=True)).sum().backward()
        assert account.graphs() == 1


def test_reductions_are_split_for_the_multiprocessors_of_the_gpu(tmp_path: Path) -> None:
    """H100 has 132 of them, T4 40, of which each holds half as many threads."""
    with compiling() as (gpu, _):
        given = torch.randn(16 << 20, device="cuda")
        here = [shape for op, _, shape in origins(gpu, lambda: torch.compile(torch.sum)(given)) if op != TIMING]
    there, _, _ = compiled_on("sm_75", tmp_path, "torch.sum", "[torch.randn(16 << 20, device='cuda')]")

    assert here
    assert here != [tuple(shape) for op, shape, _ in there if op != TIMING]


@pytest.mark.skipif(torch_releases.installed() == (2, 9), reason="torch 2.9's Dynamo cannot compile create_block_mask")
def test_attention_with_a_mask_of_blocks_compiles_without_triton() -> None:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def attend(q: torch.Tensor) -> torch.Tensor:
        mask = create_block_mask(lambda _b, _h, i, j: i >= j, None, None, 256, 256, device="cuda")
        return flex_attention(q, q, q, block_mask=mask)

    with compiling() as (gpu, account):
        q = torch.randn(1, 2, 256, 64, device="cuda", requires_grad=True)
        found = origins(gpu, lambda: torch.compile(attend, fullgraph=True)(q).sum().backward())
    assert account.breaks() == ()
    assert ("flex_attention", "", (1, 2, 256, 64)) in found
    assert ("flex_attention_backward", "", (1, 2, 256, 64)) in found


def test_flash_attention_3_takes_the_same_lengths_twice() -> None:
    """Dynamo of torch 2.13 takes no tensor twice for a function with a backward of its own."""
    from planner.paper.outside.flash_attention_3 import flash_attn_varlen_func

    def attend(q: torch.Tensor, lengths: torch.Tensor) -> Any:
        return flash_attn_varlen_func(q, q.clone(), q + 1, lengths, lengths, 64, 64, causal=True)

    with compiling() as (gpu, account):
        q = torch.randn(128, 2, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        lengths = torch.zeros(3, device="cuda", dtype=torch.int32)
        found = origins(gpu, lambda: torch.compile(attend, fullgraph=True)(q, lengths).sum().backward())
    assert account.breaks() == ()
    assert ("paper_flash_attn_3.forward", "", (128, 2, 64)) in found


def test_padded_multiplications_are_said_to_be_assumed_also_from_the_cache() -> None:
    def multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b

    for _ in range(2):
        with compiling() as (gpu, account):
            a, b = (torch.randn(2047, 2047, device="cuda", dtype=torch.bfloat16) for _ in range(2))
            found = origins(gpu, lambda a=a, b=b: torch.compile(multiply)(a, b))
            assert [sentence for sentence in account.assumed() if "padded" in sentence]
        assert any(2048 in shape for _, _, shape in found)


@pytest.mark.parametrize(
    ("rows", "inner", "columns", "is_transposed", "is_padded"),
    [
        (2047, 2048, 2048, False, False),
        (2048, 2047, 2048, True, False),  # the gradient of a weight over 2,047 tokens
        (2048, 2047, 2048, False, True),
        (2048, 2048, 2047, False, True),
        (2047, 2048, 2048, True, True),
        (2047, 2048, 512, True, False),  # of an output's weight in a narrow model: transposing would take longer
    ],
)
def test_rows_that_are_not_whole_vectors_are_padded_where_that_pays(
    rows: int, inner: int, columns: int, is_transposed: bool, is_padded: bool
) -> None:
    with compiling() as (gpu, account):
        shape = (inner, rows) if is_transposed else (rows, inner)
        a = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        b = torch.randn(inner, columns, device="cuda", dtype=torch.bfloat16)
        multiply = torch.compile(lambda a, b: (a.t() if is_transposed else a) @ b)
        found = [shape for op, _, shape in origins(gpu, lambda: multiply(a, b)) if shape and op != TIMING]
        assert any("padded" in sentence for sentence in account.assumed()) == is_padded
    assert (len(found) > 1) == is_padded, found


def test_a_transposed_matrix_is_copied_to_be_padded_where_memory_is_fast_beside_products(tmp_path: Path) -> None:
    matrices = "[torch.randn(2048, width, device='cuda', dtype=torch.bfloat16) for width in (2047, 512)]"

    first, _, assumed = compiled_on("sm_120", tmp_path, "lambda a, b: a.t() @ b", matrices)

    assert any("padded" in sentence for sentence in assumed)
    assert len([shape for _, shape, _ in first if shape]) > 1, first


def test_the_kernel_that_would_win_is_said_to_be_assumed() -> None:
    with compiling() as (_, account):
        a = torch.randn(512, 512, device="cuda")
        torch.compile(torch.mm, mode="max-autotune-no-cudagraphs")(a, a)
        assert [sentence for sentence in account.assumed() if "of several kernels" in sentence]


def test_multiplications_of_eight_bits_are_those_of_cublaslt_eager_and_compiled() -> None:
    """Their workspace is cuBLAS's (torch 2.13, aten/src/ATen/cuda/CUDABlas.cpp: CublasLtWorkspace), taken once."""

    def multiply(a: torch.Tensor, b: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        eight = [each.to(torch.float8_e4m3fn) for each in (a, b)]
        return torch._scaled_mm(eight[0], eight[1].t(), scale, scale, out_dtype=torch.bfloat16)

    with compiling() as (gpu, _):
        a, b = (torch.randn(rows, 512, device="cuda") for rows in (256, 1024))
        scale = torch.ones((), device="cuda")
        eager, fused = (
            [(each.requested_bytes, each.origin.op, each.origin.dtype) for each in allocated(gpu, run) if each.origin]
            for run in (lambda: multiply(a, b, scale), lambda: torch.compile(multiply)(a, b, scale))
        )
    result = (256 * 1024 * 2, "aten._scaled_mm", "bfloat16")
    assert [each for each in eager if "_scaled_mm" in each[1]] == [result]
    assert [each[0] for each in eager if each[1] == "cublas.workspace"] == [32 << 20]
    assert result in fused
    assert [each[0] for each in fused if each[2] == "float8_e4m3fn"] == [256 * 512, 1024 * 512]


@pytest.mark.skipif(not torch_releases.since(2, 7), reason="torch 2.6 gives two nodes of the whole backward one name")
def test_a_backward_compiled_as_a_whole_leaves_the_same_gradients() -> None:
    """It is one graph more, and what a compiled block's backward gave to the next one's is within it."""

    def of_backward(around: AbstractContextManager[Any]) -> tuple[int, list[int]]:
        layers = [nn.Linear(64, 64).cuda() for _ in range(3)]
        forward = [torch.compile(each) for each in layers]
        with around:
            x = torch.randn(4, 64, device="cuda")
            for each in forward:
                x = each(x).sin()
            x.sum().backward()
        return account.graphs(), [each.grad.numel() for layer in layers for each in layer.parameters()]

    with compiling() as (_, account):
        apart, some = of_backward(nullcontext())
    with compiling() as (_, account):
        whole, same = of_backward(compiled_autograd._enable(torch.compile))
    assert whole == apart + 1
    assert some == same


def test_distributed_data_parallel_splits_the_graph_at_its_buckets() -> None:
    """Of one graph each bucket's part is compiled for itself, and frees and allocates for itself."""
    base = job("model")
    wide = replace(base.model, decoder=replace(_DECODER, layers=1, hidden=256, ffn=640))
    eight = replace(base, model=wide, cluster=replace(base.cluster, gpus_per_node=8))

    def bucketed(megabytes: float) -> int:
        replicas = DpReplicate(degree=8, bucket_cap_mb=megabytes)
        events = trace(replace(eight, parallel=Parallel(dp_replicate=replicas))).events
        origins = [each.origin for each in events if isinstance(each, Alloc) and each.origin is not None]
        return sum(bool(origin.module) and origin.op != TIMING for origin in origins)

    assert bucketed(2) > bucketed(1000)


@pytest.mark.skipif(not torch_releases.since(2, 7), reason="with torch 2.6 every part is compiled")
def test_parts_that_are_equal_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is allocated, and when, is what it is where each is compiled; on the way back they come in other turns."""
    monkeypatch.setenv("PLANNER_CACHE", "none")
    compiled_parts: list[object] = []
    real = SubmodCompiler.compile_submod

    def counted(self: SubmodCompiler, *arguments: Any) -> Any:
        compiled_parts.append(arguments)
        return real(self, *arguments)

    monkeypatch.setattr(SubmodCompiler, "compile_submod", counted)
    replicated = replace(
        job("model"),
        model=Model(factory="layers_in_turn:InTurn", factory_path=_PROGRAMS),
        train=Train(
            compile=Compile(scope=("model",)), inputs={"x": Input(shape=(520,))}, micro_batch_size=16,
            loss=Loss(name="sum"), iterations=2,
        ),
        parallel=Parallel(dp_replicate=DpReplicate(degree=8, bucket_cap_mb=1)),
        cluster=Cluster(gpu=_GPU, gpus_per_node=8),
    )  # fmt: skip

    def planned() -> tuple[list[Event], int]:
        compiled_parts.clear()
        events = trace(replicated).events
        told = (each for each in events if not isinstance(each, Launch))  # compiling is one, of the host
        bare = [replace(each, origin=None) if isinstance(each, Alloc) else each for each in told]
        return bare, len(compiled_parts)

    once, few = planned()
    monkeypatch.setattr(patches, "_content", lambda *_: None)
    each_time, many = planned()
    assert once == each_time
    assert (few, many) == (4, 9)


@pytest.mark.parametrize(
    ("parallel", "steps"), [(Parallel(pp=Pp(degree=2)), 4), (Parallel(cp=Cp(degree=2)), 1)], ids=["pp", "cp"]
)
def test_blocks_are_compiled_beside_stages_and_split_sequences(parallel: Parallel, steps: int) -> None:
    """A block allocates less often, and under the names of an eager one."""
    compiled_ = job("blocks")
    there = replace(
        compiled_,
        train=replace(compiled_.train, gradient_accumulation_steps=steps, sequence_length=256),
        parallel=parallel,
        cluster=replace(compiled_.cluster, gpus_per_node=2),
    )
    eager, fused = (
        [each.origin for each in trace(each).events if isinstance(each, Alloc) and each.origin and each.origin.module]
        for each in (replace(there, train=replace(there.train, compile=None)), there)
    )
    assert len(fused) < len(eager)
    assert "layers.0.ffn.gate" in {each.module for each in fused} <= {each.module for each in eager}


DYNAMO_SAYS = {"breaking": "Call to `torch._dynamo.graph_break()`", "reading": "Data-dependent branching"}
if not torch_releases.since(2, 7):
    DYNAMO_SAYS = {
        "breaking": f"'skip function graph_break in file {torch._dynamo.decorators.__file__}'",
        "reading": "Dynamic control flow is not supported at the moment. Please use "
        "functorch.experimental.control_flow.cond to explicitly capture the control flow. For more information about "
        "this error, see: https://pytorch.org/docs/main/generated/exportdb/index.html#cond-operands",
    }
REFUSED = {
    "Breaking": """\
train.compile: the step cannot be compiled at breaking_model.py:25 in Breaking: Unsupported: {breaking}
  allowed: a step that Dynamo captures and Inductor compiles
  change:  compile the step on a real device first; where the graph breaks, leave fullgraph out; if it compiles there, \
planner lacks something: report this line""",
    "Calling": """\
train.compile: the operator planner_test::unknown has no fake implementation, which compiling asks for at \
breaking_model.py:33 in Calling
  allowed: operators that say of which shape and dtype their results are
  change:  write one for it: @torch.library.register_fake("planner_test::unknown")""",
    "Reading": """\
train.compile: the compiled step reads a value of a device tensor at breaking_model.py:41 in Reading: {reading}
  allowed: control flow that does not depend on values of device tensors
  change:  keep such decisions on the host, or use torch.where or torch.cond""",
}


def of_model(name: str, *, fullgraph: bool = False) -> Job:
    return replace(
        job("model"),
        model=Model(factory=f"breaking_model:{name}", factory_path=_PROGRAMS),
        train=Train(
            compile=Compile(scope=("model",), arguments={"fullgraph": fullgraph}),
            inputs={"x": Input(shape=(8,))},
            loss=Loss(name="sum"),
        ),
    )


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_compiled_whole_is_an_error_that_names_it(name: str) -> None:
    with pytest.raises(TraceError) as refused:
        trace(of_model(name, fullgraph=True))
    assert str(refused.value) == REFUSED[name].format(**DYNAMO_SAYS)


def test_a_step_of_which_nothing_is_captured_is_never_planned_eagerly() -> None:
    with pytest.raises(TraceError) as refused:
        trace(of_model("Breaking"))
    assert (
        str(refused.value)
        == """\
train.compile: torch.compile captured nothing of the step (model)
  allowed: a step of which Dynamo captures graphs
  change:  delete it to plan the eager step"""
    )


def test_a_model_that_compiles_by_itself_is_compiled_whatever_the_job_says() -> None:
    by_itself = of_model("CompilingItself")
    traced = trace(replace(by_itself, train=replace(by_itself.train, compile=None)))

    assert any(kernel.op.startswith("inductor") for kernel in traced.work.kernels), {k.op for k in traced.work.kernels}


def test_a_function_compiled_too_often_is_an_error() -> None:
    def scale_many() -> None:
        scale = torch.compile(lambda x, by: x * by, dynamic=False)
        for size in range(2, 20):
            scale(torch.randn(size, size + 1, device="cuda"), size)

    with compiling(), pytest.raises(Exception, match=r"recompile_limit|cache_size_limit"):
        scale_many()


def test_compiling_that_takes_too_long_ends_with_an_error_that_says_so() -> None:
    with (
        pytest.raises(TraceError) as ended,
        paper.gpu("sm_90") as gpu,
        compiled.enable(gpu.recorder, seconds=0.01),
    ):
        torch.compile(lambda x: x.sin() + x.cos())(torch.randn(4, device="cuda"))
    assert str(ended.value).splitlines() == [
        "train.compile: compiling took more than 0.01 s",
        "  allowed: at most 0.01 s for one step",
        "  change:  compile the blocks instead of the model (equal ones are compiled once), or delete it to plan the"
        " eager step",
    ]


def test_afterwards_torch_is_as_it_was() -> None:
    from torch._inductor.codegen import common

    common.init_backend_registration()
    before = dict(common.device_codegens)
    with compiling():
        torch.compile(torch.sin)(torch.randn(4, device="cuda"))
        assert common.device_codegens != before
    assert common.device_codegens == before


KEY = """
import sys

from planner import paper
from planner.paper import compiled
import torch

with paper.gpu(sys.argv[1]), compiled.enable():
    print(torch.compiler.config.cache_key_tag)
"""


def test_code_for_one_gpu_is_not_taken_from_the_cache_for_another_of_no_name() -> None:
    whole, part = (printed_on(arch, KEY, arch) for arch in ("sm_90", "sm_90/16"))

    assert whole != part
