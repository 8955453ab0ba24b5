"""The training loop: micro-batches, precision, clipping, the optimizer's step, evaluation; and DeepSpeed's."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from planner.errors import SpecError
from planner.events import Phase
from planner.job import schema
from planner.job.sampled_runs import Part, batches_on_device, shown_batches, shown_tokens
from planner.training import blocks, host, inputs, optimizers
from planner.training.inputs import BatchesOfLengths, Feed, MicroBatch
from planner.training.loss_functions import Objective
from planner.training.phases import named_phase
from planner.training.wraps import context_parallel, fsdp2
from planner.training.wraps.ddp import fewest_iterations

if TYPE_CHECKING:
    from planner.training.checkpoints import CheckpointSaver

AUTOCAST_DTYPES = {"bf16_autocast": torch.bfloat16, "fp16_autocast": torch.float16}


class Precision:
    """How a job computes: plainly, or under autocast, with a scaler for fp16.

    Pure low precision is `none` with parameters of that dtype; `fsdp_mixed` is the policy of fully_shard,
    which casts by itself.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        """Raises RuntimeError if torch turned the scaler off."""
        self._device_type = device.type
        self._dtype = AUTOCAST_DTYPES.get(name)
        self.scaler = torch.amp.GradScaler(device.type) if name == "fp16_autocast" else None
        # GradScaler and autocast look for their device themselves and turn off with a mere warning: a plan without them
        # would be a plan of another program.
        if self.scaler is not None and not self.scaler.is_enabled():
            raise RuntimeError(f"GradScaler turned itself off on {device.type}")

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """Around forward and loss, not around backward."""
        if self._dtype is None:
            yield
            return
        with torch.autocast(self._device_type, self._dtype):
            if not torch.is_autocast_enabled(self._device_type):
                raise RuntimeError(f"autocast turned itself off on {self._device_type}")
            yield

    def scale_loss(self, loss: torch.Tensor) -> torch.Tensor:
        return loss if self.scaler is None else self.scaler.scale(loss)


_FEWEST_GROWING = 7
"""Iterations of a step that keeps something: so many show what one keeps."""


