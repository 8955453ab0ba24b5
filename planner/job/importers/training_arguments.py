"""Reads transformers' TrainingArguments, what its Trainer makes of them, and its optimizer (5.23.0)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.errors import SpecError
from planner.job.importers.drafts import Draft, contradiction, unite_drafts
from planner.job.importers.key_tables import WrittenKeys, table
from planner.job.nodes import Node, node_from_data

WRITER = "TrainingArguments.to_json_string() writes"
TABLES = ("TrainingArguments", "fields of transformers 4")
_DDP = "parallel.dp_replicate"
_OF_TORCH: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "sgd": (("momentum", "dampening", "weight_decay"), ("nesterov",)),
    "adagrad": (("lr_decay", "weight_decay", "eps"), ()),
    "rmsprop": (("momentum", "alpha", "eps", "weight_decay"), ("centered",)),
}
"""The numbers and flags that `optim_args` may give an optimizer of torch."""
_OF_TORCHAO = ("adamw_torch_8bit", "adamw_torch_4bit")
FLAGS_OF_SCRIPTS = ("activation_checkpointing", "gradient_checkpointing", "fsdp")
"""Those that HfArgumentParser takes without a value though they are not plain bools."""
_DDP_FLAGS = ("ddp_find_unused_parameters", "ddp_bucket_cap_mb", "ddp_broadcast_buffers", "ddp_static_graph")
_EVALUATION = ("eval_strategy", "eval_steps", "logging_steps", "per_device_eval_batch_size")
_USUAL_STEPS = 100


def of_nodes(written: Mapping[str, Node], folder: Path) -> WrittenKeys:
    """The fields that somebody read. Raises SpecError for what is unknown, of a wrong type or not understood."""
    arguments = table(*TABLES).read(written, folder)
    if arguments["adafactor"]:  # whatever optim says
        arguments.nodes["optim"] = node_from_data("adafactor", arguments.node("adafactor").place, "optim")
    return arguments


def join_arguments(first: WrittenKeys, second: WrittenKeys | None) -> WrittenKeys:
    """Of two sources, or the first alone. Raises SpecError where they contradict each other in what matters."""
    if second is None:
        return first
    mattering = unite_drafts(first.mattering, second.mattering)
    return replace(first, nodes={**second.nodes, **first.nodes, **mattering})


def read_precision(arguments: WrittenKeys) -> Node | None:
    """`bf16` or `fp16`, if one is asked for."""
    asked = [
        node_from_data(name, node.place, node.path) for name in ("bf16", "fp16") if (node := arguments.node(name)).value
    ]
    if len(asked) > 1:
        raise contradiction("precision", *asked)
    return asked[0] if asked else None


def read_optimizer(arguments: WrittenKeys) -> dict[str, Any]:
    """`train.optimizer` as a spec writes it. Raises SpecError for arguments that are not planned."""
    name, options = arguments["optim"], arguments.node("optim_args")
    optimizer: dict[str, Any] = dict(arguments.table.keys["optim"].values[name])
    if name in _OF_TORCHAO and options.value:
        raise SpecError(
            f"optim_args is {options.summary} beside {name}, and is not planned",
            allowed="null",
            remedy=f"write train.optimizer in JOB.yaml ({optimizer['name']} takes block_size), without optim",
            place=options.place,
        )
    optimizer["lr"] = arguments["learning_rate"]
    if name not in _OF_TORCH and name != "adafactor":
        optimizer |= {"betas": [arguments["adam_beta1"], arguments["adam_beta2"]], "eps": arguments["adam_epsilon"]}
    optimizer["weight_decay"] = arguments["weight_decay"]
    if name not in _OF_TORCH:
        return optimizer
    numbers, flags = _OF_TORCH[name]
    for part in str(options.value or "").replace(" ", "").split(","):
        key, _, value = part.partition("=")
        try:
            if key in numbers:
                optimizer[key] = float(value)
            elif key in flags:
                optimizer[key] = value.lower() in ("true", "1", "yes")
            elif key:
                raise ValueError
        except ValueError:
            raise SpecError(
                f"optim_args holds {part[:80]!a}",
                allowed=", ".join(f"{option}=..." for option in (*numbers, *flags)),
                remedy=f"write what {name} takes",
                place=options.place,
            ) from None
    return optimizer


def fill_draft(draft: Draft, arguments: WrittenKeys, *, clips: bool) -> None:
    """What holds for every job; `clips` is false where DeepSpeed's config takes the place of max_grad_norm."""
    direct = {
        "per_device_train_batch_size": "train.micro_batch_size",
        "gradient_accumulation_steps": "train.gradient_accumulation_steps",
        **({"max_grad_norm": "train.gradient_clipping"} if clips else {}),
        "dataloader_num_workers": "train.data_loader.workers",
        "dataloader_pin_memory": "train.data_loader.pin_memory",
    }
    for name, path in direct.items():
        arguments.tell(draft, name, path)
    arguments.tell(draft, "optim", "train.optimizer", read_optimizer(arguments))
    if (asked := _recompute(arguments)).value:
        options = arguments.node("activation_checkpointing_kwargs")
        if options.value is None:
            options = arguments.node("gradient_checkpointing_kwargs")
        every = _recomputes_every(options) if options.value is not None else 1
        draft.say_value("train.recompute", {"every": every} if every > 1 else "full", asked.place)
    # The Trainer compiles the model whole (transformers 5.23, training_args.py); backend or mode alone ask for it.
    compiles = [arguments.node(name) for name in ("torch_compile", "torch_compile_backend", "torch_compile_mode")]
    if places := [node.place for node in compiles if node.value]:
        draft.say_value("train.compile.scope", "model", places[0])
    for name, node in zip(("backend", "mode"), compiles[1:], strict=True):
        if node.value:
            draft.say_value(f"train.compile.{name}", node.value, node.place)
    _tell_evaluation(draft, arguments)
    if arguments["dataloader_prefetch_factor"] is not None:
        draft.say("train.data_loader.prefetch_factor", arguments.node("dataloader_prefetch_factor"))
    config = arguments.node("accelerator_config")
    if config.value is not None:
        table("accelerator_config").read(config.mapping("a mapping, as to_json_string() writes it"))
        table("gradient_accumulation_kwargs").read(_accumulation(arguments))
    if arguments["run_name"] is not None:
        draft.suppose("metadata.name", arguments["run_name"], arguments.node("run_name").place)


