"""Reads transformers' TrainingArguments, and what its Trainer makes of them (5.23.0, trainer.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.errors import SpecError
from planner.importers import foreign_keys
from planner.importers.drafts import Draft, contradiction, unite_drafts
from planner.importers.files import read_json_file
from planner.importers.trainer_optimizer import optimizer_of
from planner.importers.training_argument_keys import KEYS, PROGRAM, RETIRED
from planner.job.nodes import Node, node_from_data

WRITER = "TrainingArguments.to_json_string() writes"
_ALL = {**KEYS, **RETIRED}
_DDP = "parallel.dp_replicate"
OPTIMIZER = ("optim", "optim_args", "learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon")
_DDP_FLAGS = ("ddp_find_unused_parameters", "ddp_bucket_cap_mb", "ddp_broadcast_buffers", "ddp_static_graph")
_EVALUATION = ("eval_strategy", "eval_steps", "logging_steps", "per_device_eval_batch_size")
_USUAL_STEPS = 100


@dataclass(frozen=True, slots=True)
class TrainingArguments:
    """What is written, by name; what is not has the default of its field."""

    written: Mapping[str, Node]
    folder: Path
    """Where paths that they name start."""

    def __getitem__(self, name: str) -> Node:
        found = self.written.get(name)
        return found or node_from_data(KEYS[name].default, "the defaults of TrainingArguments", name)

    def says(self, *names: str) -> bool:
        return any(name in self.written for name in names)

    def is_set(self, name: str) -> bool:
        """Written, and not null."""
        return self[name].value is not None

    @property
    def ignored_keys(self) -> list[str]:
        """Names of what is written and does not matter."""
        return [name for name in self.written if not _ALL[name].matters]


def read(path: Path) -> TrainingArguments:
    """Those of a JSON file. Raises SpecError for what is unknown, of a wrong type or not understood."""
    return of_nodes(read_json_file(path, WRITER).mapping(), path.parent)


def of_nodes(written: Mapping[str, Node], folder: Path) -> TrainingArguments:
    """Those of values that somebody read. Raises SpecError as `read`."""
    for name, node in written.items():
        foreign_keys.check(_ALL, name, node, PROGRAM)
    return TrainingArguments(written, folder)


def join_arguments(first: TrainingArguments, second: TrainingArguments | None) -> TrainingArguments:
    """Of two sources, or the first alone. Raises SpecError where they contradict each other in what matters."""
    if second is None:
        return first
    mattering = unite_drafts(_mattering(first), _mattering(second))
    return TrainingArguments({**second.written, **first.written, **mattering}, first.folder)


def _mattering(arguments: TrainingArguments) -> dict[str, Node]:
    return {name: node for name, node in arguments.written.items() if _ALL[name].matters}


def precision_of(arguments: TrainingArguments) -> Node | None:
    """`bf16` or `fp16`, if one is asked for."""
    asked = [arguments[name] for name in ("bf16", "fp16") if arguments[name].value]
    if len(asked) > 1:
        raise contradiction("precision", _replace_value(asked[0], "bf16"), _replace_value(asked[1], "fp16"))
    if not asked:
        return None
    return _replace_value(asked[0], "bf16" if arguments["bf16"].value else "fp16")


def _replace_value(node: Node, value: str) -> Node:
    return node_from_data(value, node.place, node.path)


def fill_draft(draft: Draft, arguments: TrainingArguments, *, clips: bool) -> None:
    """What holds for every job; `clips` is false where DeepSpeed's config takes the place of max_grad_norm."""
    _tell(draft, arguments, "per_device_train_batch_size", "train.micro_batch_size")
    _tell(draft, arguments, "gradient_accumulation_steps", "train.gradient_accumulation_steps")
    if clips:
        _tell(draft, arguments, "max_grad_norm", "train.gradient_clipping")
    _tell_optimizer(draft, arguments)
    _tell_recompute(draft, arguments)
    _tell_compile(draft, arguments)
    _tell_evaluation(draft, arguments)
    _tell_data_loader(draft, arguments)
    _check_accumulation(arguments)
    if arguments.is_set("run_name"):
        draft.suppose("metadata.name", arguments["run_name"].value, arguments["run_name"].place)


