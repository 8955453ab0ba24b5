"""Reading values from a device that has none: a table of call sites whose answer is known, and errors for the rest.

An answer never follows from a dtype alone. Whoever reads something else is told which module and operator it was.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from math import comb
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, Protocol

import torch

from planner.errors import TraceError
from planner.paper import native_records


@dataclass(frozen=True, slots=True)
class CallSite:
    """A function of a library that reads a value, and what it would read in a healthy training step."""

    module: str
    function: str
    answer: Callable[[torch.Tensor], float | int | bool]
    why: str


_KNOWN = (
    CallSite("torch.amp.grad_scaler", "_maybe_opt_step", lambda _: 0.0, "found_inf: no gradient overflowed"),
    CallSite("torch.amp.grad_scaler", "_get_scale_async", lambda _: 65536.0, "the initial scale"),
    CallSite("torch.amp.grad_scaler", "get_scale", lambda _: 65536.0, "the initial scale"),
    CallSite("torch.amp.grad_scaler", "update", lambda _: 0.0, "found_inf: no gradient overflowed"),
    CallSite("torch.nn.utils.clip_grad", "clip_grad_norm_", lambda _: False, "error_if_nonfinite: the norm is finite"),
    CallSite(
        "transformers.masking_utils",
        "find_packed_sequence_indices",
        lambda _: True,
        "positions count up by one: no sequences are packed",
    ),
    CallSite("transformers.masking_utils", "*", lambda _: True, "a padding mask of ones: nothing is padded"),
    CallSite(
        "transformers.utils.import_utils",
        "torch_compilable_check",
        lambda _: True,
        "the inputs of a healthy step pass the model's own checks",
    ),
    CallSite(
        "torch.nn.init",
        "_no_grad_trunc_normal_",
        lambda _: False,
        "the first draw lies within the bounds: they are many deviations wide",
    ),
    CallSite(
        "transformers.modeling_utils",
        "warn_if_padding_and_no_attention_mask",
        lambda _: False,
        "decides about a warning only",
    ),
    CallSite("torch.nn.modules.batchnorm", "forward", lambda _: 1, "batches tracked: only a factor comes of it"),
    CallSite("torch.nn.functional", "ctc_loss", lambda _: 1, "targets on the host, for cuDNN: any label does"),
    CallSite("torch.nn.functional", "gaussian_nll_loss", lambda _: False, "no variance is negative"),
    CallSite("torch._tensor", "__format__", lambda _: 0, "a number in the text of a message"),
    CallSite("deepspeed.runtime.utils", "is_invalid_grad_norm", lambda _: False, "the norm is finite"),
    CallSite("deepspeed.runtime.zero.utils", "defragment", lambda _: 0.0, "a partition of one element, moved"),
    CallSite("deepspeed.runtime.zero.*", "has_overflow", lambda _: 0, "no gradient overflowed"),
    CallSite("deepspeed.runtime.zero.*", "update_offload_overflow_tracker", lambda _: False, "no gradient overflowed"),
    CallSite(
        "deepspeed.runtime.zero.*",
        "complete_grad_norm_calculation_for_cpu_offload",
        lambda _: 1.0,
        "a norm that is finite: how large it is decides about a factor only",
    ),
    CallSite("torch.optim.*", "*", lambda _: 1.0, "a step counter or a norm: any finite number does"),
    CallSite("torch.distributed.algorithms.ddp_comm_hooks.*", "*", lambda _: 1.0, "a norm that is not zero"),
)

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
    ("safetensors.torch", "*"),
    ("transformers.cache_utils", "*"),
    ("transformers.modeling_utils", "save_pretrained"),
    ("torchao.optim.cpu_offload", "*"),
    ("torchtune.training.*", "*"),
)
"""Functions that move tensors to the host and look at none of their values: offloads, checkpoints, `Module.to`."""


@dataclass(frozen=True, slots=True)
class Node:
    """An autograd node whose backward reads a value in C++, and what it would read in a healthy training step."""

    name: str
    answer: float | int | bool
    why: str


_PHASES = "the loss does not depend on the phases of eigenvectors, which are arbitrary"
_NODES = (
    Node("CumprodBackward0", False, "no factor is zero"),
    Node("ProdBackward0", 0, "no factor is zero"),
    Node("ProdBackward1", 0, "no factor is zero"),
    Node("LinalgEigBackward0", True, _PHASES),
    Node("LinalgEighBackward0", True, _PHASES),
    Node("LinalgSvdBackward0", True, _PHASES),
)


Value = float | int | bool

_MOST = "the most that there can be: how many there are depends on values"


class Reader(Protocol):
    """Whoever answers for a program what the table does not know, and is told what the table answered."""

    def note(self, tensor: torch.Tensor, frames: Sequence[FrameType], answer: Value, why: str) -> None:
        """The table has answered a read from these frames, innermost first."""

    def answer(self, tensor: torch.Tensor, frames: Sequence[FrameType]) -> Value | None:
        """What a read is answered that is not in the table; None: it is refused."""

    def copy(self, tensor: torch.Tensor, frames: Sequence[FrameType], mover: str) -> bool:
        """Several floats, or whatever the module `mover` moves, are zeros on the host; False: that is refused."""

    def count(self, tensor: torch.Tensor, frames: Sequence[FrameType], most: int, what: str, why: str) -> int | None:
        """How many there are (`what`: places selected, distinct values, bins), where a size follows from it: at most so
        many, and `why`; None: it is refused."""


_reader: Reader | None = None


@contextmanager
def read_by(reader: Reader) -> Iterator[None]:
    """Inside, `reader` answers what the table of call sites does not, and values that came from the host are followed
    through operators."""
    global _reader
    before, _reader = _reader, reader
    torch.ops.paper.follow_values(True)
    try:
        yield
    finally:
        _reader = before
        torch.ops.paper.follow_values(before is not None)


def read(tensor: torch.Tensor) -> Value:
    """The answer for the nearest call site in the table; TraceError names the reader if there is none."""
    frames = list(_frames(inspect.currentframe()))
    for frame in frames:
        if chooses_expert(frame):
            return _noted(tensor, frames, False, "an expert that is one: only ranks with a part of them meet others")
        site = _site(frame)
        if site is not None:
            return _answer_of(site, tensor, frames)
    if (node := _node()) is not None:
        return _noted(tensor, frames, node.answer, node.why)
    if (known := answer_of_composite(tensor, of_a_program=_reader is not None)) is not None:
        return _noted(tensor, frames, *known)
    answer = None if _reader is None else _reader.answer(tensor, frames)
    if answer is None:
        raise _make_unanswered_error(frames, f"a value of {_describe_tensor(tensor)}")
    return answer


def _answer_of(site: CallSite, tensor: torch.Tensor, frames: Sequence[FrameType]) -> Value:
    return _noted(tensor, frames, site.answer(tensor), site.why)


def truth_of(tensor: torch.Tensor) -> bool | None:
    """What a check in C++ compares with true (`at::is_scalar_tensor_true`), where the operator at work is known."""
    known = answer_of_composite(tensor, of_a_program=_reader is not None)
    return None if known is None else bool(_noted(tensor, _frames(inspect.currentframe()), *known))


def _noted(tensor: torch.Tensor, frames: Sequence[FrameType], answer: Value, why: str) -> Value:
    if _reader is not None:
        _reader.note(tensor, frames, answer, why)
    return answer


def copy_to_host(host: torch.Tensor, device: torch.Tensor) -> None:
    """Several floats are zeros on the host, which a program's reader hears of; single values and whole numbers are read
    by somebody, unless a library only moves them."""
    several_floats = host.numel() > 1 and (host.is_floating_point() or host.is_complex())
    if several_floats and _reader is None:
        return  # what a spec's step offloads is its own
    frames = list(_frames(inspect.currentframe()))
    what = f"the values of {_describe_tensor(device)}"
    if several_floats:
        if _reader is not None and not _reader.copy(device, frames, _mover(frames)):
            raise _make_unanswered_error(frames, what)
        return
    if any(_module(frame).startswith("torch.nn.parallel.distributed") for frame in frames):
        return  # the reducer agrees on rebuilt buckets: the host's own numbers are the answer
    for frame in frames:
        if (numbers := expert_numbers(frame, host.numel())) is not None:
            host.copy_(numbers.view(host.shape))
            if _reader is not None:
                _reader.note(device, frames, int(numbers.flatten()[0]), "tokens of experts, as routed or evenly")
            return
        if (site := _site(frame)) is not None:
            host.fill_(_answer_of(site, device, frames))
            return
    answer = None if _reader is None else _reader.answer(device, frames)
    if answer is None and (mover := _mover(frames)):
        answer = 0
        if _reader is not None:
            _reader.copy(device, frames, mover)
    if answer is None:
        raise _make_unanswered_error(frames, what)
    host.fill_(answer)


def count_nonzero(operator: str, tensor: torch.Tensor) -> int:
    """How many values are not zero, where the autograd node or the operator at work is in a table; else as `count`."""
    if (node := _node()) is not None:
        return int(_noted(tensor, _frames(inspect.currentframe()), node.answer, node.why))
    if (known := count_of_composite()) is not None:
        return known
    return count(operator, tensor, tensor.numel(), "places selected")


def count(operator: str, tensor: torch.Tensor, most: int, what: str, why: str = _MOST) -> int:
    """How large a result is whose size depends on values, of a program as its reader says: at most `most`.

    Raises TraceError where nobody knows.
    """
    answer = None if _reader is None else _reader.count(tensor, _frames(inspect.currentframe()), most, what, why)
    if answer is None:
        refuse_size_of(operator, tensor)
    return answer


def _node() -> Node | None:
    name = node_name()
    return next((node for node in _NODES if node.name == name), None)


def node_name() -> str:
    """The autograd node whose backward this thread runs; empty outside a backward."""
    node = torch._C._current_autograd_node()
    return "" if node is None else str(node.name())


def places_of_nonzero(tensor: torch.Tensor) -> torch.Tensor | None:
    """Where values are not zero, or some places of the same number, where a mixture's rule says so; else None."""
    places = (expert_places(frame, tensor) for frame in _frames(inspect.currentframe()))
    return next((each for each in places if each is not None), None)


