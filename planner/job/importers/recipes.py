"""What a file of another training program says of a whole job, whichever program that is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planner.errors import SpecError
from planner.job.importers.drafts import Draft
from planner.job.importers.training_arguments import TrainingArguments
from planner.job.nodes import Node, node_from_data


@dataclass(kw_only=True)
class Recipe:
    """One file, read and checked."""

    source: str
    folder: Path
    written: dict[str, Node] = field(default_factory=dict)
    """By the key of the spec."""
    usual: dict[str, Node] = field(default_factory=dict)
    """What its program takes where nothing is written."""
    model: Node | None = None
    """The name or path of the model that it trains."""
    decoder: Mapping[str, int] | None = None
    """The sizes of the model, where it is one as the built-in decoder."""
    groups: tuple[str, ...] = ()
    """What is sharded for itself beside the decoder's layers."""
    arguments: TrainingArguments | None = None
    """Of a program that hands them to transformers' Trainer."""
    adapter: dict[str, Any] | None = None
    """`model.adapter`."""
    freezes_vision: bool = False
    """All linear layers that it adapts are those of the language model alone."""
    shards: bool = False
    """The ranks that no axis names shard the model; else they replicate it."""
    samples_of_a_step: int = 0
    """Of all ranks together; 0: those of one micro-batch of each."""
    ignored: tuple[str, ...] = ()
    supposed: tuple[str, ...] = ()
    """What nobody said or cannot be planned as it is, and what is taken for it."""

    def say(self, path: str, value: Any, place: str) -> None:
        self.written[path] = node_from_data(value, place, path)

    def say_or_suppose(self, path: str, written: Node | None, default: Any) -> None:
        """What is written, or the default of the program, which other sources may replace."""
        if written is None:
            self.suppose(path, default)
        else:
            self.say(path, written.plain(), written.place)

    def suppose(self, path: str, value: Any) -> None:
        self.usual[path] = node_from_data(value, self.source, path)


def fill_draft(draft: Draft, recipe: Recipe) -> None:
    """Puts what the file says into a draft. Raises SpecError where another source says another thing."""
    for path, node in recipe.written.items():
        draft.say(path, node)
    for path, node in recipe.usual.items():
        draft.suppose(path, node.plain(), node.place)


def tell_model(draft: Draft, recipe: Recipe) -> None:
    """The model that it trains, where nothing else names one. Raises SpecError for a model that nobody knows."""
    if draft.has("model.hf_config", "model.factory", "model.decoder"):
        return
    if recipe.decoder is not None:
        draft.say_value("model.decoder", recipe.decoder, recipe.source)
        if recipe.groups:
            draft.suppose("parallel.dp_shard.groups", list(recipe.groups), recipe.source)
    if recipe.model is None:
        return
    draft.say_value("model.hf_config", draft.read_config(recipe.model, recipe.folder), recipe.model.place)


def tell_adapter(draft: Draft, recipe: Recipe, config: Mapping[str, Any]) -> None:
    """The adapter. Raises SpecError where another source says another thing, or for layers that cannot be named."""
    if recipe.adapter is None:
        return
    if recipe.freezes_vision and "vision_config" in config:
        raise SpecError(
            "all linear layers but those of the vision tower are adapted, which peft has no word for",
            allowed="names that modules of the language model alone have, or all-linear",
            remedy="write the names out",
            place=recipe.source,
        )
    draft.say_value("model.adapter", recipe.adapter, recipe.source)


def tell_accumulation(draft: Draft, recipe: Recipe, data_ranks: int) -> None:
    """The micro-batches of a step, out of the samples of all ranks. Raises SpecError where they do not divide."""
    batch = draft.get("train.micro_batch_size")
    if not recipe.samples_of_a_step or batch is None or not isinstance(batch.value, int):
        return
    steps, left = divmod(recipe.samples_of_a_step, max(1, batch.value * data_ranks))
    if left or not steps:
        raise batch.error(
            f"is {batch.value} on {data_ranks} ranks, which does not divide the {recipe.samples_of_a_step} of a step",
            allowed="a divisor",
            remedy="change the global batch, the batch of a rank or the number of GPUs",
        )
    draft.say_value("train.gradient_accumulation_steps", steps, recipe.source)


def leaves(written: Mapping[str, Node], prefix: str = "") -> dict[str, Node]:
    """The values of nested tables by their dotted names."""
    values: dict[str, Node] = {}
    for name, node in written.items():
        values |= leaves(node.value, f"{prefix}{name}.") if isinstance(node.value, dict) else {f"{prefix}{name}": node}
    return values