def tell_ddp(draft: Draft, arguments: TrainingArguments) -> None:
    """How the Trainer asks for DistributedDataParallel: unused parameters are looked for unless it recomputes."""
    recomputes = bool(_recompute(arguments).value)
    place = arguments["ddp_find_unused_parameters"].place
    draft.suppose(f"{_DDP}.find_unused_parameters", not recomputes, place)
    for name in _DDP_FLAGS:
        if arguments.is_set(name):
            draft.say(f"{_DDP}.{name.removeprefix('ddp_')}", arguments[name])
    each = _accumulation(arguments).get("sync_each_batch")
    if each is not None and each.value is True:
        draft.say_value(f"{_DDP}.no_sync", False, each.place)


def without_effect(arguments: TrainingArguments, under: str, world: int) -> list[str]:
    """`under` is ddp, fsdp or deepspeed. Names of what is written and matters to other jobs than this one."""
    found = [] if under == "ddp" and world > 1 else [name for name in _DDP_FLAGS if arguments.says(name)]
    off = {
        _EVALUATION: arguments["eval_strategy"].value == "no",
        ("fsdp_config",): not arguments["fsdp"].value,
        ("activation_checkpointing_kwargs", "gradient_checkpointing_kwargs"): not _recompute(arguments).value,
        ("optim_args",): str(arguments["optim"].value).startswith("adamw"),
    }
    return found + [name for names, is_off in off.items() if is_off for name in names if arguments.says(name)]


def syncs_each_batch(arguments: TrainingArguments) -> bool:
    """Gradients are reduced after every micro-batch."""
    each = _accumulation(arguments).get("sync_each_batch")
    return each is not None and each.value is True


def _tell(draft: Draft, arguments: TrainingArguments, name: str, path: str) -> None:
    if arguments.says(name):
        draft.say(path, arguments[name])
    else:
        draft.suppose(path, arguments[name].value, arguments[name].place)


def _tell_optimizer(draft: Draft, arguments: TrainingArguments) -> None:
    values = {name: arguments[name] for name in OPTIMIZER}
    found, place = optimizer_of(values), values["optim"].place
    if arguments.says("optim"):
        draft.say_value("train.optimizer", found, place)
    else:
        draft.suppose("train.optimizer", found, place)


def _recompute(arguments: TrainingArguments) -> Node:
    """The new name if it is set, else the old one."""
    new = arguments["activation_checkpointing"]
    return new if new.value is not None else arguments["gradient_checkpointing"]


def _tell_recompute(draft: Draft, arguments: TrainingArguments) -> None:
    asked = _recompute(arguments)
    if not asked.value:
        return
    options = arguments["activation_checkpointing_kwargs"]
    if options.value is None:
        options = arguments["gradient_checkpointing_kwargs"]
    every = _checked_recompute(options) if options.value is not None else 1
    draft.say_value("train.recompute", {"every": every} if every > 1 else "full", asked.place)


def _checked_recompute(options: Node) -> int:
    written = options.mapping()
    for name, child in written.items():
        foreign_keys.check(RECOMPUTE_KEYS, name, child, "activation_checkpointing_kwargs")
    every = written.get("every_n_layers")
    forwarded = written.keys() - {"every_n_layers", "offload"}
    if forwarded and "use_reentrant" not in written:
        raise SpecError(
            f"{options.name} does not say use_reentrant, and torch then refuses or is reentrant",
            allowed='"use_reentrant": false',
            remedy="add it",
            place=options.place,
        )
    return 1 if every is None or not isinstance(every.value, int) else every.value


