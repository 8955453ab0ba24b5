"""What a file of another training program says of a whole job: of TRL, Axolotl and LLaMA-Factory, which hand it to
transformers' Trainer, and of PEFT's adapters.

What the keys of Axolotl do is in its core/builders (0.19.0), those of LLaMA-Factory in its model/adapter.py and
model/model_utils/checkpointing.py (0.9.5).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from planner.errors import SpecError
from planner.job.field_checks import SIXTEEN_OR_MORE
from planner.job.importers import training_arguments
from planner.job.importers.drafts import Draft, read_json_file, read_yaml_file
from planner.job.importers.key_tables import WrittenKeys, table
from planner.job.nodes import Node, node_from_data
from planner.job.schema import ALL_LINEAR

_STEPS = "gradient_accumulation_steps"
_CUT_CROSS_ENTROPY = "axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"
_DEGREES = {
    "dp_shard_size": "parallel.dp_shard.degree",
    "dp_replicate_size": "parallel.dp_replicate.degree",
    "tensor_parallel_size": "parallel.tp.degree",
}
"""Of Axolotl."""


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
    """What is not given or cannot be planned as it is, and what is assumed."""

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
    if recipe.model is not None and recipe.model.value is not None:
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


def read_trl(path: Path) -> Recipe:
    """TrainingArguments with what TRL's SFTTrainer adds to them, in JSON or YAML. Raises SpecError for what is unknown,
    of a wrong type or not understood, as the others do."""
    reader = read_yaml_file if path.suffix.lower() in (".yaml", ".yml") else read_json_file
    known = table("TRL", *training_arguments.TABLES)
    written = known.read(reader(path, training_arguments.WRITER).mapping(), source=str(path))
    trainer = written.only(table(*training_arguments.TABLES).keys)
    recipe = Recipe(
        source=str(path), folder=path.parent, ignored=written.ignored,
        model=written.nodes.get("model_name_or_path"), arguments=training_arguments.of_nodes(trainer, path.parent),
    )  # fmt: skip
    if written["max_length"] is not None:
        recipe.draft.say("train.sequence_length", written.node("max_length"))
    if written["dtype"] not in (None, "auto"):
        if written["dtype"] not in SIXTEEN_OR_MORE.names:
            raise written.is_error("dtype", allowed=f"auto, {SIXTEEN_OR_MORE.allowed}")
        recipe.draft.suppose("model.parameter_dtype", written["dtype"], recipe.source)
    if not written["use_peft"]:
        return recipe
    targets, four_bits = written["lora_target_modules"] or [], bool(written["load_in_4bit"])
    recipe.adapt(
        r=written["lora_r"], alpha=written["lora_alpha"], dropout=written["lora_dropout"],
        targets=targets if isinstance(targets, list) else [str(targets)],
        four_bits="load_in_4bit" if four_bits else "", dora="use_dora" if written["use_dora"] else "",
    )  # fmt: skip
    if four_bits and not written["use_bnb_nested_quant"]:
        recipe.supposed += ("double quantization of the four bits, which takes less (0.373 bits of a weight)",)
    return recipe


def read_axolotl(path: Path) -> Recipe:
    """Axolotl's YAML."""
    document = read_yaml_file(path, "axolotl train takes").mapping()
    # What is written out, and left empty, is as if it were not there.
    given = {name: node for name, node in document.items() if node.value is not None and node.value != ""}
    known = table("Axolotl")
    written = known.read(given, source=str(path))
    recipe = Recipe(
        source=str(path), folder=path.parent, ignored=written.ignored, supposed=written.supposed,
        model=written.nodes.get("base_model"),
    )  # fmt: skip
    precision, dtype = _axolotl_precision(written)
    fields = {known.handed_on[name]: node for name, node in written.only(known.handed_on).items()} | precision
    batch, part, steps = (written.nodes.get(name) for name in ("batch_size", "micro_batch_size", _STEPS))
    if batch is not None and part is not None and part.value and steps is None:
        fields[_STEPS] = node_from_data(batch.plain() // part.plain(), batch.place, _STEPS)
    if (recomputes := written["gradient_checkpointing"]) is not False:
        if recomputes is not True:
            remedy = "activations on the host are train.activation_offload in JOB.yaml"
            raise written.is_error("gradient_checkpointing", allowed="true, false", remedy=remedy)
        fields |= written.only(dict.fromkeys(("gradient_checkpointing", "gradient_checkpointing_kwargs")))
    if "fsdp_config" in written or "fsdp" in written:
        # FSDP as TrainingArguments ask for it, its version inside of its config.
        config = written.nodes.get("fsdp_config")
        place = written.node("fsdp").place if config is None else config.place
        inner = {} if config is None else dict(config.mapping())
        if "fsdp_version" in written:
            inner["version"] = written.node("fsdp_version")
        fields["fsdp"] = written.nodes.get("fsdp") or node_from_data(True, place, "fsdp")
        fields["fsdp_config"] = Node(inner, "fsdp_config", place, place)
    recipe.arguments = training_arguments.of_nodes(fields, path.parent)
    recipe.draft.suppose("model.parameter_dtype", dtype, recipe.source)
    written.tell(recipe.draft, "sequence_len", "train.sequence_length")
    for name, degree in _DEGREES.items():
        if name in written:
            recipe.draft.say(degree, written.node(name))
    _adapt_axolotl(written, recipe)
    if _CUT_CROSS_ENTROPY in (written["plugins"] or ()):
        recipe.supposed += (known.keys["cut_cross_entropy"].supposed,)
    return recipe


def _axolotl_precision(written: WrittenKeys) -> tuple[dict[str, Node], str]:
    """The field of TrainingArguments, and the dtype in which the model is loaded."""
    asked = written["bf16"]
    if asked not in (None, True, False, "auto", "full"):
        raise written.is_error("bf16", allowed="true, false, auto, full")
    if asked in (True, "auto"):
        return {"bf16": node_from_data(True, written.node("bf16").place, "bf16")}, "bfloat16"
    if asked == "full" or written["bfloat16"]:
        return {}, "bfloat16"
    if written["fp16"]:
        return {"fp16": written.node("fp16")}, "float16"
    return {}, "float16" if written["float16"] else "float32"


def _adapt_axolotl(written: WrittenKeys, recipe: Recipe) -> None:
    kind, targets = written["adapter"], written["lora_target_modules"]
    if kind is None:
        return
    if kind not in ("lora", "qlora"):
        raise written.is_error("adapter", allowed="lora, qlora", remedy="other adapters are not planned")
    if written["lora_target_linear"] or targets == ALL_LINEAR:
        # It adapts what is named beside all linear layers too.
        if isinstance(targets, list) and not {"embed_tokens", "lm_head"}.isdisjoint(targets):
            allowed = "linear layers beside lora_target_linear"
            remedy = "delete lora_target_linear, and name all that is adapted"
            raise written.is_error("lora_target_modules", allowed=allowed, remedy=remedy)
        targets = [ALL_LINEAR]
    elif targets is not None and not isinstance(targets, list):
        allowed = f"a list of names, or {ALL_LINEAR}"
        raise written.is_error("lora_target_modules", allowed=allowed, remedy="write the names out")
    four_bits = kind == "qlora" or bool(written["load_in_4bit"])
    recipe.adapt(
        r=written["lora_r"], alpha=written["lora_alpha"], dropout=written["lora_dropout"], targets=targets or (),
        four_bits="qlora" if four_bits else "", dora="peft_use_dora" if written["peft_use_dora"] else "",
    )  # fmt: skip


def read_llama_factory(path: Path) -> Recipe:
    """The YAML of `llamafactory-cli train`."""
    own, trainer = table("LLaMA-Factory"), table(*training_arguments.TABLES)
    known = replace(table(*training_arguments.TABLES, "LLaMA-Factory"), program=own.program)
    all_written = known.read(read_yaml_file(path, "llamafactory-cli train takes").mapping())
    fields = {name: node for name, node in all_written.only(trainer.keys).items() if name not in own.keys}
    own_nodes = {name: node for name, node in all_written.nodes.items() if name not in fields}
    written = own.read(own_nodes, source=str(path))
    recipe = Recipe(
        source=str(path), folder=path.parent, ignored=written.ignored, supposed=written.supposed,
        model=written.nodes.get("model_name_or_path"),
    )  # fmt: skip
    # It recomputes unless it is told not to, whatever TrainingArguments say.
    name = "disable_gradient_checkpointing"
    if recomputes := not written[name]:
        recipe.supposed += ("recomputation without reentrancy, which LLaMA-Factory has under FSDP alone",)
    fields = {field: node for field, node in fields.items() if "checkpointing" not in field}
    place = written.node(name).place if name in written else recipe.source
    fields["gradient_checkpointing"] = node_from_data(recomputes, place, name)
    recipe.arguments = training_arguments.of_nodes(fields, path.parent)
    written.tell(recipe.draft, "cutoff_len", "train.sequence_length")
    _adapt_llama_factory(written, recipe, training_arguments.read_precision(recipe.arguments))
    return recipe


def _adapt_llama_factory(written: WrittenKeys, recipe: Recipe, precision: Node | None) -> None:
    """Full training keeps parameters in float32; beside an adapter they have the dtype of the mixed precision."""
    kind, bits = written["finetuning_type"], written["quantization_bit"]
    if kind not in ("lora", "full"):
        problem, remedy = f"is {kind!r}", "other kinds are not planned"
        raise written.node("finetuning_type").error(problem, allowed="lora, full", remedy=remedy)
    if kind == "full":
        recipe.draft.suppose("model.parameter_dtype", "float32", recipe.source)
        return
    if bits not in (None, 4):
        remedy = "`planner run` plans other widths"
        raise written.node("quantization_bit").error(f"is {bits}", allowed="4, null", remedy=remedy)
    rank, alpha, targets = written["lora_rank"], written["lora_alpha"], str(written["lora_target"])
    names = [name for target in targets.split(",") if (name := target.strip())]
    recipe.freezes_vision = targets == "all"
    recipe.adapt(
        r=rank, alpha=2 * rank if alpha is None else alpha, dropout=written["lora_dropout"],
        targets=[ALL_LINEAR] if targets == "all" else names,
        four_bits="quantization_bit" if bits else "", dora="use_dora" if written["use_dora"] else "",
    )  # fmt: skip
    if precision is not None:
        dtype = "bfloat16" if precision.value == "bf16" else "float16"
        recipe.draft.suppose("model.parameter_dtype", dtype, recipe.source)


ADAPTER_FILE = "adapter_config.json"


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """What PEFT's adapter_config.json decides, as LoraConfig writes it."""

    base: str
    """The name or path of the model that it adapts; empty if it does not say."""
    adapter: Mapping[str, Any]
    """`model.adapter` as a spec writes it."""
    place: str
    ignored: tuple[str, ...]


def read_peft(path: Path) -> Recipe:
    """The adapter of a file, or of the one in a folder, as a source beside others."""
    file = path / ADAPTER_FILE if path.is_dir() else path
    config = read_adapter(read_json_file(file, "peft saves beside an adapter"))
    recipe = Recipe(source=str(file), folder=file.parent, ignored=config.ignored)
    recipe.draft.say_value("model.adapter", config.adapter, config.place)
    if config.base:
        recipe.model = node_from_data(config.base, config.place, "base_model_name_or_path")
    return recipe


def read_adapter(document: Node) -> AdapterConfig:
    """The adapter of a document that somebody read."""
    known = table("LoraConfig")
    written = known.read(document.mapping())
    # Null is as if it were not there.
    values = replace(written, nodes={name: node for name, node in written.nodes.items() if node.value is not None})
    alpha, targets = values["lora_alpha"], values["target_modules"]
    if isinstance(alpha, float) and not alpha.is_integer():
        remedy = "round it; it has no effect on memory"
        raise values.is_error("lora_alpha", allowed="a whole number", remedy=remedy)
    adapter: dict[str, Any] = {
        "kind": "dora" if values["use_dora"] else "lora",
        "r": values["r"],
        "alpha": int(alpha),
        "dropout": float(values["lora_dropout"]),
    }
    if targets is not None:
        names = [ALL_LINEAR] if str(targets).lower() == ALL_LINEAR else targets
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            allowed = "a list of names, as q_proj and v_proj, or all-linear"
            raise values.is_error(
                "target_modules", allowed=allowed, remedy="write out the names that the pattern stands for"
            )
        adapter["target_modules"] = sorted(names)
    return AdapterConfig(values["base_model_name_or_path"] or "", adapter, document.place, written.ignored)