def refuse_size_of(operator: str, tensor: torch.Tensor, remedy: str = "") -> NoReturn:
    """TraceError for an operator whose result is as large as the values of the tensor say."""
    frames = list(_frames(inspect.currentframe()))
    what = f"the size of a result of {operator}, which depends on the values of {_describe_tensor(tensor)}"
    raise _make_unanswered_error(frames, what, remedy)


def _frames(frame: FrameType | None) -> list[FrameType]:
    found = []
    while frame is not None:
        if not _module(frame).startswith(_UNSEEN):
            found.append(frame)
        frame = frame.f_back
    return found


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _site(frame: FrameType) -> CallSite | None:
    return next((site for site in _KNOWN if _runs(frame, site.module, site.function)), None)


def _runs(frame: FrameType, module: str, function: str) -> bool:
    """Whether it is a frame of this function; `*` stands for any, also at the end of a module's name."""
    if function not in ("*", frame.f_code.co_name):
        return False
    found = _module(frame)
    return found.startswith(module[:-1]) if module.endswith("*") else found == module


def _mover(frames: Sequence[FrameType]) -> str:
    """The module, of those that move tensors, that copies here on its own account; empty for other code."""
    for frame in frames:
        if any(_runs(frame, *each) for each in _MOVERS):
            return _module(frame)
        if _module(frame).partition(".")[0] != "torch":
            return ""
    return ""


