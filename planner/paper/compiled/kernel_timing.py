"""What Inductor takes to time its kernels: of several configurations each is run where the kernel is first launched.

Where its cache is empty, as in a first run in a new container, everything is timed; where it is filled, nothing. Nobody
says which of the two a run will be, so that what timing takes is recorded as an operator's that can be left out
(`planner.events.TIMING`), but where the job has switched its cache off (TORCHINDUCTOR_FORCE_DISABLE_CACHES).
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch._inductor.config
from torch import Tensor
from torch._guards import CompileContext

from planner.events import TIMING
from planner.paper import work_records
from planner.paper.compiled.patches import ASSUMED, assume
from planner.paper.outside.operators import TRITON_BUFFER_BYTES, benchmark, record_operator

_UNREAD = "the kernel {kernel} is launched without being timed: its configurations cannot be read ({error})"


def _run_configurations(tuner: Any, *arguments: Any, **options: Any) -> None:
    """Torch's `CachingAutotuner` of a kernel times all configurations, with what the kernel is launched with."""
    tuner.launchers = [_Launcher(config) for config in tuner.configs]
    options.pop("stream", None)
    with work_records.part_of_a_launch(), recorded_as_timing():
        tuner.benchmark_all_configs(*arguments, **options)


def recorded_as_timing() -> AbstractContextManager[None]:
    """Inside, what is allocated is what a first run with an empty cache takes besides."""
    is_sure = torch._inductor.config.force_disable_caches
    return nullcontext() if is_sure else record_operator(TIMING.replace(".", "::"))


def untimed_kernel(name: str, source: str) -> Callable[..., None] | None:
    """What times a kernel at its first launch, by the heuristics above it in Inductor's code; None where they list one
    configuration, which is not timed (torch/_inductor/runtime/triton_heuristics.py)."""
    from torch._inductor.runtime import hints, triton_heuristics

    functions = (node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))
    listed = ((each, by) for each in functions for by in each.decorator_list if isinstance(by, ast.Call))
    kernel, heuristics = next(listed, (None, None))  # its helpers, which stand before it, have none
    if kernel is None or heuristics is None:
        return None
    names = {**vars(triton_heuristics), **vars(hints), "triton_heuristics": triton_heuristics, "__file__": f"{name}.py"}
    try:
        tuner = eval(ast.unparse(heuristics), {**names, "AttrsDescriptor": _Alignment})(_describe_kernel(kernel))
    except Exception as error:  # of heuristics that are not those read; the plan lacks no more than a buffer
        ASSUMED.add(_UNREAD.format(kernel=name, error=f"{type(error).__name__}: {error}"))
        return None
    return partial(_run_configurations, tuner) if len(tuner.configs) > 1 else None


def _describe_kernel(definition: ast.FunctionDef) -> Any:
    """What the tuner reads of `triton.JITFunction`: its name, and its arguments in order."""
    parameters = [argument.arg for argument in definition.args.args]
    scope: dict[str, Any] = {}
    exec(f"def {definition.name}({', '.join(parameters)}): ...", scope)
    return SimpleNamespace(fn=scope[definition.name], arg_names=parameters, __name__=definition.name)


class _Alignment:
    """Triton's `AttrsDescriptor`: which arguments are divisible by 16; decides nothing here."""

    def __init__(self, *_arguments: Any, **_options: Any) -> None: ...

    @classmethod
    def from_dict(cls, _content: Any) -> _Alignment:
        return cls()


class _Launcher:
    """A compiled configuration, which launches nothing."""

    n_regs = n_spills = shared = 0
    cache_hash = ""

    def __init__(self, config: Any) -> None:
        self.config = config

    def __call__(self, *_arguments: Any, **_options: Any) -> None: ...


def benchmark_gpu(benchmarker: Any, call: Callable[[], Any], **_settings: Any) -> float:
    """In place of the method of `TritonBenchmarker` and `InductorBenchmarker` (torch 2.13,
    torch/_inductor/runtime/benchmarking.py), of which the second's buffer is as large as the GPU's L2 cache."""
    by_cache = hasattr(type(benchmarker), "L2_cache_size")
    buffer_bytes = torch.cuda.get_device_properties().L2_cache_size if by_cache else TRITON_BUFFER_BYTES
    return benchmark(call, buffer_bytes, "inductor::benchmark")


