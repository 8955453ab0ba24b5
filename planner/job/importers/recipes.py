"""What a file of another training program says of a whole job, whichever program that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planner.errors import SpecError
from planner.job.importers.drafts import Draft
from planner.job.importers.key_tables import WrittenKeys
from planner.job.nodes import Node


@dataclass(kw_only=True)
class Recipe:
    """One file, read and checked."""

    source: str
    draft: Draft = field(default_factory=Draft)
    """What it says of single keys of the spec, and what its program takes where nothing is written."""
    model: Node | None = None
    """The name or path of the model that it trains, from `folder` on."""
    folder: Path
    decoder: Mapping[str, int] | None = None
    """The sizes of the model, where it is one as the built-in decoder."""
    groups: tuple[str, ...] = ()
    """What is sharded for itself beside the decoder's layers."""
    arguments: WrittenKeys | None = None
    """TrainingArguments, of a program that hands them to transformers' Trainer."""
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

    def adapt(
        self, *, r: int, alpha: int, dropout: float, targets: Sequence[str] = (), four_bits: str = "", dora: str = ""
    ) -> None:
        """Trains a LoRA; `four_bits` and `dora` are the keys that ask for these, empty where none does.

        Raises SpecError where both are asked for.
        """
        if four_bits and dora:
            raise SpecError(f"{dora} stands beside {four_bits}", allowed="one of the two", place=self.source)
        kind = "qlora" if four_bits else "dora" if dora else "lora"
        self.adapter = {"kind": kind, "r": r, "alpha": alpha, "dropout": float(dropout)}
        if targets:
            self.adapter["target_modules"] = list(targets)


def tell_model(draft: Draft, recipe: Recipe) -> None:
    """The model that it trains, where nothing else names one. Raises SpecError for a model that nobody knows."""
    if draft.has("model.hf_config", "model.factory", "model.decoder"):
        return
    if recipe.decoder is not None:
        draft.say_value("model.decoder", recipe.decoder, recipe.source)
        if recipe.groups:
            draft.suppose("parallel.dp_shard.groups", list(recipe.groups), recipe.source)
    if recipe.model is not None:
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
