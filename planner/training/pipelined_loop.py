"""The training loop of one rank of a pipeline: the model's stages, PyTorch's own schedules."""

from __future__ import annotations

import copy
import itertools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class
from torch.distributed.tensor import DTensor

from planner.errors import SpecError
from planner.events import Phase
from planner.job import pipeline_schedules, schema
from planner.training import absent_peers
from planner.training.device_mesh import World
from planner.training.inputs import Feed
from planner.training.log_levels import raise_log_levels
from planner.training.loop import AUTOCAST_DTYPES, Loop
from planner.training.models.build import build
from planner.training.phases import named_phase
from planner.upstream import torch_releases


@dataclass(frozen=True, slots=True)
class Part:
    """One stage of a pipeline; `module` is built on the meta device, then wrapped in place."""

    index: int
    stages: int
    module: nn.Module
    hidden: int
    vocab: int

    @property
    def first(self) -> bool:
        return self.index == 0

    @property
    def last(self) -> bool:
        return self.index == self.stages - 1

    def input_example(self, spec: schema.Job) -> Tensor:
        """What a micro-batch of it looks like when it comes in, on the meta device."""
        if self.first:
            shape = spec.train.micro_batch_size, spec.train.sequence_length
            return torch.empty(shape, dtype=torch.int64, device="meta")
        return _hidden_states(spec, self.hidden)

    def output_example(self, spec: schema.Job) -> Tensor:
        """What goes out to the next stage, or the logits: of all tokens, as autocast has the head compute them."""
        hidden = _hidden_states(spec, self.hidden)
        if not self.last:
            return hidden
        shape = spec.train.micro_batch_size, spec.train.sequence_length, self.vocab
        dtype = AUTOCAST_DTYPES.get(spec.train.precision, hidden.dtype)
        return torch.empty(shape, dtype=dtype, device="meta", requires_grad=True)


def _hidden_states(spec: schema.Job, width: int) -> Tensor:
    # Under fsdp_mixed fully_shard's param_dtype, in which blocks take and give.
    dtype = torch.bfloat16 if spec.train.precision == "fsdp_mixed" else getattr(torch, spec.model.parameter_dtype)
    shape = spec.train.micro_batch_size, spec.train.sequence_length // _token_shards(spec), width
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=True)


def _token_shards(spec: schema.Job) -> int:
    """Over how many ranks the hidden states between stages are split along the tokens."""
    tp = spec.parallel.tp
    return tp.degree if tp.sequence_parallel and spec.model.decoder is not None else 1


def parts(spec: schema.Job, coordinate: int) -> list[Part]:
    """The parts that ranks at this place of the pipeline hold, by ascending stage, built on the meta device.

    Raises SpecError for a model that cannot be split, or not into so many stages.
    """
    chosen = pipeline_schedules.stages_of(spec.parallel.pp, coordinate)
    if spec.model.decoder is not None:
        return [_part_of_decoder(spec, spec.model.decoder, index) for index in chosen]
    return _parts_of_transformers(spec, chosen)


def together(parts: Sequence[Part]) -> nn.Module:
    """The parts of a rank as one module: the only one, or all by the numbers of their stages."""
    if len(parts) == 1:
        return parts[0].module
    return nn.ModuleDict({f"stage{part.index}": part.module for part in parts})


def find_feed(spec: schema.Job, part: Part) -> Feed:
    """What a micro-batch of the whole model consists of: tokens and labels."""
    if not spec.train.sequence_length:
        raise SpecError("a pipeline needs the tokens of a sequence", place="train.sequence_length")
    tokens = schema.Input(shape=(spec.train.sequence_length,), dtype="int64", maximum=part.vocab)
    return Feed(arguments={"input_ids": tokens}, labels={"labels": tokens})


def _layer_counts(pp: schema.Pp, layers: int) -> tuple[int, ...]:
    """The layers of each stage; SpecError unless every stage has one and they are all of the model's."""
    counts = pipeline_schedules.layers_of_stages(pp, layers)
    if min(counts) < 1:
        raise SpecError(
            f"{layers} layers cannot be split over {len(counts)} stages so that each has one",
            allowed=f"at most {layers} stages",
            place="parallel.pp",
        )
    if sum(counts) != layers:
        raise SpecError(
            f"the split {list(counts)} has {sum(counts)} layers, the model {layers}", place="parallel.pp.split"
        )
    return counts


