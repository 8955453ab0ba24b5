"""Reads PEFT's adapter_config.json, as LoraConfig of peft 0.21 writes it (tuners/lora/config.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.errors import SpecError
from planner.job.importers import drafts
from planner.job.importers.drafts import fixed_key, ignored_keys, mapped_key, read_json_file
from planner.job.importers.recipes import Recipe
from planner.job.nodes import Node, node_from_data
from planner.job.schema import ALL_LINEAR

FILE = "adapter_config.json"
WRITER = "peft saves beside an adapter"
_ADAPTER = "model.adapter"

KEYS: Mapping[str, drafts.Key] = {
    "peft_type": fixed_key(("LORA",), "other adapters are not planned"),
    "base_model_name_or_path": mapped_key("model.hf_config", "text", None, "where nothing else names the model"),
    "r": mapped_key(f"{_ADAPTER}.r", "whole", 8),
    "lora_alpha": mapped_key(f"{_ADAPTER}.alpha", "number", 8, "a whole number"),
    "lora_dropout": mapped_key(f"{_ADAPTER}.dropout", "number", 0.0),
    "target_modules": mapped_key(f"{_ADAPTER}.target_modules", "any", None, "names, or all-linear; no pattern"),
    "use_dora": mapped_key(f"{_ADAPTER}.kind", "flag", False, "true is dora"),
    "task_type": fixed_key((None, "CAUSAL_LM", "SEQ_CLS", "TOKEN_CLS", "SEQ_2_SEQ_LM", "FEATURE_EXTRACTION",
                            "QUESTION_ANS"), "an unknown task"),
    "bias": fixed_key(("none",), "trained biases are not planned"),
    "modules_to_save": fixed_key((None, []), "modules that are trained whole beside the adapter are not planned"),
    "layers_to_transform": fixed_key((None, []), "adapters of some layers alone are not planned"),
    "layers_pattern": fixed_key((None, "", []), "adapters of some layers alone are not planned"),
    "rank_pattern": fixed_key(({}, None), "ranks that differ between modules are not planned"),
    "alpha_pattern": fixed_key(({}, None), "what differs between modules is not planned"),
    "exclude_modules": fixed_key((None, []), "modules that are left out are not planned; name those that are adapted"),
    "target_parameters": fixed_key((None, []), "adapters of parameters outside of modules are not planned"),
    "trainable_token_indices": fixed_key((None,), "single tokens that are trained are not planned"),
    "layer_replication": fixed_key((None,), "layers that stand twice are not planned"),
    "lora_bias": fixed_key((False,), "biases of the adapter are not planned"),
    "use_qalora": fixed_key((False,), "QA-LoRA is not planned"),
    "megatron_config": fixed_key((None,), "adapters of Megatron's layers are not planned"),
    "arrow_config": fixed_key((None,), "Arrow is not planned"),
    "corda_config": fixed_key((None,), "CorDA is not planned"),
    "eva_config": fixed_key((None,), "EVA, which gives the modules ranks of their own, is not planned"),
    "kasa_config": fixed_key((None,), "KaSA is not planned"),
    "velora_config": fixed_key((None,), "VeLoRA is not planned"),
    "monteclora_config": fixed_key((None,), "MonteCLoRA is not planned"),
    "alora_invocation_tokens": fixed_key((None,), "activated LoRA is not planned"),
    "use_bdlora": fixed_key((None, False), "block-diagonal LoRA is not planned"),
    **ignored_keys(
        "auto_mapping", "revision", "inference_mode", "fan_in_fan_out", "init_lora_weights", "use_rslora",
        "loftq_config", "lora_ga_config", "megatron_core", "runtime_config", "peft_version", "qalora_group_size",
        "ensure_weight_tying",
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """What an adapter's config decides."""

    base: str
    """The name or path of the model that it adapts; empty if it does not say."""
    adapter: Mapping[str, Any]
    """`model.adapter` as a spec writes it."""
    place: str
    ignored: tuple[str, ...]


def read(path: Path) -> AdapterConfig:
    """The config of a file. Raises SpecError for what is unknown, of a wrong type or not understood."""
    return of_node(read_json_file(path, WRITER))


def recipe(path: Path) -> Recipe:
    """The adapter of a file, or of the one in a folder, as a source beside others. Raises SpecError as `read`."""
    file = path / FILE if path.is_dir() else path
    config = read(file)
    recipe = Recipe(source=str(file), folder=file.parent, ignored=config.ignored)
    recipe.say(_ADAPTER, config.adapter, config.place)
    if config.base:
        recipe.model = node_from_data(config.base, config.place, "base_model_name_or_path")
    return recipe


def of_node(document: Node) -> AdapterConfig:
    """As `read`, of a config that somebody read."""
    written = document.mapping()
    drafts.check_all(KEYS, written, "LoraConfig of peft 0.21")
    given = {name: node.plain() for name, node in written.items() if node.value is not None}
    values = {name: given.get(name, key.default) for name, key in KEYS.items()}
    alpha, targets = values["lora_alpha"], written.get("target_modules")
    if isinstance(alpha, float) and not alpha.is_integer():
        raise written["lora_alpha"].is_error(allowed="a whole number", remedy="round it; it has no effect on memory")
    adapter: dict[str, Any] = {
        "kind": "dora" if values["use_dora"] else "lora",
        "r": values["r"],
        "alpha": int(alpha),
        "dropout": float(values["lora_dropout"]),
    }
    if targets is not None and targets.value is not None:
        names = [ALL_LINEAR] if str(targets.value).lower() == ALL_LINEAR else targets.plain()
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise SpecError(
                f"target_modules is {targets.summary}",
                allowed="a list of names, as q_proj and v_proj, or all-linear",
                remedy="write out the names that the pattern stands for",
                place=targets.place,
            )
        adapter["target_modules"] = sorted(names)
    base = values["base_model_name_or_path"] or ""
    return AdapterConfig(base, adapter, document.place, tuple(drafts.list_ignored(KEYS, written)))