def _describe_tensor(tensor: torch.Tensor) -> str:
    return f"a tensor of shape {tuple(tensor.shape)} and dtype {str(tensor.dtype).removeprefix('torch.')}"


def _make_unanswered_error(frames: list[FrameType], what: str, remedy: str = "") -> TraceError:
    where = _place(frames)
    owner = next((type(f.f_locals["self"]).__name__ for f in frames if _is_module(f)), "")
    module = f" (module {owner})" if owner else ""
    return TraceError(
        f"the program reads {what} {where}{module}: on paper a tensor has no values",
        allowed="control flow that does not depend on values of device tensors",
        remedy=remedy or "keep such decisions on the host, or plan this model with a variant that does not take them",
    )


def _place(frames: list[FrameType]) -> str:
    reader = next((f for f in frames if not _module(f).startswith("torch")), None)
    if reader is None:
        return f"in {node_name() or 'torch itself'}"
    return f"at {Path(reader.f_code.co_filename).name}:{reader.f_lineno} in {reader.f_code.co_qualname}"


def _is_module(frame: FrameType) -> bool:
    return isinstance(frame.f_locals.get("self"), torch.nn.Module)


# The step routes by the job's rule: it copies the experts of every token from the host, and values that came from the
# host are known. What transformers 5.23 counts from them on the device is counted here once more, at the few places
# where it comes back to the host or sizes a result (integrations/moe.py, distributed/expert_parallel.py, the `forward`
# of experts in models/*/modeling_*.py). In torchtitan's experts over ranks, each gets as many tokens as the others. A
# choice that is not known stays unanswered.
Tensor = torch.Tensor