def _part_of_decoder(spec: schema.Job, decoder: schema.Decoder, index: int) -> Part:
    counts = _layer_counts(spec.parallel.pp, decoder.layers)
    before, stages = sum(counts[:index]), len(counts)
    # Only the layers of this stage are ever built, and get the names that they have in the whole.
    own = replace(spec.model, decoder=replace(decoder, layers=counts[index]))
    model: Any = build(own, torch.device("meta"))
    _rename(model.layers, range(before, before + counts[index]))
    model.token_shards = _token_shards(spec)
    if index > 0:
        model.embedding = None
    if index < stages - 1:
        model.norm = model.head = None
    return Part(index, stages, model, decoder.hidden, decoder.vocab)


def _parts_of_transformers(spec: schema.Job, chosen: Sequence[int]) -> list[Part]:
    whole: Any = build(spec.model, torch.device("meta"))
    base = whole.base_model
    plan = getattr(whole.config, "base_model_pp_plan", None)
    if not plan or whole is base or whole.get_output_embeddings() is None:
        raise SpecError(
            f"transformers does not say how {type(whole).__name__} is split into the stages of a pipeline",
            allowed="models with a head whose config has a base_model_pp_plan, such as LlamaForCausalLM",
            place="model.hf_config",
        )
    if whole.get_output_embeddings().weight is whole.get_input_embeddings().weight:
        raise SpecError(
            "the head shares the embedding's weight, and they lie in two stages: torch.distributed.pipelining (torch "
            "2.13) keeps no weight equal across stages",
            allowed="a model whose embeddings are not tied",
            place="model.hf_config",
        )
    blocks = next(name for name in plan if isinstance(getattr(base, name, None), nn.ModuleList))
    layers = list(getattr(base, blocks))
    counts = _layer_counts(spec.parallel.pp, len(layers))
    ends = list(itertools.accumulate(counts))
    # What is copied is the rest of the model, without its layers.
    setattr(base, blocks, nn.ModuleList())
    config = whole.config.get_text_config()
    stages = []
    for index in chosen:
        shell = copy.deepcopy(whole)
        inner: Any = shell.base_model
        mine = range(ends[index] - counts[index], ends[index])
        setattr(inner, blocks, nn.ModuleList(layers[layer] for layer in mine))
        _rename(getattr(inner, blocks), mine)
        part = Part(index, len(counts), shell, config.hidden_size, config.vocab_size)
        _remove_other_stages(part, inner, plan, blocks)
        stages.append(part)
    return stages


def _rename(layers: nn.ModuleList, names: Sequence[int]) -> None:
    children = list(layers)
    layers._modules.clear()
    layers._modules.update({str(name): child for name, child in zip(names, children, strict=True)})


def _remove_other_stages(part: Part, base: Any, plan: Mapping[str, Any], blocks: str) -> None:
    """Takes out what other stages have, and has the forward begin and end with hidden states where it does."""
    shell: Any = part.module
    order = list(plan)
    if not part.first:
        for name in order[: order.index(blocks)]:
            setattr(base, name, None)
    if not part.last:
        for name in order[order.index(blocks) + 1 :]:
            setattr(base, name, nn.Identity())
        for name, child in list(shell.named_children()):
            if child is not base:
                setattr(shell, name, None)
    whole_forward, first, last = shell.forward, part.first, part.last

    def forward(x: Tensor) -> Tensor:
        arguments = {"input_ids": x} if first else {"inputs_embeds": x}
        if last:
            return whole_forward(**arguments).logits  # type: ignore[no-any-return]
        return base(**arguments).last_hidden_state  # type: ignore[no-any-return]

    shell.forward = forward


