"""Reads FSDP's options of transformers and accelerate: those that decide memory, version 1 as if it were 2.

Keys and what they do are those of accelerate 1.15.0 (utils/dataclasses.py FullyShardedDataParallelPlugin,
utils/fsdp_utils.py, commands/config/cluster.py) and transformers 5.23.0 (training_args.py `_process_fsdp_args`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planner.errors import SpecError
from planner.job.importers import drafts, fsdp_versions
from planner.job.importers.drafts import Draft, named_by, read_json_file
from planner.job.importers.training_arguments import TrainingArguments
from planner.job.nodes import Node, node_from_data

_SHARD = "parallel.dp_shard"
_TRUE, _FALSE = ("y", "yes", "t", "true", "on", "1"), ("n", "no", "f", "false", "off", "0")
KEYS: Mapping[str, drafts.Key] = {
    "version": drafts.mapped_key(f"{_SHARD}.kind", "any", None, "1, the default of accelerate, is planned as 2"),
    "sharding_strategy": drafts.mapped_key(f"{_SHARD}.reshard_after_forward", "any", None, "of version 1"),
    "reshard_after_forward": drafts.mapped_key(f"{_SHARD}.reshard_after_forward", "any", True),
    "offload_params": drafts.mapped_key(f"{_SHARD}.offload", "any", False, "true is cpu"),
    "cpu_offload": drafts.mapped_key(f"{_SHARD}.offload", "any", False, "true is cpu"),
    "auto_wrap_policy": drafts.mapped_key("model.blocks", "any", "TRANSFORMER_BASED_WRAP", "no other policy"),
    "transformer_layer_cls_to_wrap": drafts.mapped_key(
        "model.blocks", "any", None, "the class of the layers alone"
    ),
    "activation_checkpointing": drafts.mapped_key("train.recompute", "any", False, "true is full"),
    "min_num_params": drafts.fixed_key((0, None), "wrapping by size is not planned"),
    "activation_checkpointing_offload": drafts.fixed_key(
        (False,), "activations on the host are not planned here"
    ),
    "ignored_modules": drafts.fixed_key((None,), "modules that are not sharded are not planned"),
    "mixed_precision_policy": drafts.fixed_key((None,), "it follows mixed_precision, and others are not planned"),
    "xla": drafts.fixed_key((False,), "there is no GPU to plan for"),
    "xla_fsdp_v2": drafts.fixed_key((False,), "there is no GPU to plan for"),
    "xla_fsdp_grad_ckpt": drafts.fixed_key((False,), "there is no GPU to plan for"),
    **drafts.ignored_keys(
        "backward_prefetch", "forward_prefetch", "use_orig_params", "sync_module_states",
        "cpu_ram_efficient_loading", "state_dict_type", "limit_all_gathers", "xla_fsdp_settings",
    ),
}  # fmt: skip
"""Without the prefix `fsdp_`, which either program lets people write."""


def of_training_arguments(arguments: TrainingArguments) -> dict[str, Node] | None:
    """What they say of FSDP, checked, without prefixes; None where they do not ask for it. Raises SpecError."""
    asked = arguments["fsdp"]
    if not asked.value:
        return None
    config = arguments["fsdp_config"]
    if isinstance(config.value, str):
        config = read_json_file(named_by(config, arguments.folder), "fsdp_config names")
    found = check_config({} if config.value is None else config.mapping())
    found.setdefault("version", node_from_data(2, asked.place, "fsdp"))
    for name, value in _legacy(asked).items():
        found.setdefault(name, value)
    return found


def check_config(config: Mapping[str, Node]) -> dict[str, Node]:
    """The keys without their prefix. Raises SpecError for what is unknown or not understood."""
    found = {}
    for written, node in config.items():
        name = written.removeprefix("fsdp_")
        drafts.check(KEYS, name, node, "fsdp_config")
        found[name] = node
    return found


def _legacy(asked: Node) -> dict[str, Node]:
    """`full_shard auto_wrap offload`, as transformers still reads it."""
    if asked.value is True:
        return {}
    words = asked.plain() if isinstance(asked.value, list) else str(asked.value).split()
    meant: Mapping[str, tuple[str, Any]] = {
        "full_shard": ("reshard_after_forward", True),
        "shard_grad_op": ("reshard_after_forward", False),
        "offload": ("cpu_offload", True),
    }
    found = {}
    for word in words:
        if word in ("auto_wrap", "true", "True"):
            continue
        if word not in meant:
            raise SpecError(
                f"fsdp is {asked.summary}: {word} is of FSDP 1",
                allowed="true, or full_shard, shard_grad_op, offload, auto_wrap",
                remedy="write dp_replicate_size in parallelism_config for a copy on each node",
                place=asked.place,
            )
        name, value = meant[word]
        found[name] = node_from_data(value, asked.place, "fsdp")
    return found


def fill_draft(draft: Draft, settings: Mapping[str, Node], *, mixed: bool, place: str) -> list[str]:
    """How accelerate shards: every layer, the embedding, norm and head together; gradients reduced at the end.

    Returns what is planned otherwise than it is, for people.
    """
    first = fsdp_versions.is_first(settings)
    _check_wrapping(settings)
    reshard, strategy = settings.get("reshard_after_forward"), fsdp_versions.strategy_of(settings)
    if first and strategy is not None:
        draft.say_value(f"{_SHARD}.reshard_after_forward", fsdp_versions.reshards(strategy), strategy.place)
    elif reshard is not None:
        draft.say_value(f"{_SHARD}.reshard_after_forward", _truth(reshard), reshard.place)
    for name in ("offload_params", "cpu_offload"):
        offload = settings.get(name)
        if offload is not None and _truth(offload):
            draft.say_value(f"{_SHARD}.offload", "cpu", offload.place)
    recompute = settings.get("activation_checkpointing")
    if recompute is not None and _truth(recompute):
        draft.say_value("train.recompute", "full", recompute.place)
    draft.suppose(f"{_SHARD}.keep_last", True, place)
    if mixed:
        draft.say_value(f"{_SHARD}.reduce_dtype", "bfloat16", place)
    return [fsdp_versions.DIFFERENCE] if first else []


def tell_parts(draft: Draft, settings: Mapping[str, Node], config: Mapping[str, Any], place: str) -> list[str]:
    """The groups beside the layers, by the model's config; what has to be said because nobody knows this model."""
    missing = []
    groups = groups_of(config)
    head = draft.get("model.head")
    if groups is not None and (head is None or head.value in ("", "causal_lm")):
        draft.suppose(f"{_SHARD}.groups", groups, place)
    elif not draft.has(f"{_SHARD}.groups"):
        missing.append(
            "parallel.dp_shard.groups: the embedding, and the last norm with the head, as accelerate gathers them"
            ' (JOB.yaml: parallel: {dp_shard: {groups: [model.embed_tokens, "model.norm lm_head"]}})'
        )
    written = settings.get("transformer_layer_cls_to_wrap")
    if written is not None and written.value is not None and not draft.has("model.blocks"):
        names = written.plain() if isinstance(written.value, list) else str(written.value).split(",")
        if names != [layer_of(config)]:
            missing.append(
                f"model.blocks: the paths of {', '.join(map(str, names))} (JOB.yaml: model: {{blocks: ...}})"
            )
    return missing


