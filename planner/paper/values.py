"""Reading values from a device that has none: a table of call sites whose answer is known, and errors for the rest.

An answer never follows from a dtype alone. Reading something else is an error that names module and operator.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from math import comb, prod
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from planner.errors import TraceError
from planner.paper import library, native_records
from planner.upstream import checking

Value = float | int | bool

_OVERFLOW = "no gradient overflowed"
_KNOWN: tuple[tuple[str, str, Value, str], ...] = (
    ("torch.amp.grad_scaler", "_maybe_opt_step", 0.0, "found_inf: no gradient overflowed"),
    ("torch.amp.grad_scaler", "_get_scale_async", 65536.0, "the initial scale"),
    ("torch.amp.grad_scaler", "get_scale", 65536.0, "the initial scale"),
    ("torch.amp.grad_scaler", "update", 0.0, "found_inf: no gradient overflowed"),
    ("torch.nn.utils.clip_grad", "clip_grad_norm_", False, "error_if_nonfinite: the norm is finite"),
    ("transformers.masking_utils", "find_packed_sequence_indices", True,
     "positions count up by one: no sequences are packed"),
    ("transformers.masking_utils", "*", True, "a padding mask of ones: nothing is padded"),
    ("transformers.utils.import_utils", "torch_compilable_check", True,
     "the inputs of a healthy step pass the model's own checks"),
    ("torch.nn.init", "_no_grad_trunc_normal_", False,
     "the first draw lies within the bounds: they are many deviations wide"),
    ("transformers.modeling_utils", "warn_if_padding_and_no_attention_mask", False, "decides about a warning only"),
    ("torch.nn.modules.batchnorm", "forward", 1, "batches tracked: only a factor comes of it"),
    ("torch.nn.functional", "ctc_loss", 1, "targets on the host, for cuDNN: any label does"),
    ("torch.nn.functional", "gaussian_nll_loss", False, "no variance is negative"),
    ("torch.distributions.distribution", "__init__", True, "parameters are those of a distribution"),
    ("torch.distributions.distribution", "_validate_sample", True, "samples are those of the distribution"),
    ("torch._tensor", "__format__", 0, "a number in the text of a message"),
    ("deepspeed.runtime.utils", "is_invalid_grad_norm", False, "the norm is finite"),
    ("deepspeed.runtime.zero.utils", "defragment", 0.0, "a partition of one element, moved"),
    ("deepspeed.runtime.zero.*", "has_overflow", 0, _OVERFLOW),
    ("deepspeed.runtime.zero.*", "update_offload_overflow_tracker", False, _OVERFLOW),
    ("deepspeed.runtime.zero.*", "complete_grad_norm_calculation_for_cpu_offload", 1.0,
     "a norm that is finite: how large it is decides about a factor only"),
    ("megatron.core.optimizer.*", "_unscale_main_grads_and_check_for_nan", 0.0, f"found_inf: {_OVERFLOW}"),
    ("torch.optim.*", "*", 1.0, "a step counter or a norm: any finite number does"),
    ("torch.distributed.algorithms.ddp_comm_hooks.*", "*", 1.0, "a norm that is not zero"),
)  # fmt: skip
"""Functions of libraries that read a value, by module and name; what they would read in a healthy step, and why."""

_UNSEEN = ("planner.paper", "planner.tracing.program")
"""Whose frames stand between a program and what it reads."""

_MOVERS = (
    ("torch.autograd.graph", "pack_to_cpu"),
    ("torch.nn.modules.module", "_apply"),
    ("torch.distributed.checkpoint*", "*"),
    ("torch.distributed._state_dict_utils", "*"),
    ("torch.distributed.fsdp*", "*"),
    ("deepspeed.checkpoint*", "*"),
    ("deepspeed.runtime*", "*"),
    ("accelerate.big_modeling", "*"),
    ("accelerate.hooks", "*"),
    ("accelerate.utils.fsdp_utils", "*"),
    ("accelerate.utils.modeling", "*"),
    ("accelerate.utils.offload", "*"),
    ("peft.utils.save_and_load", "*"),
    ("planner.training.host", "*"),
    ("planner.training.loop", "_take_to_host"),
    ("safetensors.torch", "*"),
    ("transformers.cache_utils", "*"),
    ("transformers.modeling_utils", "save_pretrained"),
    ("torchao.optim.cpu_offload", "*"),
    ("torchtune.training.*", "*"),
)
"""Functions that move tensors to the host and look at none of their values: offloads, checkpoints, `Module.to`."""

_PHASES = "the loss does not depend on the phases of eigenvectors, which are arbitrary"
_NODES: dict[str, tuple[Value, str]] = {
    "CumprodBackward0": (False, "no factor is zero"),
    "ProdBackward0": (0, "no factor is zero"),
    "ProdBackward1": (0, "no factor is zero"),
    "LinalgEigBackward0": (True, _PHASES),
    "LinalgEighBackward0": (True, _PHASES),
    "LinalgSvdBackward0": (True, _PHASES),
    "TraceBackward0": (1.0, "a gradient that becomes a matrix's diagonal: any number does"),
}
"""Autograd nodes whose backward reads a value in C++; what it would read in a healthy training step, and why."""

_KERNELS: dict[str, tuple[Value, str]] = {
    "aten.normal": (True, "no deviation is negative"),
    "aten.linalg_eig": (True, "every number is finite"),
    "aten._linalg_eigvals": (True, "every number is finite"),
    "aten._linalg_svd": (0, "the decomposition converges"),
    "aten.searchsorted": (0, "the places of the sorter lie within its rows"),
    "aten.segment_reduce": (True, "lengths lie within the data"),
}
"""Operators whose kernels read what they have made meanwhile; what, in a healthy step, and why."""

_MOST = "the most that there can be: how many there are depends on values"


class Reader(Protocol):
    """Answers for a program what the table does not know, and hears what the table answered."""

    def note(self, tensor: Tensor, frames: Sequence[FrameType], answer: Value, why: str) -> None:
        """The table has answered a read from these frames, innermost first."""

    def answer(self, tensor: Tensor, frames: Sequence[FrameType]) -> Value | None:
        """What a read is answered that is not in the table; None: it is refused."""

    def copy(self, tensor: Tensor, frames: Sequence[FrameType], mover: str) -> bool:
        """Several floats, or whatever the module `mover` moves, are zeros on the host; False: that is refused."""

    def assume(self, why: str, frames: Sequence[FrameType]) -> bool:
        """Values are taken to be distributed as `why` says; False: they are not known."""

    def count(self, tensor: Tensor, frames: Sequence[FrameType], most: int, what: str, why: str) -> int | None:
        """How many there are (`what`: places selected, distinct values, bins), where a size follows from it: at most so
        many, and `why`; None: it is refused."""


_reader: Reader | None = None


@contextmanager
def read_by(reader: Reader | None) -> Iterator[None]:
    """Inside, `reader` answers what the table of call sites does not, and values that came from the host are followed
    through operators; with None neither is done."""
    global _reader
    before, _reader = _reader, reader
    torch.ops.paper.follow_values(reader is not None)
    try:
        yield
    finally:
        _reader = before
        torch.ops.paper.follow_values(before is not None)


def read(tensor: Tensor) -> Value:
    """The answer for the nearest call site in the table; TraceError names the reader if there is none."""
    frames = _frames(inspect.currentframe())
    for frame in _within_closure(frames):
        if _chosen_experts(frame) is not None:  # the loop over experts asks of each whether it is one
            return _note(tensor, frames, False, "an expert that is one: only ranks with a part of them meet others")
        if (known := _known_answer(frame)) is not None:
            return _note(tensor, frames, *known)
    known = _answer_of_composite(tensor) or _NODES.get(node_name()) or _KERNELS.get(native_records.kernel_at_work())
    if known is not None:
        return _note(tensor, frames, *known)
    answer = None if _reader is None else _reader.answer(tensor, frames)
    if answer is None:
        raise _make_unanswered_error(frames, f"a value of {_describe_tensor(tensor)}")
    return answer


def known_truth(tensor: Tensor) -> bool | None:
    """What a check in C++ compares with true (`at::is_scalar_tensor_true`), where the operator at work is known."""
    known = _answer_of_composite(tensor)
    return None if known is None else bool(_note(tensor, _frames(inspect.currentframe()), *known))


def _note(tensor: Tensor, frames: Sequence[FrameType], answer: Value, why: str) -> Value:
    if _reader is not None:
        _reader.note(tensor, frames, answer, why)
    return answer


def copy_to_host(host: Tensor, device: Tensor) -> None:
    """Several floats are zeros on the host, which a program's reader hears of; single values and whole numbers are read
    by somebody, unless a library only moves them."""
    several_floats = host.numel() > 1 and (host.is_floating_point() or host.is_complex())
    if several_floats and _reader is None:
        return  # what a spec's step offloads is its own
    frames = _frames(inspect.currentframe())
    what = f"the values of {_describe_tensor(device)}"
    if several_floats:
        if _reader is not None and not _reader.copy(device, frames, _mover(frames)):
            raise _make_unanswered_error(frames, what)
        return
    if any(_module(frame).startswith("torch.nn.parallel.distributed") for frame in frames):
        return  # the reducer agrees on rebuilt buckets: the host's own numbers are the answer
    for frame in _within_closure(frames):
        if (numbers := _expert_numbers(frame, host.numel())) is not None:
            host.copy_(numbers.view(host.shape))
            torch.ops.paper.remember_value(device, host)  # the backward reads it again, where no frame says for whom
            _note(device, frames, int(numbers.flatten()[0]), "tokens of experts, as routed or evenly")
            return
        if (known := _known_answer(frame)) is not None:
            host.fill_(_note(device, frames, *known))
            return
    if (known := _KERNELS.get(native_records.kernel_at_work())) is not None:
        host.fill_(_note(device, frames, *known))
        return
    answer = None if _reader is None else _reader.answer(device, frames)
    if answer is None and (mover := _mover(frames)):
        if _reader is not None:
            _reader.copy(device, frames, mover)
        _write_zeros(host)
        return
    if answer is None:
        raise _make_unanswered_error(frames, what)
    host.fill_(answer)


def _write_zeros(host: Tensor) -> None:
    """Large memory of its own takes no page for them."""
    storage = host.untyped_storage()
    if host.nbytes == storage.nbytes():
        library.load().paper_write_zeros(storage._cdata)
    else:
        host.zero_()


def count_nonzero(operator: str, tensor: Tensor) -> int:
    """How many values are not zero, where the autograd node or the operator at work is in a table; else as `count`."""
    if (known := _NODES.get(node_name())) is not None:
        return int(_note(tensor, _frames(inspect.currentframe()), *known))
    entered = _entered.get()
    if entered is not None and entered[0].count is not None:
        composite, arguments, named = entered
        return composite.count(*arguments, **named)  # type: ignore[misc]
    if (among := torch.ops.paper.places(tensor)) > 1 and tensor.dtype is torch.bool:
        each = -(-tensor.numel() // among)
        return count(operator, tensor, each, "places selected", f"each value is one of {among:,}, evenly")
    return count(operator, tensor, tensor.numel(), "places selected")


def count(operator: str, tensor: Tensor, most: int, what: str, why: str = _MOST) -> int:
    """How large a result is whose size depends on values, of a program as its reader says: at most `most`.

    Raises TraceError where nobody knows.
    """
    answer = None if _reader is None else _reader.count(tensor, _frames(inspect.currentframe()), most, what, why)
    if answer is None:
        refuse_size(operator, tensor)
    return answer


def may_assume(why: str) -> bool:
    """Whether the reader of a program lets values be drawn that nobody has."""
    return _reader is not None and _reader.assume(why, _frames(inspect.currentframe()))


def node_name() -> str:
    """The autograd node whose backward this thread runs; empty outside a backward."""
    node = torch._C._current_autograd_node()
    return "" if node is None else str(node.name())


def places_of_nonzero(tensor: Tensor) -> Tensor | None:
    """Where values are not zero, or some places of the same number, where a mixture's rule says so; else None."""
    places = (_expert_places(frame, tensor) for frame in _frames(inspect.currentframe()))
    return next((place for place in places if place is not None), None)


