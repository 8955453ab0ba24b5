"""Whole numbers that a rank broadcasts (how many batches, whether there is data): what it says is kept for the ranks
that run after it, whose program would otherwise go by what stands in the tensor that was to receive them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from planner.paper.kernels.data_dependent import known
from planner.running.order import BroadcastNumber

_MOST = 64
"""Elements; larger ones are data."""
_WHOLE = (torch.int64, torch.int32, torch.bool)


class BroadcastNumbers:
    """Of one rank; `heard` is what those that ran before have broadcast."""

    def __init__(self, heard: Sequence[BroadcastNumber]) -> None:
        self._said = {(each.ranks, each.source, each.number): each.values for each in heard}
        self._alike: dict[tuple[tuple[int, ...], int, int], tuple[int, ...]] = {}
        for each in heard:
            self._alike.setdefault(_placed(each.ranks, each.source, each.number), each.values)
        self._counts: Counter[tuple[int, ...]] = Counter()

    def said(self) -> tuple[BroadcastNumber, ...]:
        """By this rank and those before it."""
        return tuple(BroadcastNumber(*key, values) for key, values in sorted(self._said.items()))

    def pass_on(self, group: dist.ProcessGroup, tensors: Sequence[Tensor], root: int) -> None:
        """A broadcast over the group: kept if it is this rank's, filled in if another's was heard."""
        ranks = tuple(dist.get_process_group_ranks(group))
        number, source = self._counts[ranks], ranks[root]
        self._counts[ranks] += 1
        if len(tensors) != 1 or tensors[0].dtype not in _WHOLE or tensors[0].numel() > _MOST:
            return
        key = (ranks, source, number)
        if root == group.rank():
            values = known(tensors[0])
            if values is not None:
                self._said[key] = tuple(map(int, values.flatten().tolist()))
            return
        heard = self._said.get(key, self._alike.get(_placed(*key), ()))
        if len(heard) == tensors[0].numel():
            with torch.no_grad():
                tensors[0].copy_(torch.tensor(heard, dtype=tensors[0].dtype).view(tensors[0].shape))


def _placed(ranks: tuple[int, ...], source: int, number: int) -> tuple[tuple[int, ...], int, int]:
    """A broadcast by where its ranks stand to each other: the source of a group that was not run is taken to say what
    that of another such group has said."""
    return tuple(each - ranks[0] for each in ranks), source - ranks[0], number
