"""Reads FSDP's options of transformers and accelerate: those that decide memory, of versions 1 and 2.

Keys and what they do are those of accelerate 1.15.0 (utils/dataclasses.py FullyShardedDataParallelPlugin,
utils/fsdp_utils.py, commands/config/cluster.py) and transformers 5.23.0 (training_args.py `_process_fsdp_args`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planner.errors import SpecError
from planner.job.importers.drafts import Draft, find_named_file, read_json_file
from planner.job.importers.key_tables import WrittenKeys, table
from planner.job.nodes import Node, node_from_data

_SHARD = "parallel.dp_shard"
_TRUE, _FALSE = ("y", "yes", "t", "true", "on", "1"), ("n", "no", "f", "false", "off", "0")


def of_training_arguments(arguments: WrittenKeys) -> dict[str, Node] | None:
    """What they say of FSDP, checked, without prefixes; None where they do not ask for it. Raises SpecError."""
    asked = arguments.node("fsdp")
    if not asked.value:
        return None
    config = arguments.node("fsdp_config")
    if isinstance(config.value, str):
        config = read_json_file(find_named_file(config, arguments.folder), "fsdp_config names")
    keys = {
        "version": node_from_data(2, asked.place, "fsdp"),
        **table("fsdp_config").read({} if config.value is None else config.mapping(), prefix="fsdp_").nodes,
    }
    return {**_legacy(asked, is_first=_is_first(keys)), **keys}


def _legacy(asked: Node, *, is_first: bool) -> dict[str, Node]:
    """`full_shard auto_wrap offload`, as transformers still reads it."""
    if asked.value is True:
        return {}
    words = asked.plain() if isinstance(asked.value, list) else str(asked.value).split()
    meant: Mapping[str, tuple[str, Any]] = {
        "full_shard": ("reshard_after_forward", True),
        "shard_grad_op": ("reshard_after_forward", False),
        "offload": ("cpu_offload", True),
    }
    keys = {}
    for word in words:
        if word in ("auto_wrap", "true", "True"):
            continue
        if is_first and word.upper() in _STRATEGIES:
            keys["sharding_strategy"] = node_from_data(word, asked.place, "fsdp")
            continue
        if word not in meant:
            raise SpecError(
                f"fsdp is {asked.summary}: {word} is of FSDP 1",
                allowed="true, or full_shard, shard_grad_op, offload, auto_wrap",
                remedy='write {"version": 1} in fsdp_config, or dp_replicate_size in parallelism_config for a copy on'
                " each node",
                place=asked.place,
            )
        name, value = meant[word]
        keys[name] = node_from_data(value, asked.place, "fsdp")
    return keys


def fill_draft(draft: Draft, settings: Mapping[str, Node], *, mixed: bool, place: str) -> list[str]:
    """How accelerate shards; `mixed`: in bfloat16. Returns what is planned otherwise than it is, for people."""
    first = _is_first(settings)
    meant = {
        "offload_params": (f"{_SHARD}.offload", "cpu"),
        "cpu_offload": (f"{_SHARD}.offload", "cpu"),
        "activation_checkpointing": ("train.recompute", "full"),
    }
    for name, (path, value) in meant.items():
        if (node := settings.get(name)) is not None and _truth(node):
            draft.say_value(path, value, node.place)
    if mixed:
        draft.say_value(f"{_SHARD}.reduce_dtype", "bfloat16", place)
    if first:
        return _fill_first(draft, settings, mixed=mixed, place=place)
    # Every layer, the embedding, norm and head together.
    policy = settings.get("auto_wrap_policy")
    if policy is not None and str(policy.value).upper() != "TRANSFORMER_BASED_WRAP":
        problem, remedy = (
            f"auto_wrap_policy is {policy.summary}, which is not planned",
            "wrap by layers, or plan with a spec of your own",
        )
        raise SpecError(problem, allowed="TRANSFORMER_BASED_WRAP", remedy=remedy, place=policy.place)
    if (reshard := settings.get("reshard_after_forward")) is not None:
        draft.say_value(f"{_SHARD}.reshard_after_forward", _truth(reshard), reshard.place)
    draft.suppose(f"{_SHARD}.keep_last", True, place)
    return []


_FLAGS = {"forward_prefetch": False, "use_orig_params": True, "limit_all_gathers": True, "sync_module_states": True}
"""With the defaults of `accelerate launch` and of transformers; those of the plugin alone are others."""
_PREFETCHES = {"BACKWARD_PRE": "BACKWARD_PRE", "BACKWARD_POST": "BACKWARD_POST", "NO_PREFETCH": "", "NONE": ""}
_PREFETCHES |= {"1": "BACKWARD_PRE", "2": "BACKWARD_POST"}
IGNORED_STRATEGY = (
    "the sharding strategy that reshard_after_forward names: accelerate 1.15 takes FULL_SHARD for version 1 wherever"
    " sharding_strategy is not said (FullyShardedDataParallelPlugin.__post_init__)"
)


def _fill_first(draft: Draft, settings: Mapping[str, Node], *, mixed: bool, place: str) -> list[str]:
    """FullyShardedDataParallel, under autocast where it is mixed."""
    draft.say_value(f"{_SHARD}.kind", "fsdp1", settings["version"].place if "version" in settings else place)
    strategy = _find_strategy(settings)
    if strategy is not None and _strategy_name(strategy) == "NO_SHARD":
        draft.say_value(f"{_SHARD}.no_shard", True, strategy.place)
    elif strategy is not None:
        draft.say_value(f"{_SHARD}.reshard_after_forward", _RESHARDS[_strategy_name(strategy)], strategy.place)
    for name, usual in _FLAGS.items():
        if (node := settings.get(name)) is not None:
            draft.say_value(f"{_SHARD}.{name}", _truth(node), node.place)
        else:
            draft.suppose(f"{_SHARD}.{name}", usual, place)
    prefetch = settings.get("backward_prefetch")
    written = "NO_PREFETCH" if prefetch is None else str(prefetch.value).upper()
    if prefetch is not None and written not in _PREFETCHES:
        raise prefetch.is_error(allowed="BACKWARD_PRE, BACKWARD_POST, NO_PREFETCH", remedy="write one of these")
    draft.suppose(f"{_SHARD}.backward_prefetch", _PREFETCHES[written], place if prefetch is None else prefetch.place)
    if mixed:
        draft.suppose(f"{_SHARD}.autocast", True, place)
    policy, size = settings.get("auto_wrap_policy"), settings.get("min_num_params")
    wrap = "TRANSFORMER_BASED_WRAP" if policy is None else str(policy.value).upper()
    if policy is not None and wrap not in _POLICIES:
        raise policy.is_error(allowed=", ".join(_POLICIES), remedy="write one of these")
    if wrap == "SIZE_BASED_WRAP" and size is not None and size.value:
        draft.suppose(f"{_SHARD}.wrap_size", size.plain(), size.place)
    elif wrap != "TRANSFORMER_BASED_WRAP":  # by a size of 0 accelerate wraps nothing
        draft.suppose(f"{_SHARD}.wrap", "none", place if policy is None else policy.place)
    asked = settings.get("reshard_after_forward")
    is_ignored = strategy is not None and strategy is asked and _strategy_name(strategy) != "FULL_SHARD"
    return [IGNORED_STRATEGY] if is_ignored else []


def tell_parts(
    draft: Draft, settings: Mapping[str, Node], config: Mapping[str, Any], place: str, *, by_trainer: bool
) -> list[str]:
    """The units beside the layers, by the model's config; what has to be said because nobody knows this model.

    `by_trainer`: transformers' Trainer makes the units of a model with an adapter (distributed/fsdp.py,
    `update_fsdp_plugin_peft`).
    """
    missing = []
    groups = list_groups(config)
    if _is_first(settings) and by_trainer and draft.has("model.adapter"):
        for name, value in (("wrap_trained", True), ("wrap", "blocks"), ("wrap_size", 0)):
            draft.suppose(f"{_SHARD}.{name}", value, place)
    head = draft.get("model.head")
    if _is_first(settings):
        pass  # what is in no layer lies in the root's flat parameter
    elif groups is not None and (head is None or head.value in ("", "causal_lm")):
        draft.suppose(f"{_SHARD}.groups", groups, place)
    elif not draft.has(f"{_SHARD}.groups"):
        missing.append(
            "parallel.dp_shard.groups: the embedding, and the last norm with the head, as accelerate gathers them"
            ' (JOB.yaml: parallel: {dp_shard: {groups: [model.embed_tokens, "model.norm lm_head"]}})'
        )
    written = settings.get("transformer_layer_cls_to_wrap")
    if written is not None and written.value is not None and not draft.has("model.blocks"):
        names = written.plain() if isinstance(written.value, list) else str(written.value).split(",")
        if names != [layer_class(config)]:
            missing.append(
                f"model.blocks: the paths of {', '.join(map(str, names))} (JOB.yaml: model: {{blocks: ...}})"
            )
    return missing


def _truth(node: Node) -> bool:
    written = str(node.plain()).lower()
    if written not in (*_TRUE, *_FALSE):
        remedy = "FULL_SHARD is true, SHARD_GRAD_OP is false" if isinstance(node.value, str) else "write one of them"
        raise node.is_error(allowed="true or false", remedy=remedy)
    return written in _TRUE


# Words are those of ShardingStrategy of torch 2.13 (distributed/fsdp/api.py), or accelerate's
# numbers of them (1.15.0, utils/constants.py, FSDP_SHARDING_STRATEGY).
_STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
_RESHARDS = {"FULL_SHARD": True, "SHARD_GRAD_OP": False, "HYBRID_SHARD": True, "HYBRID_SHARD_ZERO2": False}
_POLICIES = ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP")


def _is_first(settings: Mapping[str, Node]) -> bool:
    """Whether they ask for version 1, which accelerate takes where none is said. Raises SpecError for a third."""
    version = settings.get("version")
    if version is not None and str(version.value) not in ("1", "2"):
        raise SpecError(
            f"fsdp_version is {version.summary}", allowed="1, 2", remedy="write one of them", place=version.place
        )
    return version is None or str(version.value) == "1"


def _find_strategy(settings: Mapping[str, Node]) -> Node | None:
    """The sharding strategy, by either of its names; None where none is said."""
    for name in ("sharding_strategy", "reshard_after_forward"):
        node = settings.get(name)
        if node is not None and not isinstance(node.value, bool) and str(node.value).lower() not in ("true", "false"):
            return node
    return None


def is_hybrid(settings: Mapping[str, Node]) -> bool:
    """Whether each node has a whole copy of the shards."""
    strategy = _find_strategy(settings) if _is_first(settings) else None
    return strategy is not None and _strategy_name(strategy).startswith("HYBRID")


def _strategy_name(strategy: Node) -> str:
    written = str(strategy.value).upper()
    name = _STRATEGIES[int(written) - 1] if written in ("1", "2", "3", "4", "5") else written
    if name not in _STRATEGIES:
        raise strategy.is_error(allowed=", ".join(_STRATEGIES), remedy="write one of these")
    return name


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


def list_groups(config: Mapping[str, Any]) -> list[str] | None:
    """The groups beside the layers, for `parallel.dp_shard.groups`; None for a model that is not in the table."""
    parts = PARTS.get(str(config.get("model_type")))
    classes = config.get("architectures") or ["ForCausalLM"]
    if parts is None or not str(classes[0]).endswith(_CAUSAL):
        return None
    if config.get("tie_word_embeddings", parts.tied):
        return [f"{parts.norm} {parts.embedding} {parts.head}"]
    return [parts.embedding, f"{parts.norm} {parts.head}"]


def layer_class(config: Mapping[str, Any]) -> str:
    """The class that is wrapped by default; empty for a model that is not in the table."""
    parts = PARTS.get(str(config.get("model_type")))
    return parts.layer if parts else ""