@dataclass(kw_only=True)
class Loop:
    """Everything the iterations need, built and wrapped."""

    train: schema.Train
    parallel: schema.Parallel
    model: nn.Module
    bare_model: nn.Module
    optimizer: torch.optim.Optimizer
    objective: Objective
    feed: Feed
    precision: Precision
    device: torch.device
    splitting: context_parallel.Split = field(default=context_parallel.whole)
    data: BatchesOfLengths | None = None
    """Of a run whose batches differ in length."""
    shortened: bool = False
    """Whether of a long evaluation only some steps and tokens are run (planner.job.sampled_runs)."""
    steps: int = 0
    """That are run of `data`; 0: all."""

    def __post_init__(self) -> None:
        self._losses: list[Tensor] = []
        self._loaded: Iterator[dict[str, Tensor]] = iter(())
        if self.train.retains == "output":
            self.objective.outputs = []

    def run(self) -> None:
        """All iterations; an evaluation after every `eval.every`, or after the last if none came before."""
        evaluation, saving, last = self.train.eval, self.train.checkpoint_save, self._iterations()
        if self.data is not None:
            self._loaded = iter(DataLoader(self.data, batch_size=None))
        with optimizers.step_in_backward(self.optimizer):
            for iteration in range(1, last + 1):
                self._iterate()
                if evaluation is not None and _is_due(iteration, evaluation.every, last):
                    self._evaluate(evaluation)
                if saving is not None and _is_due(iteration, saving.every, last):
                    self._saver.save()
                gc.collect()
                if self.train.empty_cache_every and iteration % self.train.empty_cache_every == 0:
                    self._empty_cache()
            if saving is not None:
                self._saver.finish()

    def _iterations(self) -> int:
        if self.data is not None:
            return self.steps or len(self.data) // self.train.gradient_accumulation_steps
        fewest = max(fewest_iterations(self.parallel.dp_replicate), blocks.fewest_iterations(self.train.compile))
        return max(self.train.iterations, fewest, _FEWEST_GROWING if self.train.retains else 0)

    @cached_property
    def _saver(self) -> CheckpointSaver:
        # Jobs that save alone pay for the import of torch.distributed.checkpoint.
        from planner.training.checkpoints import CheckpointSaver

        assert self.train.checkpoint_save is not None
        return CheckpointSaver(self.train.checkpoint_save, self.bare_model, self.optimizer)

    def _iterate(self) -> None:
        for micro_batch in range(1, self.train.gradient_accumulation_steps + 1):
            with self._syncing(last=micro_batch == self.train.gradient_accumulation_steps):
                self._micro_batch()
        with named_phase(Phase.OPTIMIZER_STEP):
            self._step()

    def _micro_batch(self) -> None:
        with ExitStack() as split:
            with named_phase(Phase.FORWARD):
                batch = self._batch(self.train.micro_batch_size, next(self._loaded, None))
                split.enter_context(self.splitting(batch))
                with self.precision.autocast():
                    loss = self.objective(self.model, batch)
                loss = self._scale_to_one(loss)
            with named_phase(Phase.BACKWARD):
                self._backward(loss)
        if self.train.retains == "loss":
            self._losses.append(loss)

    def _batch(self, samples: int, loaded: dict[str, Tensor] | None = None) -> MicroBatch:
        own_loss = self.objective.own
        tensors = loaded or inputs.make(self.feed, samples, own_loss=own_loss)
        batch = inputs.move(tensors, self.feed, self.device, own_loss=own_loss)
        host.take_batch(batch.tensors())
        return batch

    def _scale_to_one(self, loss: Tensor) -> Tensor:
        steps = self.train.gradient_accumulation_steps
        return loss / steps if steps > 1 else loss

    def _backward(self, loss: Tensor) -> None:
        self.precision.scale_loss(loss).backward()

    def _syncing(self, *, last: bool) -> AbstractContextManager[None]:
        """What is reduced in the last micro-batch only, if the job accumulates under `no_sync`."""
        no_sync = self.parallel.dp_shard.no_sync
        fsdp2.syncs(self.model, last=last, no_sync=no_sync)
        if last or not self.parallel.dp_replicate.no_sync or not isinstance(self.model, DistributedDataParallel):
            return nullcontext()
        return self.model.no_sync()

    def _step(self) -> None:
        scaler, limit = self.precision.scaler, self.train.gradient_clipping
        if limit:
            if scaler is not None:
                scaler.unscale_(self.optimizer)
            self._clip([parameter for parameter in self.bare_model.parameters() if parameter.requires_grad], limit)
        if scaler is None:
            self.optimizer.step()
        else:
            scaler.step(self.optimizer)
            scaler.update()
        self.optimizer.zero_grad(set_to_none=self.train.zero_grad_set_to_none)

    def _clip(self, trained: Sequence[nn.Parameter], limit: float) -> None:
        optimizers.clip(trained, limit)

    def _empty_cache(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _evaluate(self, spec: schema.Eval) -> None:
        """Without a graph: the model in eval mode, as the job evaluates, then back to training.

        Where it is shortened, only the steps and tokens from which the others follow (planner.job.sampled_runs).
        """
        self.model.eval()
        try:
            self._evaluate_batches(spec)
            if spec.generate is not None:
                with torch.no_grad():
                    self._generate(spec.generate)
        finally:
            self.model.train()

    # What lives how long in an evaluation is that of transformers 5 (Trainer.evaluation_loop and EvalLoopContainer in
    # trainer.py and trainer_pt_utils.py, GenerationMixin._sample in generation/utils.py): what a step gathered lives
    # until the next has gathered its own, and what was gathered before is copied with each step.
    def _evaluate_batches(self, spec: schema.Eval) -> None:
        gathered: dict[str, Tensor] = {}
        batches = spec.batches if spec.gather else batches_on_device(spec)
        count = len(shown_batches(spec)) if self.shortened else batches
        latest: dict[str, Tensor] = {}
        for number in range(1, count + 1):
            with named_phase(Phase.EVAL):
                # What the last step has left goes when this one's takes its place.
                latest = self._evaluate_batch(spec)
                for name, tensor in latest.items():
                    gathered[name] = torch.cat((gathered[name], tensor), dim=0) if name in gathered else tensor
                whole = spec.accumulation_steps
                if whole and number % whole == 0 and not self.shortened:
                    self._take_to_host(gathered)
                    latest = {}
                    self._empty_cache()
        if spec.gather:
            with named_phase(Phase.EVAL):
                self._take_to_host(gathered)

    def _evaluate_batch(self, spec: schema.Eval) -> dict[str, Tensor]:
        with torch.no_grad():
            batch = self._batch(spec.micro_batch_size)
            with self.precision.autocast(), self.splitting(batch):
                if not spec.gather:
                    self.objective(self.model, batch)
                    return {}
                loss, logits = self.objective.with_logits(self.model, batch)
            results = {"loss": _gather(loss.detach().mean().repeat(spec.micro_batch_size))}
            if spec.gather == "logits":
                # accelerate: the output of a model under autocast is made float32.
                results["logits"] = _gather(logits.detach().float())
                results |= {name: _gather(label) for name, label in batch.labels.items()}
            return results

    def _take_to_host(self, gathered: dict[str, Tensor]) -> None:
        for tensor in gathered.values():
            tensor.cpu()
        gathered.clear()

    def _generate(self, spec: schema.Generate) -> None:
        """Greedy generation of all tokens, or, shortened, of those from which the others follow."""
        model, count = self.bare_model, spec.max_new_tokens
        with named_phase(Phase.GENERATE):
            prompt_tokens = spec.prompt_tokens or self.train.sequence_length
            tokens = inputs.prompts(self.feed, spec.batch, prompt_tokens, self.device)
            token, cache = self._next_token(model, tokens, None, use_cache=spec.use_cache)
            tokens = torch.cat((tokens, token), dim=1)
        for part in shown_tokens(count) if self.shortened else map(Part, range(1, count)):
            with named_phase(Phase.GENERATE):
                fed = token if part.count == 1 else token.expand(-1, part.count)
                if part.count > 1:  # so many tokens at once: the cache grows to where the next are shown
                    tokens = torch.cat((tokens, fed[:, 1:]), dim=1)
                token, cache = self._next_token(
                    model, fed if spec.use_cache else tokens, cache, use_cache=spec.use_cache
                )
                tokens = torch.cat((tokens, token), dim=1)
        # The last token is as those before it: what it found goes when all is over.
        with named_phase(Phase.GENERATE):
            del token, tokens, cache

    def _next_token(self, model: nn.Module, tokens: Tensor, cache: object, *, use_cache: bool) -> tuple[Tensor, object]:
        with self.precision.autocast():
            if not use_cache:
                name = next(iter(self.feed.arguments))
                output = model(tokens) if self.feed.positional else model(**{name: tokens})
            else:
                last = {"logits_to_keep": 1} if "logits_to_keep" in inputs.forward_signature(model).names else {}
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


def _gather(tensor: Tensor) -> Tensor:
    """The tensor of every rank, one behind the other (accelerate 1, utils/operations.py, _gpu_gather)."""
    world = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    if world == 1:
        return tensor
    tensor = tensor.contiguous()
    gathered = torch.empty(world * tensor.numel(), dtype=tensor.dtype, device=tensor.device)
    torch.distributed.all_gather_into_tensor(gathered, tensor)
    return gathered.view(-1, *tensor.shape[1:])


def _is_due(iteration: int, every: int, last: int) -> bool:
    return iteration % every == 0 or (iteration == last and every > last)


class EngineLoop(Loop):
    """As `Loop`; the model is DeepSpeed's own engine."""

    def _iterate(self) -> None:
        engine: Any = self.model
        for micro_batch in range(1, self.train.gradient_accumulation_steps + 1):
            self._micro_batch()
            last = micro_batch == self.train.gradient_accumulation_steps
            with named_phase(Phase.OPTIMIZER_STEP) if last else nullcontext():
                engine.step()

    def _scale_to_one(self, loss: Tensor) -> Tensor:
        return loss

    def _backward(self, loss: Tensor) -> None:
        engine: Any = self.model
        engine.backward(loss)
