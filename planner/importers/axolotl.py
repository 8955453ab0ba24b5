"""Reads Axolotl's YAML, which hands most of itself to transformers' Trainer (Axolotl 0.19.0, core/builders)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.errors import SpecError
from planner.importers import foreign_keys, training_arguments
from planner.importers.axolotl_keys import KEYS, OF_TRAINER, PROGRAM
from planner.importers.files import read_yaml_file
from planner.importers.recipes import Recipe
from planner.job.nodes import Node, node_from_data

WRITER = "axolotl train takes"
_DEGREES = {
    "dp_shard_size": "parallel.dp_shard.degree",
    "dp_replicate_size": "parallel.dp_replicate.degree",
    "tensor_parallel_size": "parallel.tp.degree",
}
_KERNELS = ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel")


def read(path: Path) -> Recipe:
    """The job of a file. Raises SpecError for what is unknown, of a wrong type or not understood."""
    written = {
        name: node
        for name, node in read_yaml_file(path, WRITER).mapping().items()
        if node.value is not None and node.value != ""  # written out, and left empty: as if it were not there
    }
    for name, node in written.items():
        foreign_keys.check(KEYS, name, node, PROGRAM)
    recipe = Recipe(
        source=str(path), folder=path.parent, ignored=tuple(foreign_keys.list_ignored(KEYS, written)),
        model=written.get("base_model"),
    )  # fmt: skip
    precision, dtype = _precision(written)
    fields = {OF_TRAINER[name]: node for name, node in written.items() if name in OF_TRAINER}
    fields |= _recomputation(written) | _sharding(written) | precision
    recipe.arguments = training_arguments.of_nodes(fields, path.parent)
    recipe.suppose("model.parameter_dtype", dtype)
    recipe.say_or_suppose("train.sequence_length", written.get("sequence_len"), KEYS["sequence_len"].default)
    for name, degree in _DEGREES.items():
        if name in written:
            recipe.say(degree, written[name].plain(), written[name].place)
    _tell_adapter(written, recipe)
    if _value(written, "val_set_size"):
        recipe.supposed += ("no evaluation: what it evaluates after how many steps is not read (JOB.yaml: train.eval)",)
    return recipe


def _value(written: Mapping[str, Node], name: str) -> Any:
    node = written.get(name)
    return KEYS[name].default if node is None else node.plain()


def _precision(written: Mapping[str, Node]) -> tuple[dict[str, Node], str]:
    """The field of TrainingArguments, and the dtype in which the model is loaded."""
    asked = written.get("bf16")
    if asked is not None and asked.value not in (True, False, "auto", "full"):
        raise asked.is_error(allowed="true, false, auto, full", remedy="write one of these")
    if asked is not None and asked.value in (True, "auto"):
        return {"bf16": node_from_data(True, asked.place, "bf16")}, "bfloat16"
    if (asked is not None and asked.value == "full") or _value(written, "bfloat16"):
        return {}, "bfloat16"
    if _value(written, "fp16"):
        return {"fp16": written["fp16"]}, "float16"
    return {}, "float16" if _value(written, "float16") else "float32"


def _recomputation(written: Mapping[str, Node]) -> dict[str, Node]:
    asked = written.get("gradient_checkpointing")
    if asked is None or asked.value is False:
        return {}
    if asked.value is not True:
        raise asked.is_error(
            allowed="true, false", remedy="activations on the host are train.activation_offload in JOB.yaml"
        )
    options = written.get("gradient_checkpointing_kwargs")
    return {"gradient_checkpointing": asked} | ({} if options is None else {"gradient_checkpointing_kwargs": options})


def _sharding(written: Mapping[str, Node]) -> dict[str, Node]:
    """FSDP as TrainingArguments ask for it, its version inside of its config."""
    config = written.get("fsdp_config")
    if config is None and "fsdp" not in written:
        return {}
    inner = {} if config is None else dict(config.mapping())
    if "fsdp_version" in written:
        inner["version"] = written["fsdp_version"]
    place = config.place if config is not None else written["fsdp"].place
    asked = written.get("fsdp") or node_from_data(True, place, "fsdp")
    return {"fsdp": asked, "fsdp_config": Node(inner, "fsdp_config", place, place)}


def _tell_adapter(written: Mapping[str, Node], recipe: Recipe) -> None:
    kind = _value(written, "adapter")
    if kind is None:
        return
    if kind not in ("lora", "qlora"):
        raise written["adapter"].is_error(allowed="lora, qlora", remedy="other adapters are not planned")
    if kind == "lora" and _value(written, "load_in_4bit"):
        kind = "qlora"
    if _value(written, "peft_use_dora"):
        if kind == "qlora":
            raise SpecError("peft_use_dora stands beside qlora", allowed="one of the two", place=recipe.source)
        kind = "dora"
    recipe.adapter = {
        "kind": kind,
        "r": _value(written, "lora_r"),
        "alpha": _value(written, "lora_alpha"),
        "dropout": float(_value(written, "lora_dropout")),
    }
    targets = _value(written, "lora_target_modules")
    recipe.adapts_all = bool(_value(written, "lora_target_linear")) or targets == "all-linear"
    if isinstance(targets, list):
        recipe.adapter["target_modules"] = targets
    elif targets is not None and not recipe.adapts_all:
        raise written["lora_target_modules"].is_error(allowed="a list of names", remedy="write the names out")
    if kernels := [name for name in _KERNELS if _value(written, name)]:
        recipe.supposed += (f"peft's own layers in the place of {', '.join(kernels)}, which keep less",)