_MODELS, _MOE = "transformers.models.", "transformers.integrations.moe"
_PARALLEL = "transformers.distributed.expert_parallel"
_TORCHTITAN = "torchtitan.distributed.expert_parallel"


def expert_numbers(frame: FrameType, wanted: int) -> Tensor | None:
    """The whole numbers that are copied to the host at this call site; None if it is none of those."""
    module, values = _module(frame), frame.f_locals
    if module == _MOE and "offs" in values:
        return _equal_shares(int(values["input"].size(0)), wanted)
    if module == _PARALLEL and "recv_counts" in values:
        return _sent_and_received(values)
    if module == _TORCHTITAN and "routed_input" in values:
        tokens = int(values["routed_input"].size(0))
        return _equal_shares(tokens, wanted).diff(prepend=torch.zeros(1, dtype=torch.int64))
    return None


def expert_places(frame: FrameType, tensor: Tensor) -> Tensor | None:
    """The coordinates that `nonzero` finds in the loop over experts: those with tokens, then the tokens of each."""
    chosen = _choice(frame)
    if chosen is None:
        return None
    values = frame.f_locals
    if "expert_hit" not in values:
        hit: Tensor = chosen.unique().unsqueeze(1)
        return hit
    expert = _read_known_value(values["expert_idx"])
    return None if expert is None else torch.zeros(int((chosen == expert).sum()), tensor.dim(), dtype=torch.int64)


def chooses_expert(frame: FrameType) -> bool:
    """Whether this is the loop over experts, which asks of each whether it is one."""
    return _choice(frame) is not None


def _choice(frame: FrameType) -> Tensor | None:
    if not _module(frame).startswith(_MODELS) or "expert_mask" not in frame.f_locals:
        return None
    return _read_known_value(frame.f_locals.get("top_k_index"))


def _sent_and_received(values: dict[str, Any]) -> Tensor | None:
    """How many rows go to each rank and come from each; peers route as this rank does, and are as full."""
    chosen, parallel = _read_known_value(values["top_k_index"]), values["self"]
    if chosen is None:
        return None
    ranks, own = parallel.ep_mesh.size(), parallel.ep_mesh.get_local_rank()
    sent = chosen.flatten().bincount(minlength=ranks * parallel.num_local_experts).view(ranks, -1).sum(1)
    return torch.stack([sent, sent[own].expand(ranks)])