def refuse_size(operator: str, tensor: Tensor, remedy: str = "") -> NoReturn:
    """TraceError for an operator whose result is as large as the values of the tensor say."""
    what = f"the size of a result of {operator}, which depends on the values of {_describe_tensor(tensor)}"
    raise _make_unanswered_error(_frames(inspect.currentframe()), what, remedy)


def _frames(frame: FrameType | None) -> list[FrameType]:
    frames = []
    while frame is not None:
        if not _module(frame).startswith(_UNSEEN):
            frames.append(frame)
        frame = frame.f_back
    return frames


def _within_closure(frames: Sequence[FrameType]) -> Iterator[FrameType]:
    """Up to the optimizer that a closure was handed to, as by Lightning: what the closure reads is not its own."""
    called: FrameType | None = None
    for frame in frames:
        if called is not None and _calls_closure(frame, called):
            return
        yield frame
        called = frame


def _calls_closure(frame: FrameType, called: FrameType) -> bool:
    if "closure" not in frame.f_code.co_varnames:  # asked of every frame of every read: locals are costly
        return False
    closure = frame.f_locals.get("closure")
    if closure is None or not isinstance(frame.f_locals.get("self"), Optimizer):
        return False
    package = _module(called).partition(".")[0]
    is_foreign = package not in ("torch", _module(frame).partition(".")[0])
    return is_foreign or getattr(closure, "__code__", None) is called.f_code


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _known_answer(frame: FrameType) -> tuple[Value, str] | None:
    return next((known[2:] for known in _KNOWN if _runs(frame, *known[:2])), None)