def tell_ddp(draft: Draft, arguments: WrittenKeys) -> None:
    """How the Trainer asks for DistributedDataParallel: unused parameters are looked for unless it recomputes."""
    recomputes = bool(_recompute(arguments).value)
    place = arguments.node("ddp_find_unused_parameters").place
    draft.suppose(f"{_DDP}.find_unused_parameters", not recomputes, place)
    for name in _DDP_FLAGS:
        if arguments[name] is not None:
            draft.say(f"{_DDP}.{name.removeprefix('ddp_')}", arguments.node(name))
    if syncs_each_batch(arguments):
        draft.say_value(f"{_DDP}.no_sync", False, _accumulation(arguments)["sync_each_batch"].place)


def without_effect(arguments: WrittenKeys, under: str, world: int) -> list[str]:
    """`under` is ddp, fsdp or deepspeed. Names of what is written and matters to other jobs than this one."""
    off = {
        _DDP_FLAGS: under != "ddp" or world == 1,
        _EVALUATION: arguments["eval_strategy"] == "no",
        ("fsdp_config",): not arguments["fsdp"],
        ("activation_checkpointing_kwargs", "gradient_checkpointing_kwargs"): not _recompute(arguments).value,
        ("optim_args",): arguments["optim"].startswith("adamw"),
    }
    return [name for names, is_off in off.items() if is_off for name in names if name in arguments]


def syncs_each_batch(arguments: WrittenKeys) -> bool:
    """Gradients are reduced after every micro-batch."""
    node = _accumulation(arguments).get("sync_each_batch")
    return node is not None and node.value is True


def _accumulation(arguments: WrittenKeys) -> Mapping[str, Node]:
    config = arguments.node("accelerator_config").value
    options = config.get("gradient_accumulation_kwargs") if isinstance(config, dict) else None
    return options.value if options is not None and isinstance(options.value, dict) else {}


def _recompute(arguments: WrittenKeys) -> Node:
    """The new name if it is set, else the old one."""
    new = arguments.node("activation_checkpointing")
    return new if new.value is not None else arguments.node("gradient_checkpointing")


def _recomputes_every(options: Node) -> int:
    """After how many layers one is recomputed."""
    written = table("activation_checkpointing_kwargs").read(options.mapping())
    if written.nodes.keys() - {"every_n_layers", "offload"} and "use_reentrant" not in written:
        raise SpecError(
            f"{options.name} does not say use_reentrant, and torch then refuses or is reentrant",
            allowed='"use_reentrant": false',
            remedy="add it",
            place=options.place,
        )
    return int(written["every_n_layers"])


def _tell_evaluation(draft: Draft, arguments: WrittenKeys) -> None:
    strategy = arguments["eval_strategy"]
    if strategy not in ("no", "steps", "epoch"):
        raise arguments.is_error("eval_strategy", allowed="no, steps, epoch")
    if strategy == "no":
        return
    steps = arguments["eval_steps"] or arguments["logging_steps"]
    every = int(steps) if strategy == "steps" and steps >= 1 else _USUAL_STEPS
    evaluation = {"micro_batch_size": arguments["per_device_eval_batch_size"], "every": every}
    draft.say_value("train.eval", evaluation, arguments.node("eval_strategy").place)
