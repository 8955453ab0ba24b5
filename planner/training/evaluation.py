"""An evaluation: steps without a graph, what transformers' Trainer gathers of them, and text that is generated.

What lives how long is that of transformers 5 (Trainer.evaluation_loop and EvalLoopContainer in trainer.py and
trainer_pt_utils.py, GenerationMixin._sample in generation/utils.py): what a step gathered lives until the next has
gathered its own, and what was gathered before is copied with each step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from planner.errors import SpecError
from planner.events import Phase
from planner.job import schema
from planner.job.shown_evaluation import Part, batches_on_device, shown_batches, shown_tokens
from planner.training import signatures
from planner.training.feed import Feed
from planner.training.inputs import MicroBatch
from planner.training.loss import Objective

Autocast = Callable[[], AbstractContextManager[None]]


@dataclass(slots=True)
class Gathered:
    """What was gathered so far, each kind in one tensor."""

    kept: dict[str, Tensor] = field(default_factory=dict)

    def add(self, name: str, tensor: Tensor) -> None:
        """Copies what was there, with this behind it."""
        before = self.kept.get(name)
        self.kept[name] = tensor if before is None else torch.cat((before, tensor), dim=0)


@dataclass(slots=True)
class Evaluation:
    """One evaluation of a model; `batch` makes a step's batch on the device, `mark` tells that a phase goes on, `free`
    empties the allocator's cache, and `to_host` takes a tensor there."""

    spec: schema.Eval
    objective: Objective
    batch: Callable[[], MicroBatch]
    mark: Callable[[Phase], None]
    around: Callable[[MicroBatch], AbstractContextManager[None]]
    to_host: Callable[[Tensor], object]
    free: Callable[[], None]

    def run(self, model: nn.Module, *, shortened: bool) -> None:
        """All steps, or, `shortened`, those from which the others follow (planner.job.shown_evaluation)."""
        gathered = Gathered()
        count = len(shown_batches(self.spec)) if shortened else self._steps()
        latest: dict[str, Tensor] = {}
        for number in range(1, count + 1):
            self.mark(Phase.EVAL)
            # What the last step has left goes when this one's takes its place.
            latest = self._step(model)
            for name, tensor in latest.items():
                gathered.add(name, tensor)
            whole = self.spec.accumulation_steps
            if whole and number % whole == 0 and not shortened:
                self._take_to_host(gathered)
                latest = {}
                self.free()
        if self.spec.gather:
            self.mark(Phase.EVAL)
            self._take_to_host(gathered)

    def _steps(self) -> int:
        return self.spec.batches if self.spec.gather else batches_on_device(self.spec)

    def _step(self, model: nn.Module) -> dict[str, Tensor]:
        with torch.no_grad():
            batch = self.batch()
            with self.around(batch):
                if not self.spec.gather:
                    self.objective(model, batch)
                    return {}
                loss, logits = self.objective.with_logits(model, batch)
            found = {"loss": gather(loss.detach().mean().repeat(self.spec.micro_batch_size))}
            if self.spec.gather == "logits":
                # accelerate: the output of a model under autocast is made float32.
                found["logits"] = gather(logits.detach().float())
                found |= {name: gather(each) for name, each in batch.labels.items()}
            return found

    def _take_to_host(self, gathered: Gathered) -> None:
        for tensor in gathered.kept.values():
            self.to_host(tensor)
        gathered.kept.clear()


def gather(tensor: Tensor) -> Tensor:
    """The tensor of every rank, one behind the other (accelerate 1, utils/operations.py, _gpu_gather)."""
    world = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    if world == 1:
        return tensor
    tensor = tensor.contiguous()
    gathered = torch.empty(world * tensor.numel(), dtype=tensor.dtype, device=tensor.device)
    torch.distributed.all_gather_into_tensor(gathered, tensor)
    return gathered.view(-1, *tensor.shape[1:])


@dataclass(frozen=True, slots=True)
class Generation:
    """Greedy generation; `prompt` makes the tokens of the prompts on the device."""

    spec: schema.Generate
    feed: Feed
    prompt: Callable[[int], Tensor]
    mark: Callable[[], None]
    autocast: Autocast

    def run(self, model: nn.Module, *, shortened: bool) -> None:
        """All tokens, or, `shortened`, those from which the others follow."""
        with torch.no_grad():
            self._run(model, self._parts(shortened))

    def _parts(self, shortened: bool) -> Iterator[Part]:
        if shortened:
            return iter(shown_tokens(self.spec.max_new_tokens))
        return (Part(number) for number in range(1, self.spec.max_new_tokens))

    def _run(self, model: nn.Module, parts: Iterator[Part]) -> None:
        self.mark()
        tokens = self.prompt(self.spec.prompt_tokens)
        token, cache = self._next(model, tokens, None)
        tokens = torch.cat((tokens, token), dim=1)
        for part in parts:
            self.mark()
            fed = token if part.count == 1 else token.expand(-1, part.count)
            if part.count > 1:  # so many tokens at once: the cache grows to where the next are shown
                tokens = torch.cat((tokens, fed[:, 1:]), dim=1)
            token, cache = self._next(model, fed if self.spec.use_cache else tokens, cache)
            tokens = torch.cat((tokens, token), dim=1)
        self.mark()  # the last token is as those before it: what it found goes when all is over

    def _next(self, model: nn.Module, tokens: Tensor, cache: object) -> tuple[Tensor, object]:
        """The next token of each prompt, and the keys and values of all before it."""
        with self.autocast():
            if not self.spec.use_cache:
                name = next(iter(self.feed.arguments))
                output = model(tokens) if self.feed.positional else model(**{name: tokens})
            else:
                last = {"logits_to_keep": 1} if "logits_to_keep" in signatures.of_forward(model).names else {}
                output = model(input_ids=tokens, past_key_values=cache, use_cache=True, **last)
                cache = getattr(output, "past_key_values", None)
                if cache is None:
                    raise SpecError(
                        f"{type(model).__name__} keeps no keys and values",
                        allowed="false",
                        place="train.eval.generate.use_cache",
                    )
            logits = output if isinstance(output, Tensor) else output.logits
        scores = logits[:, -1, :].to(copy=True, dtype=torch.float32)
        return scores.argmax(dim=-1, keepdim=True), cache
