"""Reads DeepSpeed's config, with what transformers and accelerate put into it before DeepSpeed reads it.

As HfTrainerDeepSpeedConfig (transformers 5.23.0, integrations/deepspeed.py) and DeepSpeedPlugin (accelerate 1.15.0,
utils/dataclasses.py, accelerator.py) do. What the keys mean is in planner.job.deepspeed_config.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.errors import SpecError
from planner.job.deepspeed_config import WITHOUT_EFFECT, ZERO_WITHOUT_EFFECT
from planner.job.importers import accelerate
from planner.job.importers.drafts import Draft, contradiction, find_named_file, read_json_file
from planner.job.importers.key_tables import WrittenKeys
from planner.job.nodes import Node, node_from_data

WRITER = "DeepSpeed takes as ds_config.json"
_NUMBERS = {
    "train_micro_batch_size_per_gpu": "train.micro_batch_size",
    "gradient_accumulation_steps": "train.gradient_accumulation_steps",
    "gradient_clipping": "train.gradient_clipping",
}


_ANSWERED = ("gradient_accumulation_steps", "gradient_clipping")
"""Of accelerate's questionnaire."""


def read(path: Path) -> Node:
    """A config by itself. Raises SpecError."""
    return read_json_file(path, WRITER)


def of_training_arguments(arguments: WrittenKeys, *, given_alone: bool) -> Node | None:
    """The config that they hold or name; None where they ask for none, or where its file is not there and was given by
    itself. Raises SpecError."""
    node = arguments.node("deepspeed")
    if not node.value:
        return None
    if isinstance(node.value, str):
        return _named(node, arguments.folder, given_alone=given_alone)
    node.mapping("a mapping, or the path of a ds_config.json within the folder")
    return node


def _named(node: Node, folder: Path, *, given_alone: bool) -> Node | None:
    try:
        return read_json_file(find_named_file(node, folder), WRITER)
    except SpecError:
        if given_alone:
            return None  # recipes name it as from where their program is started
        raise


def of_accelerate(config: accelerate.Config, *, given_alone: bool) -> Node | None:
    """The config that accelerate's names or stands for; None where DeepSpeed is off, or where its file is not there and
    was given by itself. Raises SpecError."""
    if config.kind() != "DEEPSPEED":
        return None
    answers = config.deepspeed
    file = answers.node("deepspeed_config_file")
    if file.value not in (None, "none"):
        return _named(file, answers.folder, given_alone=given_alone)
    # What DeepSpeedPlugin makes of the answers to the questionnaire.
    zero: dict[str, Any] = {"stage": answers["zero_stage"]}
    for name in ("offload_optimizer", "offload_param"):
        device = answers[f"{name}_device"] or "none"
        if device != "none":
            zero[name] = {"device": device}
    whole = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        **{name: answers[name] if name in answers.nodes else "auto" for name in _ANSWERED},
        "zero_optimization": zero,
    }
    return node_from_data(whole, config.place)


def same(first: Node | None, second: Node | None) -> Node | None:
    """The one config that two places give. Raises SpecError if they differ."""
    if first is None or second is None:
        return first or second
    if first.plain() != second.plain():
        raise contradiction("the DeepSpeed config", first, second)
    return first


def fill_draft(draft: Draft, written: Node, precision: Node | None, *, by_transformers: bool) -> None:
    """The config as DeepSpeed gets it, and the numbers it gives. Raises SpecError for `"auto"` that nobody resolves.

    `by_transformers`: the Trainer or accelerate hand the config on, not the program itself, and say the precision, or
    that there is none.
    """
    config: dict[str, Any] = dict(written.plain())
    _set_precision(config, written, precision, is_known=by_transformers)
    if by_transformers and not config.get("optimizer"):
        # accelerate lets DeepSpeed take any optimizer, and brings DeepSpeed's own where it is to rest on the host.
        zero = config.get("zero_optimization")
        offload = zero.get("offload_optimizer") if isinstance(zero, Mapping) else None
        is_on_host = isinstance(offload, Mapping) and offload.get("device", "none") != "none"
        if is_on_host and config.get("zero_force_ds_cpu_optimizer", True):
            config["optimizer"] = {"type": "AdamW", "params": {}}
        config["zero_allow_untested_optimizer"] = True
    for key, path in _NUMBERS.items():
        node = written.mapping().get(key)
        if node is not None and isinstance(node.value, int | float) and not isinstance(node.value, bool):
            draft.say_value(path, float(node.value) if key == "gradient_clipping" else node.value, node.place)
    if config.get("gradient_clipping") is None:
        # DeepSpeed clips in its own step and by its own config: the Trainer's max_grad_norm has no effect then.
        draft.suppose("train.gradient_clipping", 0.0, written.place)
    draft.say_value("train.precision", "none", written.place)
    draft.say_value("parallel.deepspeed", config, written.place)


def list_ignored(written: Node) -> list[str]:
    """Names of what is written and does not matter."""
    zero = written.mapping().get("zero_optimization")
    inner = zero.value if zero is not None and isinstance(zero.value, dict) else {}
    if "stage" in inner and inner["stage"].value == 3:
        inner = {}  # what has no effect in other stages may have one there
    return [name for name in written.mapping() if name in WITHOUT_EFFECT] + [
        name for name in inner if name.removeprefix("stage3_") in ZERO_WITHOUT_EFFECT
    ]


def _set_precision(config: dict[str, Any], written: Node, precision: Node | None, *, is_known: bool) -> None:
    wanted = "" if precision is None else str(precision.value)
    for name in ("bf16", "fp16"):
        part = config.get(name)
        if part is None:
            if wanted == name:
                config[name] = {"enabled": True}
            continue
        if not isinstance(part, Mapping):
            continue  # the reader of specs says what is wrong with it
        enabled = part.get("enabled", False)
        if enabled == "auto" and not is_known:
            raise SpecError(
                f'{name}.enabled is "auto", and nothing says the precision',
                allowed="true or false",
                remedy="add --from-training-arguments or --from-accelerate, which say it, or write it here",
                place=written.nearest_to(f"{name}.enabled").place,
            )
        if enabled == "auto":
            config[name] = {**part, "enabled": wanted == name}
        elif is_known and enabled is not (wanted == name):
            other = "the training asks for none"
            if precision is not None:
                other = f"{precision.place} asks for {precision.value}"
            raise SpecError(
                f"{name}.enabled is {str(enabled).lower()}, and {other}",
                allowed='"auto", or the same',
                remedy="make them the same",
                place=written.nearest_to(f"{name}.enabled").place,
            )
