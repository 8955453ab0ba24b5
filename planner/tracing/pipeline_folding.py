"""Folds micro-batches of a pipeline: of equal ones few are run, and what those did is written down for the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from planner import upstream
from planner.paper.native_records import DoesNotFoldError, block_of, local_part
from planner.paper.recorder import Births, Recorder, Stretch
from planner.training import blocks
from planner.training.wraps.fsdp2 import parameter_groups
from planner.upstream import torch_releases

_FORWARD, _LOSS, _BACKWARD, _BACKWARD_INPUT, _BACKWARD_WEIGHT = "F", "L", "B", "I", "W"
_BACKWARDS = (_BACKWARD, _BACKWARD_INPUT, _BACKWARD_WEIGHT)
_ACCUMULATE = (_BACKWARD, _BACKWARD_WEIGHT)
_STAGE = "torch.distributed.pipelining.stage:_PipelineStageBase"
_SCHEDULE = "torch.distributed.pipelining.schedules:_PipelineSchedule"


def folds_micro_batches() -> bool:
    """Whether equal micro-batches are run once: what stages of other versions keep between them is not known."""
    return (2, 11) <= torch_releases.installed() < (2, 15)


@dataclass(frozen=True, slots=True)
class _Example:
    """An action of a micro-batch that was run, and which of its blocks it gave to the schedule."""

    stretch: Stretch
    births: Births
    given: tuple[Tensor | None, ...]
    """Without memory."""
    given_blocks: tuple[int, ...]
    received: tuple[int | None, ...]
    """Blocks of what other stages had sent for it."""
    kept_as_gradients: tuple[int, ...]
    """Inputs that hold what was given as their gradient."""
    earlier: tuple[tuple[str, Births], ...]
    """Earlier actions of the same micro-batch, whose blocks it uses."""


class _MicroBatches:
    """What one stage knows of its micro-batches: which were run, which were not, and examples of each action."""

    def __init__(self, recorder: Recorder, module: nn.Module) -> None:
        self._recorder, self._states = recorder, _AllocationState(module)
        self._examples: dict[tuple[Any, ...], _Example] = {}
        self._run: dict[tuple[str, int], Births] = {}
        self._unrun: dict[tuple[str, int], Births] = {}
        self._received: dict[int, list[int | None]] = {}
        self._of_tensors: set[int] = set()
        """Blocks that tensors free."""
        self._runs: Counter[str] = Counter()
        self._must_run: frozenset[int] = frozenset()
        self._first_iteration = True

    def begin(self, order: Sequence[tuple[str, int]]) -> None:
        """An iteration begins; `order`: kinds and micro-batches of this stage's backward actions, as they come.

        The first to accumulate finds no gradients, so it is run; of the rest the first of each kind is an example.
        """
        firsts = [[m for kind, m in order if kind == wanted][:2] for wanted in _BACKWARDS]
        accumulating = [m for kind, m in order if kind in _ACCUMULATE][:1]
        every = [m for few in firsts for m in few] if self._first_iteration else []
        self._must_run = frozenset(every + accumulating)
        self._first_iteration = False
        for past in (self._run, self._unrun, self._received, self._of_tensors):
            past.clear()

    def receive(self, micro_batch: int, tensors: Sequence[Tensor | None]) -> None:
        """What other stages have sent for a micro-batch: it is there for every one, run or not."""
        blocks = [block_of(tensor) for tensor in tensors if tensor is not None]
        self._received.setdefault(micro_batch, []).extend(blocks)

    def was_left_out(self, kind: str, micro_batch: int) -> bool:
        return (kind, micro_batch) in self._unrun

    def has_example(self, micro_batch: int) -> bool:
        """Whether the forward of a micro-batch need not be run."""
        return micro_batch not in self._must_run and (_FORWARD, self._state(_FORWARD)) in self._examples

    def leave_out(self, kind: str, micro_batch: int) -> tuple[list[Tensor | None], _Example]:
        """The action is not run, but written down; what it gives the schedule, and the example that it follows.

        Raises DoesNotFoldError without an example of this state.
        """
        example = self._examples.get((kind, self._state(kind)))
        if example is None:
            raise DoesNotFoldError(f"a micro-batch whose forward was not run has no example of {kind}{micro_batch}")
        names: dict[int, int] = {}
        for earlier, theirs in example.earlier:
            mine = self._unrun.get((earlier, micro_batch), Births())
            if mine.kinds != theirs.kinds:
                raise DoesNotFoldError("two micro-batches are not alike")
            names.update(zip(theirs.blocks, mine.blocks, strict=True))
        pairs = zip(example.received, self._received.get(micro_batch, ()), strict=True)
        received = {block: here for block, here in pairs if block is not None and here is not None}
        kept = {*example.given_blocks, *received}
        kept.update(block for block, here in names.items() if here in self._of_tensors)
        births = self._recorder.write_again(example.stretch, example.births, {**names, **received}, kept)
        self._unrun[kind, micro_batch] = births
        new = dict(zip(example.births.blocks, births.blocks, strict=True))
        given = [new[block] for block in example.given_blocks]
        self._of_tensors.update(given)
        blocks = iter(given)
        made = [None if like is None else self._recorder.tensor_of(next(blocks), like) for like in example.given]
        return made, example

    def run(self, kind: str, micro_batch: int, after: Sequence[str] = ()) -> Callable[..., None]:
        """Before an action that is run, `after` earlier ones of its micro-batch. What is returned is called at its end,
        with the tensors that it gave the schedule and which of its inputs keep one as their gradient; it becomes an
        example if it left everything as it was."""
        state, began = self._state(kind), self._recorder.here()

        def end(given: Sequence[Tensor | None], kept_as_gradients: tuple[int, ...] = ()) -> None:
            self._recorder.settle()
            stretch = Stretch(*began, *self._recorder.here())
            births = self._run[kind, micro_batch] = self._recorder.births(stretch)
            self._runs[kind] += 1
            # The first of a kind may find what never recurs, such as a workspace that is not there yet.
            if self._runs[kind] == 1 or self._state(kind) != state or (kind, state) in self._examples:
                return
            blocks = tuple(block_of(tensor) for tensor in given if tensor is not None)
            known = tuple(block for block in blocks if block in births.blocks and block is not None)
            if len(set(known)) < len(blocks):
                return
            earlier = tuple(
                (before, self._run[before, micro_batch]) for before in after if (before, micro_batch) in self._run
            )
            self._examples[kind, state] = _Example(
                stretch,
                births,
                tuple(None if tensor is None else local_part(tensor).detach().to("meta") for tensor in given),
                known,
                tuple(self._received.get(micro_batch, ())),
                kept_as_gradients,
                tuple(earlier),
            )

        return end

    def _state(self, kind: str) -> tuple[Any, ...]:
        return self._states.now(whole=kind in _BACKWARDS, gradients=kind in _ACCUMULATE)


class PipelineFolding:
    """Of all stages of this process, which name their phases themselves (training/pipelined_loop.py)."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._schedules: WeakSet[Any] = WeakSet()
        self._stages: WeakKeyDictionary[Any, _MicroBatches] = WeakKeyDictionary()

    def watch(self) -> AbstractContextManager[None]:
        """Inside, schedules run few micro-batches. Raises DoesNotFoldError where those do not say what others do."""
        if not folds_micro_batches():
            return nullcontext()
        wrapped = {
            f"{_SCHEDULE}.__init__": self._know_schedules,
            f"{_SCHEDULE}._maybe_compute_loss": self._losses,
            f"{_STAGE}.clear_runtime_states": self._iterations,
            f"{_STAGE}.forward_one_chunk": self._forwards,
            f"{_STAGE}.backward_one_chunk": self._backwards,
            f"{_STAGE}.backward_weight_one_chunk": self._weight_backwards,
            f"{_STAGE}._retrieve_recv_activations": self._received,
            f"{_STAGE}._retrieve_recv_grads": self._received,
        }
        return upstream.patch_targets("pipelines folded", wrapped=wrapped)

    def _know_schedules(self, real: Any) -> Any:
        def init(schedule: Any, *arguments: Any, **named: Any) -> None:
            real(schedule, *arguments, **named)
            self._schedules.add(schedule)

        return init

    def _of(self, stage: Any) -> _MicroBatches:
        if stage not in self._stages:
            self._stages[stage] = _MicroBatches(self._recorder, stage.submod)
        return self._stages[stage]

    def _iterations(self, real: Any) -> Any:
        def clear_runtime_states(stage: Any) -> None:
            real(stage)
            self._of(stage).begin([action for schedule in self._schedules for action in _backwards_of(schedule, stage)])

        return clear_runtime_states

    def _forwards(self, real: Any) -> Any:
        def forward_one_chunk(stage: Any, fwd_chunk_id: int, args: Any, *rest: Any, **named: Any) -> Any:
            micro_batches = self._of(stage)
            if not micro_batches.has_example(fwd_chunk_id):
                end = micro_batches.run(_FORWARD, fwd_chunk_id)
                output = real(stage, fwd_chunk_id, args, *rest, **named)
                end((output,))
                return output
            taken = args if stage.is_first else stage._retrieve_recv_activations(fwd_chunk_id)
            (output,), _ = micro_batches.leave_out(_FORWARD, fwd_chunk_id)
            stage.fwd_cache[fwd_chunk_id] = (output,), list(taken)
            return output

        return forward_one_chunk

    def _losses(self, real: Any) -> Any:
        def compute(schedule: Any, stage: Any, output: Any, target_mbs: Any, mb_index: int, *rest: Any) -> None:
            micro_batches = self._of(stage)
            if not stage.is_last:
                return
            if micro_batches.was_left_out(_FORWARD, mb_index):
                losses, _ = micro_batches.leave_out(_LOSS, mb_index)
                schedule._internal_losses += losses
                return
            end = micro_batches.run(_LOSS, mb_index, (_FORWARD,))
            real(schedule, stage, output, target_mbs, mb_index, *rest)
            end(schedule._internal_losses[-1:])

        return compute

    def _backwards(self, real: Any) -> Any:
        def backward_one_chunk(
            stage: Any, bwd_chunk_id: int, loss: Any = None, full_backward: bool = True, last_backward: bool = False
        ) -> None:
            micro_batches, kind = self._of(stage), _BACKWARD if full_backward else _BACKWARD_INPUT
            if micro_batches.was_left_out(_FORWARD, bwd_chunk_id):
                self._leave_backward_out(stage, kind, bwd_chunk_id, loss)
                return
            end = micro_batches.run(kind, bwd_chunk_id, (_FORWARD, _LOSS))
            _, taken = stage.fwd_cache[bwd_chunk_id]
            real(stage, bwd_chunk_id, loss, full_backward, last_backward)
            given = stage.bwd_cache[bwd_chunk_id]
            end(given, tuple(i for i, grad in enumerate(given) if grad is not None and taken[i].grad is grad))

        return backward_one_chunk

    def _leave_backward_out(self, stage: Any, kind: str, micro_batch: int, loss: Tensor | None) -> None:
        received = None if stage.is_last else stage._retrieve_recv_grads(micro_batch)
        given, example = self._of(stage).leave_out(kind, micro_batch)
        output, taken = stage.fwd_cache.pop(micro_batch)
        if kind == _BACKWARD_INPUT:
            for index in example.kept_as_gradients:
                taken[index].grad = given[index]
            kept = (loss,) if stage.is_last else output
            stage.backward_state[micro_batch] = (taken, None, kept, received)
            stage.dw_runner[micro_batch] = lambda: None
        del output, taken
        stage.bwd_cache[micro_batch] = tuple(given)

    def _weight_backwards(self, real: Any) -> Any:
        def backward_weight_one_chunk(stage: Any, bwd_chunk_id: int, last_backward: bool = False) -> None:
            micro_batches = self._of(stage)
            if micro_batches.was_left_out(_BACKWARD_INPUT, bwd_chunk_id):
                micro_batches.leave_out(_BACKWARD_WEIGHT, bwd_chunk_id)
                stage.backward_state.pop(bwd_chunk_id)
                return
            end = micro_batches.run(_BACKWARD_WEIGHT, bwd_chunk_id, (_FORWARD, _LOSS, _BACKWARD_INPUT))
            real(stage, bwd_chunk_id, last_backward)
            end(())

        return backward_weight_one_chunk

    def _received(self, real: Any) -> Any:
        def retrieve(stage: Any, micro_batch: int) -> Any:
            tensors = real(stage, micro_batch)
            self._of(stage).receive(micro_batch, tensors)
            return tensors

        return retrieve