def _equal_shares(tokens: int, experts: int) -> Tensor:
    """Where each expert's tokens end if all get the same; how they are shared takes no memory here."""
    return torch.tensor([tokens * (expert + 1) // experts for expert in range(experts)])


def _read_known_value(tensor: Any) -> Tensor | None:
    if not isinstance(tensor, Tensor) or not tensor.is_cuda:
        return None
    found: Tensor | None = torch.ops.paper.known_value(tensor)
    return found


# No frame says in C++ who reads. Such an operator is entered by name, and then runs torch's own code. Sources, torch
# 2.13: aten/src/ATen/native/Correlation.cpp, SpectralOps.cpp, Itertools.cpp, TensorCompare.cpp.
Answer = bool | int


@dataclass(frozen=True, slots=True)
class Composite:
    """An operator (`cov`), what it reads by the operator that made the value (`aten.ge`), and how many values of a mask
    hold, from the operator's own arguments."""

    operator: str
    why: str
    answers: Mapping[str, Answer] = field(default_factory=dict)
    count: Callable[..., int] | None = None
    is_result: bool = False
    """What is read is the result: a program's reader answers that, as it does for what the program reads itself."""


def _count_combinations(values: torch.Tensor, r: int = 2, with_replacement: bool = False) -> int:
    return comb(values.numel() + r - 1, r) if with_replacement else comb(values.numel(), r)


_COMPOSITES = (
    Composite(
        "cov",
        "no weight is negative, their sum is not zero, and there are more observations than the correction",
        {"aten.ge": True, "aten.ne": True, "aten.le": False},
    ),
    Composite("istft", "windows overlap without gaps", {"aten.lt": False}),
    Composite("combinations", "as many as there are, whatever the values", count=_count_combinations),
    Composite("allclose", "a check of everything holds", {"aten.all": True}, is_result=True),
)


@dataclass(frozen=True, slots=True)
class _Entered:
    composite: Composite
    arguments: tuple[Any, ...]
    named: Mapping[str, Any]


_entered: ContextVar[_Entered | None] = ContextVar("entered", default=None)


def answer_of_composite(tensor: torch.Tensor, *, of_a_program: bool) -> tuple[Answer, str] | None:
    """What the operator at work on this thread reads of the tensor, and why; None if none is or it is not known."""
    at_work = _entered.get()
    if at_work is None or (of_a_program and at_work.composite.is_result):
        return None
    found = at_work.composite.answers.get(native_records.operator_of(tensor))
    return None if found is None else (found, at_work.composite.why)


def count_of_composite() -> int | None:
    """How many values of a mask hold that the operator at work on this thread has made; None if that is not known."""
    at_work = _entered.get()
    if at_work is None or at_work.composite.count is None:
        return None
    return at_work.composite.count(*at_work.arguments, **at_work.named)


@cache
def install_composites() -> torch.library.Library:
    """Enter the operators of the table by name, once for the process."""
    own = torch.library.Library("aten", "IMPL")
    for composite in _COMPOSITES:
        operator = getattr(torch.ops.aten, composite.operator).default
        implicit = torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CompositeImplicitAutograd")
        key = (
            torch._C.DispatchKey.CompositeImplicitAutograd
            if implicit
            else torch._C.DispatchKey.CompositeExplicitAutograd
        )
        # An implicit one is differentiated by what it calls: it is entered above autograd, and where there is none.
        for above in ("AutogradCUDA", "CUDA") if implicit else ("CUDA",):
            own.impl(composite.operator, _make_kernel(composite, operator, key), above)
    return own


def _make_kernel(composite: Composite, operator: Any, key: Any) -> Callable[..., Any]:
    def run(*arguments: Any, **named: Any) -> Any:
        before = _entered.set(_Entered(composite, arguments, named))
        try:
            return operator._op_dk(key, *arguments, **named)
        finally:
            _entered.reset(before)

    return run