# Whether a product of matrices is padded: a rule in place of timing it both ways, and what the timing takes.
Product = tuple[str, tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""What torch calls a product that it has timed; bytes of what it holds meanwhile (random matrices of the same form),
of what the product allocates as it is, and padded."""

_PADDED = (
    "matrix multiplications with rows of no multiple of 16 bytes are faster padded, but where a large transposed "
    "matrix would be copied for it"
)
_VECTOR_BYTES = 16
"""What cuBLAS's kernels for tensor cores ask of every row that is read or written (its documentation, 2.1.11 "Tensor
Core Usage"): without that, and only then, copies with longer rows pay."""
_USES_THAT_PAY = {9: 1100, 10: 1100, 12: 450}
_OTHER_USES_THAT_PAY = 600
"""Of each element of a transposed matrix, so that its padded copy pays, by the major number of the capability; a
contiguous one is written padded by what computes it. Estimates for bfloat16 by the data sheets of an H100 (989 TFLOP/s,
3.35 TB/s), to which a B200 is alike, of a GeForce RTX 5090 (210, 1.79) and of an A100 (312, 2.04): a use saves two
operations at a quarter of the speed instead of 60 %, filling the copy costs 2 bytes, transposing into it 4 at a quarter
of the bandwidth."""

_asked: list[str] = []
_by_compilation: defaultdict[object, dict[Product, None]] = defaultdict(dict)
_timed: set[str] = set()


def forget_timings() -> None:
    """As in a process that has compiled nothing."""
    _by_compilation.clear()
    _timed.clear()


def untimed_products() -> list[Product]:
    """What torch would have timed for the code that is written now."""
    return list(_by_compilation[CompileContext.current_compile_id()])


def cached_decision(key: str) -> bool:
    """In place of `get_cached_should_pad` (torch 2.13, torch/_inductor/fx_passes/pad_mm.py): torch asks for what it
    timed before where it would time a product now, one that the GPU is bound by computing."""
    _asked.append(key)
    return True


def decide_by_rule(real: Callable[..., bool]) -> Callable[..., bool]:
    """`_should_pad` (torch 2.13, the same file; before 2.11 `_should_pad_bench`), and a rule where it would time."""

    def should_pad(match: Any, mat1: Tensor, mat2: Tensor, op: Any, input: Tensor | None = None) -> bool:
        _asked.clear()
        decided = real(match, mat1, mat2, op, input)
        if not _asked:
            return decided
        product = _product(_asked.pop(), match, mat1, mat2, input)
        if product is not None:
            _by_compilation[CompileContext.current_compile_id()][product] = None
        is_faster = _is_faster_padded(mat1, mat2)
        if is_faster:
            assume(_PADDED)
        return is_faster

    return should_pad


def take_timings(products: Sequence[Product]) -> None:
    """Allocates what the timing of these products takes, of each once: before the code that has them runs."""
    from torch._inductor.runtime.benchmarking import benchmarker

    for key, held, plain, padded in products:
        if key not in _timed:
            _timed.add(key)
            with recorded_as_timing():
                operands = _allocated(held)
                for sizes in (plain, padded):
                    benchmarker.benchmark_gpu(partial(_allocated, sizes))
                del operands


def _allocated(sizes: Sequence[int]) -> list[Tensor]:
    with record_operator("inductor::pad_mm"):
        return [torch.empty(size, dtype=torch.uint8, device="cuda") for size in sizes]


def _product(key: str, match: Any, mat1: Tensor, mat2: Tensor, bias: Tensor | None) -> Product | None:
    """None where a size is not known before the code runs."""
    from torch._inductor.fx_passes import pad_mm

    sizes = (*mat1.shape, *mat2.shape, *mat1.stride(), *mat2.stride())
    if any(type(size) is not int for size in sizes):
        return None
    batch, (m, k), n = mat1.shape[:-2].numel(), mat1.shape[-2:], mat2.shape[-1]
    more_m, more_k = (pad_mm.get_padded_length(size, pad_mm.get_alignment_size(mat1)) for size in (m, k))
    more_n = pad_mm.get_padded_length(n, pad_mm.get_alignment_size(mat2))
    element = batch * mat1.element_size()
    padded: list[int] = []
    held = [_extent_bytes(mat1), _extent_bytes(mat2), *([] if bias is None else 2 * [_extent_bytes(bias)])]
    m_padded, k_padded, n_padded = m + more_m, k + more_k, n + more_n
    copies = ("mat1", more_m or more_k, m_padded * k_padded), ("mat2", more_k or more_n, k_padded * n_padded)
    for name, is_copied, elements in copies:
        if is_copied:
            (held if pad_mm.should_exclude_padding_time(match, name) else padded).append(elements * element)
    return key, tuple(held), (m * n * element,), (*padded, m_padded * n_padded * element)


def _extent_bytes(tensor: Tensor) -> int:
    """From its first element to its last."""
    return (sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1) * (
        tensor.element_size()
    )


def _is_faster_padded(mat1: Tensor, mat2: Tensor) -> bool:
    lengths = [mat2.shape[-1]]  # of the result, whose rows are contiguous
    for matrix in (mat1, mat2):
        for size, stride in zip(matrix.shape[-2:], matrix.stride()[-2:], strict=True):
            lengths.append(size if stride == 1 else stride)
    enough = _USES_THAT_PAY.get(torch.cuda.get_device_capability()[0], _OTHER_USES_THAT_PAY)
    uses = ((mat1, mat2.shape[-1]), (mat2, mat1.shape[-2]))
    return any(_is_uneven(length, mat1) for length in lengths) and not any(
        count < enough and not matrix.is_contiguous() and any(_is_uneven(size, matrix) for size in matrix.shape[-2:])
        for matrix, count in uses
    )


def _is_uneven(length: Any, matrix: Tensor) -> bool:
    return isinstance(length, int) and bool(length * matrix.element_size() % _VECTOR_BYTES)