@dataclass(kw_only=True)
class PipelinedLoop(Loop):
    """As Loop, with the micro-batches of an iteration run by a schedule."""

    spec: schema.Job
    world: World
    parts: Sequence[Part]
    _stages: list[Stage] = field(init=False)
    _schedule: Any = field(init=False)

    def __post_init__(self) -> None:
        pp = self.parallel.pp
        self._stages = stages = [Stage(self, part) for part in self.parts]
        # Before torch 2.7 a schedule never scales gradients.
        unscaled = {"scale_grads": False} if torch_releases.since(2, 7) else {}
        try:
            self._schedule = get_schedule_class(pp.schedule)(
                stages if pipeline_schedules.SCHEDULES[pp.schedule].several else stages[0],
                self.train.gradient_accumulation_steps,
                loss_fn=self._loss,
                **unscaled,
            )
        except ValueError as refusal:
            raise SpecError(f"{pp.schedule} refuses its stages: {refusal}", place="parallel.pp") from refusal

    def _iterate(self) -> None:
        # Before it raises, a schedule logs all of its actions, which are thousands.
        with raise_log_levels("torch.distributed.pipelining.schedules", level=logging.CRITICAL):
            self._run_micro_batches()
        with named_phase(Phase.OPTIMIZER_STEP):
            self._step()

    def _run_micro_batches(self) -> None:
        with named_phase(Phase.FORWARD):
            batch = self._batch(self.train.micro_batch_size * self.train.gradient_accumulation_steps)
        taken = tuple(batch.arguments.values()) if any(part.first for part in self.parts) else ()
        last = any(part.last for part in self.parts)
        unreturned = {"return_outputs": False} if torch_releases.since(2, 10) else {}
        self._schedule.step(*taken, target=batch.target if last else None, losses=[] if last else None, **unreturned)

    def _loss(self, output: Tensor, target: Tensor) -> Tensor:
        with self.precision.autocast():
            return self.objective.compute_from_output(output, target) / self.train.gradient_accumulation_steps

    def _clip(self, trained: Sequence[nn.Parameter], limit: float) -> None:
        """The norm over the parameters of all stages, as torchtitan's `clip_grad_norm_` has it."""
        norm = nn.utils.get_total_norm([parameter.grad for parameter in trained if parameter.grad is not None])
        if isinstance(norm, DTensor):
            norm = norm.full_tensor()
        norm **= 2.0
        dist.all_reduce(norm, group=self.world.group("pp"))
        norm **= 0.5
        nn.utils.clip_grads_with_norm_(trained, limit, norm)


class Stage(PipelineStage):
    """torch's stage, whose forward is computed in the precision of the loop."""

    def __init__(self, loop: PipelinedLoop, part: Part) -> None:
        self._loop, self._expected = loop, part.output_example(loop.spec)
        super().__init__(
            part.module,
            part.index,
            part.stages,
            loop.device,
            input_args=(part.input_example(loop.spec),),
            output_args=(part.output_example(loop.spec),),
            group=loop.world.group("pp"),
        )

    def forward_one_chunk(self, *arguments: Any, **named: Any) -> Any:
        with named_phase(Phase.FORWARD):
            return super().forward_one_chunk(*arguments, **named)

    def forward_maybe_with_nosync(self, *arguments: Any, **named: Any) -> Any:
        with self._loop.precision.autocast():
            output = super().forward_maybe_with_nosync(*arguments, **named)  # type: ignore[no-untyped-call]
        expected = self._expected
        # The buffers of the next stage were made from what was expected of this one.
        if not self.is_last and (output.shape, output.dtype) != (expected.shape, expected.dtype):
            raise RuntimeError(
                f"stage {self.stage_index} gives {tuple(output.shape)} {output.dtype}, "
                f"expected were {tuple(expected.shape)} {expected.dtype}"
            )
        return output

    def backward_one_chunk(self, *arguments: Any, **named: Any) -> None:
        with named_phase(Phase.BACKWARD):
            super().backward_one_chunk(*arguments, **named)

    def backward_weight_one_chunk(self, *arguments: Any, **named: Any) -> None:
        with named_phase(Phase.BACKWARD):
            super().backward_weight_one_chunk(*arguments, **named)

    def _warmup_backward_result(self, received_result: Tensor | None = None) -> Tensor:
        # Every stage has its shapes from the start, and absent peers say nothing of theirs.
        return absent_peers.agree_to(super()._warmup_backward_result(received_result))