def _backwards_of(schedule: Any, stage: Any) -> Iterator[tuple[str, int]]:
    """Kinds and micro-batches of the backward actions of a stage, as the schedule orders them."""
    if stage not in (getattr(schedule, "_stages", None) or [schedule._stage]):
        return
    orders = getattr(schedule, "pipeline_order_with_comms", None) or getattr(schedule, "pipeline_order", None)
    if orders is None:  # GPipe and 1F1B of torch before 2.10 take the micro-batches one after the other.
        yield from ((_BACKWARD, micro_batch) for micro_batch in range(schedule._n_microbatches))
        return
    for action in filter(None, orders[stage.group_rank]):
        for part in getattr(action, "sub_actions", None) or (action,):
            if part.stage_index == stage.stage_index and part.computation_type.value in _BACKWARDS:
                yield part.computation_type.value, part.microbatch_index


class _AllocationState:
    """What decides which memory a forward or a backward of a module takes."""

    def __init__(self, module: nn.Module) -> None:
        self._sharded = [child for child in module.modules() if isinstance(child, FSDPModule)]
        self._parameters = [child._parameters for child in module.modules()]

    def now(self, *, whole: bool, gradients: bool) -> tuple[Any, ...]:
        """Which parameters are gathered, and what fully_shard keeps for later.

        With `whole`, which gradients of whole parameters wait there to be reduced: only a backward looks at them.
        With `gradients`, which parameters have a gradient. And how much was compiled.
        """
        state: list[Any] = [blocks.graphs_so_far()]
        state += [_sharding_state(module._get_fsdp_state(), whole=whole) for module in self._sharded]
        if gradients:
            parameters = (parameter for each in self._parameters for parameter in each.values())
            state += [parameter is None or parameter.grad is None for parameter in parameters]
        return tuple(state)


# torch 2.13, fsdp/_fully_shard/_fsdp_state.py, _fsdp_param_group.py.
_KEPT_BY_GROUP = ("_all_gather_result", "_post_reduce_event", "_reshard_after_forward_event", "_all_reduce_state")
_KEPT_BY_CONTEXT = ("all_gather_state", "reduce_scatter_state")


def _sharding_state(state: Any, *, whole: bool) -> tuple[Any, ...]:
    context = state._comm_ctx
    return (
        state._training_state,
        tuple(getattr(context, name, None) is None for name in _KEPT_BY_CONTEXT),
        len(getattr(context, "reduce_scatter_states", ())),
        tuple(
            (
                group._training_state,
                group._sharded_state,
                tuple(getattr(group, name, None) is None for name in _KEPT_BY_GROUP),
                tuple(
                    (param.sharded_state, whole and param.unsharded_accumulated_grad is None)
                    for param in group.fsdp_params
                ),
            )
            for group in parameter_groups(state)
        ),
    )
