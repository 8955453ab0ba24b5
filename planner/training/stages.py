"""Splits a model into the parts that lie on one rank of a pipeline.

A part has the blocks of its stage under the names that they have in the whole model, the embedding only in the first
stage, norm and head only in the last; between stages the hidden states travel. So torchtitan splits its models, and so
transformers describes its own (`base_model_pp_plan`).
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from planner.errors import SpecError
from planner.job import pipeline_schedules, schema
from planner.training.dtypes import floating
from planner.training.feed import Feed
from planner.training.models.build import build


@dataclass(frozen=True, slots=True)
class Part:
    """One stage of a pipeline, on the meta device."""

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
            return torch.empty(_tokens(spec), dtype=torch.int64, device="meta")
        return _hidden(spec, self.hidden)

    def output_example(self, spec: schema.Job) -> Tensor:
        """What goes out to the next stage, or the logits."""
        return _hidden(spec, self.vocab if self.last else self.hidden)


def parts(spec: schema.Job, coordinate: int) -> list[Part]:
    """The parts that ranks at this place of the pipeline hold, by ascending stage, built on the meta device.

    Raises SpecError for a model that cannot be split, or not into so many stages.
    """
    if spec.model.factory:
        raise SpecError(
            "the model of a factory cannot be split into the stages of a pipeline: nobody says where",
            allowed="a decoder, or the config of a transformers decoder",
            place="model.factory",
        )
    chosen = pipeline_schedules.stages_of(spec.parallel.pp, coordinate)
    if spec.model.decoder is not None:
        return [_of_decoder(spec, spec.model.decoder, index) for index in chosen]
    return _of_transformers(spec, chosen)


def check_layers(pp: schema.Pp, layers: int) -> tuple[int, ...]:
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


def _of_decoder(spec: schema.Job, decoder: schema.Decoder, index: int) -> Part:
    counts = check_layers(spec.parallel.pp, decoder.layers)
    before, stages = sum(counts[:index]), len(counts)
    # Only the layers of this stage are ever built, and get the names that they have in the whole.
    own = replace(spec.model, decoder=replace(decoder, layers=counts[index]))
    model: Any = build(own, torch.device("meta"))
    _rename(model.layers, range(before, before + counts[index]))
    model.token_shards = token_shards(spec)
    if index > 0:
        model.embedding = None
    if index < stages - 1:
        model.norm = model.head = None
    return Part(index, stages, model, decoder.hidden, decoder.vocab)


def _of_transformers(spec: schema.Job, chosen: Sequence[int]) -> list[Part]:
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
        raise make_tied_error("model.hf_config")
    blocks = next(name for name in plan if isinstance(getattr(base, name, None), nn.ModuleList))
    layers = list(getattr(base, blocks))
    counts = check_layers(spec.parallel.pp, len(layers))
    ends = list(itertools.accumulate(counts))
    # What is copied is the rest of the model, without its layers.
    setattr(base, blocks, nn.ModuleList())
    found = []
    for index in chosen:
        shell = copy.deepcopy(whole)
        inner: Any = shell.base_model
        mine = range(ends[index] - counts[index], ends[index])
        setattr(inner, blocks, nn.ModuleList(layers[layer] for layer in mine))
        _rename(getattr(inner, blocks), mine)
        _remove_other_stages(shell, inner, plan, blocks, first=index == 0, last=index == len(counts) - 1)
        config = whole.config.get_text_config()
        found.append(Part(index, len(counts), shell, config.hidden_size, config.vocab_size))
    return found


def feed_of(spec: schema.Job, part: Part) -> Feed:
    """What a micro-batch of the whole model consists of: tokens and labels."""
    if not spec.train.sequence_length:
        raise SpecError("a pipeline needs the tokens of a sequence", place="train.sequence_length")
    tokens = schema.Input(shape=(spec.train.sequence_length,), dtype="int64", maximum=part.vocab)
    return Feed(arguments={"input_ids": tokens}, labels={"labels": tokens})


def make_tied_error(place: str) -> SpecError:
    """What is said of a model whose head is its embedding: they lie in two stages."""
    return SpecError(
        "the head shares the embedding's weight, and they lie in two stages: torch.distributed.pipelining (torch 2.13) "
        "keeps no weight equal across stages",
        allowed="a model whose embeddings are not tied",
        place=place,
    )


def _remove_other_stages(
    shell: Any, base: Any, plan: Mapping[str, Any], blocks: str, *, first: bool, last: bool
) -> None:
    """Takes out what other stages have, and has the forward begin and end with hidden states where it does."""
    order = list(plan)
    before, after = order[: order.index(blocks)], order[order.index(blocks) + 1 :]
    if not first:
        for name in before:
            setattr(base, name, None)
    if not last:
        for name in after:
            setattr(base, name, nn.Identity())
        for name, child in list(shell.named_children()):
            if child is not base:
                setattr(shell, name, None)
    whole_forward = shell.forward

    def forward(x: Tensor) -> Tensor:
        arguments = {"input_ids": x} if first else {"inputs_embeds": x}
        if last:
            return whole_forward(**arguments).logits  # type: ignore[no-any-return]
        return base(**arguments).last_hidden_state  # type: ignore[no-any-return]

    shell.forward = forward


def _rename(layers: nn.ModuleList, names: Sequence[int]) -> None:
    children = list(layers)
    layers._modules.clear()
    layers._modules.update({str(name): child for name, child in zip(names, children, strict=True)})


def token_shards(spec: schema.Job) -> int:
    """Over how many ranks the hidden states between stages are split along the tokens."""
    tp = spec.parallel.tp
    return tp.degree if tp.sequence_parallel and spec.model.decoder is not None else 1


def _tokens(spec: schema.Job) -> tuple[int, int]:
    return (spec.train.micro_batch_size, spec.train.sequence_length)


def _hidden(spec: schema.Job, width: int) -> Tensor:
    dtype = floating(spec.model.parameter_dtype, place="model.parameter_dtype")
    if spec.train.precision == "fsdp_mixed":
        dtype = torch.bfloat16  # fully_shard's param_dtype, in which blocks take and give
    batch, tokens = _tokens(spec)
    return torch.empty((batch, tokens // token_shards(spec), width), dtype=dtype, device="meta", requires_grad=True)