def _runs(frame: FrameType, module: str, function: str) -> bool:
    """Whether it is a frame of this function; `*` stands for any, also at the end of a module's name."""
    if function not in ("*", frame.f_code.co_name):
        return False
    running = _module(frame)
    return running.startswith(module[:-1]) if module.endswith("*") else running == module


def _mover(frames: Sequence[FrameType]) -> str:
    """The module, of those that move tensors, that copies here on its own account; empty for other code."""
    for frame in frames:
        if any(_runs(frame, *mover) for mover in _MOVERS):
            return _module(frame)
        if _module(frame).partition(".")[0] != "torch":
            return ""
    return ""


def _describe_tensor(tensor: Tensor) -> str:
    return f"a tensor of shape {tuple(tensor.shape)} and dtype {str(tensor.dtype).removeprefix('torch.')}"


def _make_unanswered_error(frames: list[FrameType], what: str, remedy: str = "") -> TraceError:
    reader = next((frame for frame in frames if not _module(frame).startswith("torch")), None)
    if reader is None:
        where = f"in {node_name() or 'torch itself'}"
    else:
        where = f"at {Path(reader.f_code.co_filename).name}:{reader.f_lineno} in {reader.f_code.co_qualname}"
    owners = (frame.f_locals.get("self") for frame in frames)
    owner = next((type(owner).__name__ for owner in owners if isinstance(owner, torch.nn.Module)), "")
    module = f" (module {owner})" if owner else ""
    return TraceError(
        f"the program reads {what} {where}{module}: planner does not compute values",
        allowed="control flow that does not depend on values of device tensors",
        remedy=remedy or "keep such decisions on the host, or plan this model with a variant that does not take them",
    )


