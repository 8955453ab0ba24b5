"""Folds the equal micro-batches of a pipeline stage: each kind of action is run once and then copied.

The schedule is torch's own and runs all of its actions; what a stage is told instead of computing gives the schedule
tensors of the right shape, which it sends, keeps and drops as it would the real ones.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from planner.training.folding import ActionExample, AllocationState, Folder, NoExampleError

FORWARD, LOSS, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT = "F", "L", "B", "I", "W"
BACKWARDS = (BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT)
_ACCUMULATE = (BACKWARD, BACKWARD_WEIGHT)


class MicroBatchHistory:
    """What one stage knows of its micro-batches: which were run, which were told, and examples of each action."""

    def __init__(self, folder: Folder, module: nn.Module, device: torch.device) -> None:
        self._folder, self._device = folder, device
        self._states = AllocationState(module)
        self._examples: dict[tuple[Any, ...], tuple[ActionExample, tuple[tuple[int, int], ...]]] = {}
        self._run: dict[tuple[str, int], tuple[int, int]] = {}
        self._told: dict[tuple[str, int], int] = {}
        self._received: defaultdict[int, tuple[int | None, ...]] = defaultdict(tuple)
        self._seen: Counter[str] = Counter()
        self._must_run: frozenset[int] = frozenset()
        self._first_iteration = True

    def begin(self, order: Sequence[tuple[str, int]]) -> None:
        """An iteration begins; `order`: kinds and micro-batches of this stage's backward actions, as they come.

        The first to accumulate finds no gradients, so it is run; of the rest the first of each kind is an example.
        """
        firsts = [[m for kind, m in order if kind == wanted][:2] for wanted in BACKWARDS]
        accumulating = [m for kind, m in order if kind in _ACCUMULATE][:1]
        every = [m for few in firsts for m in few] if self._first_iteration else []
        self._must_run = frozenset(every + accumulating)
        self._first_iteration = False
        self._run.clear()
        self._told.clear()
        self._received.clear()

    def receive(self, micro_batch: int, tensors: Sequence[Tensor]) -> None:
        """What other stages have sent for a micro-batch: each time it is there by itself, whether used or told of."""
        self._received[micro_batch] += tuple(self._folder.block_of(_local(each)) for each in tensors)

    def was_copied(self, kind: str, micro_batch: int) -> bool:
        return (kind, micro_batch) in self._told

    def example_of(self, kind: str, micro_batch: int, after: Sequence[str] = ()) -> ActionExample | None:
        """The stretch that can be told in the place of this action; None if it has to be run.

        `after`: the kinds of action of the same micro-batch whose blocks it uses.
        """
        told_before = [before for before in after if self.was_copied(before, micro_batch)]
        if kind == FORWARD and micro_batch in self._must_run:
            return None
        if after and not told_before:
            return None
        found = self._examples.get((kind, self._state(kind)))
        if found is None and told_before:
            raise NoExampleError(f"{kind}{micro_batch}")
        return found[0] if found else None

    def copy_action(self, kind: str, micro_batch: int, after: Sequence[str] = ()) -> list[Tensor | None]:
        """The action is told; what it gives the schedule. Raises CannotBeToldError without an example of this state."""
        found = self._examples.get((kind, self._state(kind)))
        if found is None:
            raise NoExampleError(f"{kind}{micro_batch}")
        example, uses = found
        parents = [
            (*where, self._told[before, micro_batch])
            for before, where in zip([b for b in after if self.was_copied(b, micro_batch)], uses, strict=True)
        ]
        wanted = [each for each in example.like if each is not None]
        pairs = zip(example.received, self._received[micro_batch], strict=True)
        number, made = self._folder.copy(
            example.first,
            example.after,
            parents,
            example.given,
            lambda: [self._empty(each) for each in wanted],
            [(block, here) for block, here in pairs if block is not None and here is not None],
        )
        self._told[kind, micro_batch] = number
        given = iter(made)
        return [None if each is None else next(given) for each in example.like]

    def run(self, kind: str, micro_batch: int, after: Sequence[str] = ()) -> ActionRun:
        """Around an action that is run: `keep_example` makes it an example, if it left everything as it was."""
        return ActionRun(self, kind, micro_batch, tuple(after))

    def _empty(self, example: Tensor) -> Tensor:
        return torch.empty(example.shape, dtype=example.dtype, device=self._device)

    def _state(self, kind: str) -> tuple[Any, ...]:
        return self._states.before(whole=kind in BACKWARDS, gradients=kind in _ACCUMULATE)


class ActionRun:
    def __init__(self, micro: MicroBatchHistory, kind: str, micro_batch: int, after: tuple[str, ...]) -> None:
        self._micro, self._kind, self._micro_batch, self._after = micro, kind, micro_batch, after
        self._state = micro._state(kind)
        self._first = micro._folder.place()

    def keep_example(self, given: Sequence[Tensor | None], kept_as_gradients: tuple[int, ...] = ()) -> None:
        micro, key = self._micro, (self._kind, self._micro_batch)
        where = (self._first, micro._folder.place())
        micro._run[key] = where
        micro._seen[self._kind] += 1
        # The first of a kind may find what never comes again, such as a workspace that is not there yet.
        if micro._seen[self._kind] == 1 or micro._state(self._kind) != self._state:
            return
        if (self._kind, self._state) in micro._examples:
            return
        uses = tuple(micro._run[kind, self._micro_batch] for kind in self._after if (kind, key[1]) in micro._run)
        blocks = [micro._folder.block_of(each) for each in given if each is not None]
        if None in blocks:
            return
        like = tuple(None if each is None else _local(each).detach().to("meta") for each in given)
        stretch = ActionExample(
            *where,
            key[1],
            like,
            tuple(block for block in blocks if block is not None),
            micro._received[self._micro_batch],
            kept_as_gradients,
        )
        micro._examples[self._kind, self._state] = (stretch, uses)


def _local(tensor: Tensor) -> Tensor:
    return getattr(tensor, "_local_tensor", tensor)