def _check_wrapping(settings: Mapping[str, Node]) -> None:
    policy = settings.get("auto_wrap_policy")
    if policy is None:
        return
    if str(policy.value).upper() != "TRANSFORMER_BASED_WRAP":
        raise SpecError(
            f"auto_wrap_policy is {policy.summary}, which is not planned",
            allowed="TRANSFORMER_BASED_WRAP",
            remedy="wrap by layers, or plan with a spec of your own",
            place=policy.place,
        )


def _truth(node: Node) -> bool:
    written = str(node.plain()).lower()
    if written not in (*_TRUE, *_FALSE):
        raise SpecError(
            f"{node.name} is {node.summary}",
            allowed="true or false",
            remedy="FULL_SHARD is true, SHARD_GRAD_OP is false" if isinstance(node.value, str) else "write one of them",
            place=node.place,
        )
    return written in _TRUE


# As `fsdp2_prepare_model` does (accelerate 1.15.0, utils/fsdp_utils.py): each layer, the embedding alone, the last
# norm with the head, the rest with the root; with tied weights the embedding goes with norm and head. Names and
# defaults are those of transformers 5.23.0; a test builds each model and looks.
@dataclass(frozen=True, slots=True)
class Parts:
    """Names in a causal language model of one `model_type`."""

    layer: str
    """The class of its layers, which is what TRANSFORMER_BASED_WRAP wraps by default."""
    embedding: str = "model.embed_tokens"
    norm: str = "model.norm"
    head: str = "lm_head"
    tied: bool = False
    """Where its config does not say tie_word_embeddings."""


PARTS: Mapping[str, Parts] = {
    "llama": Parts("LlamaDecoderLayer"),
    "mistral": Parts("MistralDecoderLayer"),
    "mixtral": Parts("MixtralDecoderLayer"),
    "qwen2": Parts("Qwen2DecoderLayer"),
    "qwen3": Parts("Qwen3DecoderLayer"),
    "qwen3_moe": Parts("Qwen3MoeDecoderLayer"),
    "gemma": Parts("GemmaDecoderLayer", tied=True),
    "gemma2": Parts("Gemma2DecoderLayer", tied=True),
    "phi3": Parts("Phi3DecoderLayer"),
    "olmo2": Parts("Olmo2DecoderLayer"),
    "gpt2": Parts("GPT2Block", "transformer.wte", "transformer.ln_f", tied=True),
    "gpt_neox": Parts("GPTNeoXLayer", "gpt_neox.embed_in", "gpt_neox.final_layer_norm"),
}

_CAUSAL = ("ForCausalLM", "LMHeadModel")
"""How the classes end whose parts these are."""


def groups_of(config: Mapping[str, Any]) -> list[str] | None:
    """The groups beside the layers, for `parallel.dp_shard.groups`; None for a model that is not in the table."""
    parts = PARTS.get(str(config.get("model_type")))
    classes = config.get("architectures") or ["ForCausalLM"]
    if parts is None or not str(classes[0]).endswith(_CAUSAL):
        return None
    if config.get("tie_word_embeddings", parts.tied):
        return [f"{parts.norm} {parts.embedding} {parts.head}"]
    return [parts.embedding, f"{parts.norm} {parts.head}"]


def layer_of(config: Mapping[str, Any]) -> str:
    """The class that is wrapped by default; empty for a model that is not in the table."""
    parts = PARTS.get(str(config.get("model_type")))
    return parts.layer if parts else ""