RECOMPUTE_KEYS = {
    "use_reentrant": foreign_keys.fixed_key((False,), "reentrant recomputation is not planned"),
    "every_n_layers": foreign_keys.mapped_key("train.recompute.every", "whole", 1),
    "offload": foreign_keys.fixed_key((False, None), "recomputation from activations on the host is not planned"),
    **foreign_keys.ignored_keys("preserve_rng_state", "determinism_check", "debug", "early_stop"),
}


def _tell_compile(draft: Draft, arguments: TrainingArguments) -> None:
    """The Trainer compiles the model whole (transformers 5.23, training_args.py); backend or mode alone ask for it."""
    asked = [name for name in ("torch_compile", "torch_compile_backend", "torch_compile_mode") if arguments[name].value]
    if not asked:
        return
    draft.say_value("train.compile.scope", "model", arguments[asked[0]].place)
    for name in ("backend", "mode"):
        said = arguments[f"torch_compile_{name}"]
        if said.value:
            draft.say_value(f"train.compile.{name}", said.value, said.place)


def _tell_evaluation(draft: Draft, arguments: TrainingArguments) -> None:
    strategy = arguments["eval_strategy"]
    if strategy.value not in ("no", "steps", "epoch"):
        raise SpecError(
            f"eval_strategy is {strategy.summary}",
            allowed="no, steps, epoch",
            remedy="write one of these",
            place=strategy.place,
        )
    if strategy.value == "no":
        return
    steps = arguments["eval_steps"] if arguments["eval_steps"].value else arguments["logging_steps"]
    said: Any = steps.value
    every = int(said) if strategy.value == "steps" and said >= 1 else _USUAL_STEPS
    batch = arguments["per_device_eval_batch_size"]
    draft.say_value("train.eval", {"micro_batch_size": batch.value, "every": every}, strategy.place)


def _tell_data_loader(draft: Draft, arguments: TrainingArguments) -> None:
    """What the host's memory hinges on; how large the data set is no argument says."""
    _tell(draft, arguments, "dataloader_num_workers", "train.data_loader.workers")
    _tell(draft, arguments, "dataloader_pin_memory", "train.data_loader.pin_memory")
    if arguments.is_set("dataloader_prefetch_factor"):
        draft.say("train.data_loader.prefetch_factor", arguments["dataloader_prefetch_factor"])


ACCELERATOR_KEYS = {
    "split_batches": foreign_keys.fixed_key((False,), "each rank would take a part of per_device_train_batch_size"),
    "gradient_accumulation_kwargs": foreign_keys.mapped_key(f"{_DDP}.no_sync", "mapping", None, "sync_each_batch"),
    **foreign_keys.ignored_keys(
        "dispatch_batches", "even_batches", "use_seedable_sampler", "non_blocking", "use_configured_state"
    ),
}
ACCUMULATION_KEYS = {
    "num_steps": foreign_keys.fixed_key((None, 1), "write gradient_accumulation_steps"),
    "sync_each_batch": foreign_keys.mapped_key(f"{_DDP}.no_sync", "flag", False),
    **foreign_keys.ignored_keys("adjust_scheduler", "sync_with_dataloader"),
}


def _accumulation(arguments: TrainingArguments) -> Mapping[str, Node]:
    config = arguments["accelerator_config"]
    if not isinstance(config.value, dict):
        return {}
    found = config.value.get("gradient_accumulation_kwargs")
    return found.value if found is not None and isinstance(found.value, dict) else {}


def _check_accumulation(arguments: TrainingArguments) -> None:
    config = arguments["accelerator_config"]
    if config.value is None:
        return
    for name, child in config.mapping("a mapping, as to_json_string() writes it").items():
        foreign_keys.check(ACCELERATOR_KEYS, name, child, "accelerator_config")
    for name, child in _accumulation(arguments).items():
        foreign_keys.check(ACCUMULATION_KEYS, name, child, "gradient_accumulation_kwargs")
