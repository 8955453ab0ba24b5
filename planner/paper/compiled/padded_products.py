"""Whether Inductor pads a product of matrices: a rule in place of timing it both ways, and what the timing takes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._guards import CompileContext

from planner.paper.compiled.kernel_timing import recorded_as_timing
from planner.paper.compiled.patches import assume
from planner.paper.outside.operators import record_operator

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


def forget() -> None:
    """As in a process that has compiled nothing."""
    _by_compilation.clear()
    _timed.clear()


def current_compilation() -> list[Product]:
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