# The step routes by the job's rule: it copies the experts of every token from the host, and values that came from the
# host are known. What transformers 5.23 counts from them on the device is counted here once more, at the few places
# where it comes back to the host or sizes a result (integrations/moe.py, distributed/expert_parallel.py, the `forward`
# of experts in models/*/modeling_*.py). In torchtitan's experts over ranks, each gets as many tokens as the others. A
# choice that is not known stays unanswered.
_MODELS, _MOE = "transformers.models.", "transformers.integrations.moe"
_PARALLEL = "transformers.distributed.expert_parallel"
_TORCHTITAN = "torchtitan.distributed.expert_parallel"


def _expert_numbers(frame: FrameType, wanted: int) -> Tensor | None:
    """The whole numbers that are copied to the host at this call site; None if it is none of those.

    Raises TraceError for experts of another transformers than those whose variables are known.
    """
    module, values = _module(frame), frame.f_locals
    if module == _MOE:
        checking.enforce("experts")
    if module == _MOE and "offs" in values:
        return _ends_of_shares(int(values["input"].size(0)), wanted)
    if module == _PARALLEL and "recv_counts" in values:
        # How many rows go to each rank and come from each; peers route as this rank does, and are as full.
        chosen, parallel = _read_known_value(values["top_k_index"]), values["self"]
        if chosen is None:
            return None
        ranks, own = parallel.ep_mesh.size(), parallel.ep_mesh.get_local_rank()
        sent = chosen.flatten().bincount(minlength=ranks * parallel.num_local_experts).view(ranks, -1).sum(1)
        return torch.stack([sent, sent[own].expand(ranks)])
    if module == _TORCHTITAN and "routed_input" in values:
        return equal_shares(int(values["routed_input"].size(0)), wanted)
    return None


