"""Answers a program that reads values which nobody has: of device tensors, broadcasts, neighbouring stages."""

from __future__ import annotations

import base64
import json
import math
import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from planner import upstream
from planner.errors import ProgramError
from planner.paper.recorder import Recorder
from planner.paper.values import HEALTHY, Reader, Value, known_value
from planner.roles import pipelines
from planner.tracing.program.assumptions import About, Assumptions, Branch, find_branch, is_compared, program_place
from planner.upstream import torch_releases

_PLACES = ("aten.argsort", "aten.topk", "aten.sort", "aten.max", "aten.min", "aten.multinomial")
"""Operators that give places: the first is read."""

_UNEQUAL, _UNEQUAL_COUNT = 1.0009765625, 1_000_003
"""What is read where it is compared with a constant at once: no program names them."""
_NO_CONSTANT = "what is drawn or computed equals no constant"
_PRESUMED = "a place in the middle, which programs do not name, or what follows from values that equal no constant"
_NOWHERE = ("aten.any", "aten.isnan", "aten.isinf")
"""Operators whose truth values hold nowhere in a healthy run: nothing is selected by them."""


class AnswersByTable(Reader):
    """The reader of a program (planner.paper.values.Reader). With `strict` nothing is answered that is not known."""

    def __init__(self, recorder: Recorder, assumptions: Assumptions, *, strict: bool, otherwise: str = "") -> None:
        """`otherwise`: a line at which a truth value is answered the other way."""
        self._recorder, self._assumptions, self._strict = recorder, assumptions, strict
        self._otherwise = otherwise
        self.branches: dict[str, Branch] = {}
        """Lines at which an answer decides."""
        self.classes = 0
        """Of the last loss over classes; 0 before the first."""

    def answer(self, tensor: torch.Tensor, frames: Sequence[FrameType]) -> Value | None:
        """The value and, in the list, the reason for it. None under `strict`."""
        if self._strict:
            return None
        answer, why = self._judge(tensor, frames)
        if (branch := find_branch(frames, answer)) is not None:
            self.branches.setdefault(branch.place, branch)
            if branch.place == self._otherwise:
                answer, why = not answer, "the other way is tried"
        self.note(tensor, frames, answer, why)
        return answer

    def copy(self, tensor: torch.Tensor, frames: Sequence[FrameType], mover: str) -> bool:
        """Zeros, in the list: what a library moves, as such; what else is copied is read. Under `strict` the latter is
        refused."""
        dtype = str(tensor.dtype).removeprefix("torch.")
        if mover:
            self._assumptions.add(About.HOST, f"tensors of {dtype} that {mover} moves to the host are zeros there")
        elif not self._strict:
            self._assumptions.add(
                About.VALUE, f"values of {dtype} that are copied to the host read as 0", program_place(frames)
            )
        return bool(mover) or not self._strict

    def assume(self, why: str, frames: Sequence[FrameType]) -> bool:
        """In the list; not under `strict`."""
        if not self._strict:
            self._assumptions.add(About.VALUE, why, program_place(frames))
        return not self._strict

    def count(self, tensor: torch.Tensor, frames: Sequence[FrameType], most: int, what: str, why: str) -> int | None:
        """As many as there can be, but none where values out of order are looked for; None under `strict`."""
        if self._strict:
            return None
        made_by = self._recorder.operator_of(tensor) if tensor.dtype is torch.bool else ""
        count, why = (0, f"{made_by}: no value is out of order") if made_by in _NOWHERE else (most, why)
        self._assumptions.add(About.VALUE, f"{count:,} {what} ({why})", program_place(frames))
        return count

    def _judge(self, tensor: torch.Tensor, frames: Sequence[FrameType]) -> tuple[Value, str]:
        is_truth = tensor.dtype is torch.bool
        if (longest := _longest_beam(tensor, frames)) is not None:
            return longest, "beams go on to the largest length"
        if (presumed := torch.ops.paper.presumed(tensor)) is not None:
            return presumed, HEALTHY if is_truth else _PRESUMED
        if tensor.is_floating_point() or tensor.is_complex():
            if self.classes > 1:
                why = f"the loss over {self.classes:,} classes of a model that has learnt nothing"
                return math.log(self.classes), why
            return (_UNEQUAL, _NO_CONSTANT) if is_compared(frames) else (1.0, "any finite number")
        if not is_truth and is_compared(frames):
            return _UNEQUAL_COUNT, _NO_CONSTANT
        made_by = self._recorder.operator_of(tensor)
        if not is_truth and made_by in _PLACES:
            return 0, f"{made_by}: the first index"
        return (False, "nothing is out of order") if is_truth else (1, "any count")

    def note(self, tensor: torch.Tensor, frames: Sequence[FrameType], answer: Value, why: str) -> None:
        """A value was read, here or at a known call site of a library."""
        shown = f"{answer:.4g}" if isinstance(answer, float) else str(answer)
        many = "a value" if tensor.numel() == 1 else f"{tensor.numel()} values"
        dtype = str(tensor.dtype).removeprefix("torch.")
        self._assumptions.add(About.VALUE, f"{many} of {dtype} read as {shown} ({why})", program_place(frames))

    def watching_losses(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """A loss over classes that remembers how many there are, for `upstream.patch_targets`."""

        def loss(*arguments: Any, **options: Any) -> Any:
            scores = arguments[0] if arguments else options.get("input")
            if isinstance(scores, torch.Tensor) and scores.is_cuda and scores.dim():
                self.classes = scores.shape[1] if scores.dim() > 1 else scores.shape[0]
            return real(*arguments, **options)

        return loss


def _longest_beam(tensor: Tensor, frames: Sequence[FrameType]) -> Value | None:
    """What the search for beams reads (transformers 4.50 to 5.23, generation/utils.py): whether it goes on, as which no
    result is known that is good enough, and at its end how long the best beam is."""
    frame = frames[0] if frames else None
    if frame is None or (frame.f_globals.get("__name__"), frame.f_code.co_name) != _BEAM_SEARCH:
        return None
    if tensor.dtype is torch.bool:
        return True
    held = frame.f_locals
    length: int | None = held.get("cur_len")
    if length is not None and tensor is held.get("max_generated_length"):
        return length - int(held.get("decoder_prompt_len", 0))
    return length


_BEAM_SEARCH = ("transformers.generation.utils", "_beam_search")

_BROADCAST, _ANNOUNCED = "broadcast ", "stage "
"""What ranks tell each other: whole numbers, by the group, the source and how many came before; what a stage of a
pipeline sends."""
_MOST = 64
"""Elements; larger ones are data."""
_WHOLE = (torch.int64, torch.int32, torch.bool)


class BroadcastNumbers:
    """Of one rank; `told` has what those that ran before have broadcast, and takes what this one does."""

    def __init__(self, told: dict[str, str]) -> None:
        self._told = told
        self._alike: dict[str, str] = {}
        places = (json.loads(key.removeprefix(_BROADCAST)) for key in told if key.startswith(_BROADCAST))
        for place in sorted(places):
            self._alike.setdefault(_write_place(*place), told[_BROADCAST + json.dumps(place)])
        self._counts: Counter[tuple[int, ...]] = Counter()

    def pass_on(self, group: dist.ProcessGroup, tensors: Sequence[Tensor], root: int) -> None:
        """A broadcast over the group: kept if it is this rank's, filled in if another's was heard."""
        ranks = tuple(dist.get_process_group_ranks(group))
        number, source = self._counts[ranks], ranks[root]
        self._counts[ranks] += 1
        if len(tensors) != 1 or tensors[0].dtype not in _WHOLE or tensors[0].numel() > _MOST:
            return
        key = _BROADCAST + json.dumps([ranks, source, number])
        if root == group.rank():
            values = known_value(tensors[0])
            if values is not None:
                self._told[key] = json.dumps([*map(int, values.flatten().tolist())])
            return
        heard = json.loads(self._told.get(key, self._alike.get(_write_place(ranks, source, number), "[]")))
        if len(heard) == tensors[0].numel():
            with torch.no_grad():
                tensors[0].copy_(torch.tensor(heard, dtype=tensors[0].dtype).view(tensors[0].shape))


def _write_place(ranks: Sequence[int], source: int, number: int) -> str:
    """A broadcast by where its ranks stand to each other: the source of a group that was not run is taken to say what
    that of another such group has said."""
    return json.dumps([[rank - ranks[0] for rank in ranks], source - ranks[0], number])


# Before its first step a stage of torch.distributed.pipelining is told the shapes of its inputs by the stage before
# it, and those of the gradients of its outputs by the one after it (torch 2.13, distributed/pipelining/stage.py). What
# a rank announces is kept and handed to the ranks that run after it; the gradients of outputs are shaped as these.
_STAGE = "torch.distributed.pipelining.stage:PipelineStage"


class PipelineNeighbours:
    """Answers for the stages that other ranks have. `told` has what the ranks that ran before have announced, and takes
    what this one does."""

    def __init__(self, assumptions: Assumptions, told: dict[str, str]) -> None:
        self._assumptions, self._told = assumptions, told

    @contextmanager
    def present(self) -> Iterator[None]:
        """Inside, a stage hears from its neighbours."""

        def send(stage: Any, meta: Any, to_stage: int) -> None:
            if to_stage > stage.stage_index:
                self._told[f"{_ANNOUNCED}{stage.stage_index}"] = base64.b64encode(pickle.dumps(meta)).decode()

        replaced = {
            "_send_meta": send,
            "_recv_meta": lambda stage, from_stage: self._receive(stage, from_stage),
            "_warmup_forward_vote": _vote,
            "_warmup_backward_result": lambda _stage, received_result: received_result,
        }

        def patched() -> AbstractContextManager[None]:
            return upstream.patch_targets(
                "program pipelines",
                replaced={f"{_STAGE}.{name}": function for name, function in replaced.items()},
                wrapped={f"{_STAGE}.__init__": _requiring_release},
            )

        with upstream.when_imported({pipelines.PACKAGE: patched}):
            yield

    def _receive(self, stage: Any, from_stage: int) -> Any:
        if from_stage > stage.stage_index:
            from torch.distributed.pipelining._utils import _derive_grad_metas, _StageBackwardMeta

            return _StageBackwardMeta(backward_metas=_derive_grad_metas(stage._stage_meta.outputs))
        senders = (int(key.removeprefix(_ANNOUNCED)) for key in self._told if key.startswith(_ANNOUNCED))
        nearest = max((sender for sender in senders if sender <= from_stage), default=None)
        if nearest is None:
            raise ProgramError(
                f"stage {stage.stage_index} of the pipeline waits for the shapes that stage {from_stage} sends",
                allowed="ranks of earlier stages run before it",
                remedy="let a rank of the first stage run too (--ranks auto, or 0 and this one)",
            )
        if nearest != from_stage:
            self._assumptions.add(
                About.PEERS, f"what stage {from_stage} of the pipeline sends is shaped as what stage {nearest} sends"
            )
        return pickle.loads(base64.b64decode(self._told[f"{_ANNOUNCED}{nearest}"]))


def _vote(stage: Any, has_backward: bool, received_acc: torch.Tensor | None = None) -> torch.Tensor:
    """Whether shapes have to be announced at all: every other stage votes as this one does."""
    from torch.distributed.pipelining._utils import InferenceMode

    own = 0 if InferenceMode.needs_dynamic(stage._user_meta, has_backward) else 1
    vote = torch.tensor([own], dtype=torch.int32)  # on the host: it is gone before the first forward
    return vote if received_acc is None else received_acc * vote


def _requiring_release(real: Callable[..., None]) -> Callable[..., None]:
    """A stage that is not given its shapes is refused where its version of torch agrees on them with its neighbours
    otherwise than described here."""

    def make(*arguments: Any, **options: Any) -> None:
        if options.get("output_args") is None:
            torch_releases.require("pipelines of a program", place="PipelineStage")
        real(*arguments, **options)

    return make
