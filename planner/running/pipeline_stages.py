"""Stages of a pipeline whose neighbours are absent: the shapes that these would have announced.

Before its first step a stage of torch.distributed.pipelining is told the shapes of its inputs by the stage before it,
and those of the gradients of its outputs by the one after it (torch 2.13, distributed/pipelining/stage.py). What a rank
announces is kept and handed to the ranks that run after it; the gradients of outputs are shaped as these.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from planner import upstream
from planner.errors import ProgramError
from planner.running.assumptions import About, Assumptions
from planner.running.order import Announced
from planner.upstream import versions

_STAGE = "torch.distributed.pipelining.stage:PipelineStage"


class PipelineNeighbours:
    """Answers for the stages that other ranks have. `heard` is what the ranks that ran before have announced."""

    def __init__(self, assumptions: Assumptions, heard: Sequence[Announced]) -> None:
        self._assumptions = assumptions
        self._said: dict[int, str] = {each.stage: each.content for each in heard}
        self._votes = WeakIdKeyDictionary()

    def announced(self) -> tuple[Announced, ...]:
        """By this rank and those before it, for the ranks that follow."""
        return tuple(Announced(stage, content) for stage, content in sorted(self._said.items()))

    @contextmanager
    def present(self) -> Iterator[None]:
        """Inside, a stage hears from its neighbours."""
        wrapped: dict[str, upstream.Wrapper] = {
            f"{_STAGE}._send_meta": self._keeping,
            f"{_STAGE}._recv_meta": self._answering,
            f"{_STAGE}._warmup_forward_vote": self._voting,
            f"{_STAGE}._warmup_backward_result": self._counting,
            f"{_STAGE}.__init__": _refusing,
        }
        with upstream.patch_targets("program pipelines", wrapped=wrapped):
            yield

    def _keeping(self, _real: Callable[..., Any]) -> Callable[..., None]:
        def send(stage: Any, meta: Any, to_stage: int) -> None:
            if to_stage > stage.stage_index:
                self._said[stage.stage_index] = base64.b64encode(pickle.dumps(meta)).decode()

        return send

    def _answering(self, _real: Callable[..., Any]) -> Callable[..., Any]:
        def receive(stage: Any, from_stage: int) -> Any:
            if from_stage > stage.stage_index:
                return _gradients_of_outputs(stage)
            return self._inputs(stage.stage_index, from_stage)

        return receive

    def _inputs(self, stage: int, before: int) -> Any:
        nearest = max((each for each in self._said if each <= before), default=None)
        if nearest is None:
            raise ProgramError(
                f"stage {stage} of the pipeline waits for the shapes that stage {before} sends",
                allowed="ranks of earlier stages run before it",
                remedy="let a rank of the first stage run too (--ranks auto, or 0 and this one)",
            )
        if nearest != before:
            self._assumptions.add(
                About.PEERS, f"what stage {before} of the pipeline sends is shaped as what stage {nearest} sends"
            )
        return pickle.loads(base64.b64decode(self._said[nearest]))

    def _voting(self, _real: Callable[..., Any]) -> Callable[..., torch.Tensor]:
        """Whether shapes have to be announced at all: every other stage votes as this one does."""
        from torch.distributed.pipelining._utils import InferenceMode

        def vote(stage: Any, has_backward: bool, received_acc: torch.Tensor | None = None) -> torch.Tensor:
            own = 0 if InferenceMode.needs_dynamic(stage._user_meta, has_backward) else 1
            found = torch.tensor([own], dtype=torch.int32, device=stage.device)
            self._votes[stage] = found if received_acc is None else received_acc * found
            return self._votes[stage]  # type: ignore[no-any-return]

        return vote

    def _counting(self, _real: Callable[..., Any]) -> Callable[..., torch.Tensor]:
        def result(stage: Any, received_result: torch.Tensor | None = None) -> torch.Tensor:
            return self._votes[stage] if received_result is None else received_result

        return result


def _refusing(real: Callable[..., None]) -> Callable[..., None]:
    """A stage is refused where its version of torch agrees with its neighbours otherwise than described here."""

    def make(*arguments: Any, **options: Any) -> None:
        versions.require("pipelines of a program", place="PipelineStage")
        real(*arguments, **options)

    return make


def _gradients_of_outputs(stage: Any) -> Any:
    from torch.distributed.pipelining._utils import _derive_grad_metas, _StageBackwardMeta

    return _StageBackwardMeta(backward_metas=_derive_grad_metas(stage._stage_meta.outputs))