def _expert_places(frame: FrameType, tensor: Tensor) -> Tensor | None:
    """The coordinates that `nonzero` finds in the loop over experts: those with tokens, then the tokens of each."""
    chosen = _chosen_experts(frame)
    if chosen is None:
        return None
    values = frame.f_locals
    if "expert_hit" not in values:
        hit: Tensor = chosen.unique().unsqueeze(1)
        return hit
    expert = _read_known_value(values["expert_idx"])
    return None if expert is None else torch.zeros(int((chosen == expert).sum()), tensor.dim(), dtype=torch.int64)


def _chosen_experts(frame: FrameType) -> Tensor | None:
    """What each token has chosen, in the loop over experts, where that is known."""
    if not _module(frame).startswith(_MODELS) or "expert_mask" not in frame.f_locals:
        return None
    return _read_known_value(frame.f_locals.get("top_k_index"))


def equal_shares(tokens: int, experts: int) -> Tensor:
    """How many each expert gets if all get the same: together they are the tokens."""
    return _ends_of_shares(tokens, experts).diff(prepend=torch.zeros(1, dtype=torch.int64))


def _ends_of_shares(tokens: int, experts: int) -> Tensor:
    """Where each expert's tokens end."""
    return torch.tensor([tokens * (expert + 1) // experts for expert in range(experts)])


def known_value(tensor: Tensor) -> Tensor | None:
    """Its values on the host, if they are known: a view of them, which may be written to."""
    if not tensor.is_cuda:
        return tensor
    found: Tensor | None = torch.ops.paper.known_value(tensor)
    return found


def _read_known_value(tensor: Any) -> Tensor | None:
    if not isinstance(tensor, Tensor) or not tensor.is_cuda:
        return None
    value: Tensor | None = torch.ops.paper.known_value(tensor)
    return value


# No frame says in C++ who reads. Such an operator is entered by name, and then runs torch's own code. Sources, torch
# 2.13: aten/src/ATen/native/Correlation.cpp, SpectralOps.cpp, Itertools.cpp, TensorCompare.cpp.
@dataclass(frozen=True, slots=True)
class Composite:
    """An operator (`cov`), what it reads by the operator that made the value (`aten.ge`; `*`: any), and how many values
    of a mask hold, from the operator's own arguments."""

    operator: str
    why: str
    answers: Mapping[str, Value] = field(default_factory=dict)
    count: Callable[..., int] | None = None
    is_result: bool = False
    """What is read is the result: a program's reader answers that, as it does for what the program reads itself."""
    follow: Callable[..., None] | None = None
    """In a program, called with the result and the arguments: records what is known of it."""


def _count_combinations(values: Tensor, r: int = 2, with_replacement: bool = False) -> int:
    return comb(values.numel() + r - 1, r) if with_replacement else comb(values.numel(), r)


def _count_scattered(_gradient: Tensor, mask: Tensor, sizes: Sequence[int]) -> int:
    return min(prod(sizes), mask.numel())


def _follow_closeness(close: Tensor, one: Tensor, other: Tensor, *tolerances: Any, **named: Any) -> None:
    """As an equality: what is known is compared, and what is not is close to no constant."""
    here, there = torch.ops.paper.constant_value(one), torch.ops.paper.constant_value(other)
    if here is not None and there is not None:
        torch.ops.paper.remember_value(close, torch.isclose(here, there, *tolerances, **named))
    elif here is not None or there is not None:
        torch.ops.paper.presume(close, False)


_COMPOSITES = (
    Composite(
        "cov",
        "no weight is negative, their sum is not zero, and there are more observations than the correction",
        {"aten.ge": True, "aten.ne": True, "aten.le": False},
    ),
    Composite("_linalg_check_errors", "no matrix is singular, and decompositions converge", {"*": False}),
    Composite("istft", "windows overlap without gaps", {"aten.lt": False}),
    Composite("combinations", "as many as there are, whatever the values", count=_count_combinations),
    Composite("masked_scatter_backward", "each scattered value has a place", count=_count_scattered),
    Composite("allclose", "a check of everything holds", {"aten.all": True}, is_result=True),
    Composite("isclose", "", follow=_follow_closeness),
)

_entered: ContextVar[tuple[Composite, tuple[Any, ...], Mapping[str, Any]] | None] = ContextVar("entered", default=None)
"""The operator at work on this thread, with its arguments."""


def _answer_of_composite(tensor: Tensor) -> tuple[Value, str] | None:
    """What the operator at work on this thread reads of the tensor, and why; None if none is or it is not known."""
    entered = _entered.get()
    if entered is None or (_reader is not None and entered[0].is_result):
        return None
    made_by = native_records.operator_of(tensor)
    answer = entered[0].answers.get(made_by, entered[0].answers.get("*"))
    return None if answer is None else (answer, entered[0].why)


@cache
def install_composites() -> torch.library.Library:
    """Enter the operators of the table by name, once for the process."""
    own, keys = torch.library.Library("aten", "IMPL"), torch._C.DispatchKey
    for composite in _COMPOSITES:
        operator = getattr(torch.ops.aten, composite.operator).default
        implicit = torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CompositeImplicitAutograd")
        key = keys.CompositeImplicitAutograd if implicit else keys.CompositeExplicitAutograd
        torch.ops.paper.runs_in_python(operator.name().partition(".")[0])
        # An implicit one is differentiated by what it calls: it is entered above autograd, and where there is none.
        for above in ("AutogradCUDA", "CUDA") if implicit else ("CUDA",):
            own.impl(composite.operator, _make_kernel(composite, operator, key), above)
    return own


def _make_kernel(composite: Composite, operator: Any, key: Any) -> Callable[..., Any]:
    def run(*arguments: Any, **named: Any) -> Any:
        before = _entered.set((composite, arguments, named))
        try:
            result = operator._op_dk(key, *arguments, **named)
        finally:
            _entered.reset(before)
        if composite.follow is not None and _reader is not None:
            composite.follow(result, *arguments, **named)
        return result

    return run
