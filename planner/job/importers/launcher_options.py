"""Reads a launch line's nodes and processes, accelerate's options, and fields of TrainingArguments."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.errors import SpecError
from planner.job.importers import accelerate, launch_lines, training_arguments
from planner.job.importers.drafts import Draft, Key
from planner.job.importers.launch_lines import PLACE, LaunchLine, count_of, deepspeed_size
from planner.job.importers.training_arguments import FLAGS_OF_SCRIPTS, KEYS, RETIRED
from planner.job.nodes import Node, node_from_data
from planner.job.yaml_text import read_yaml

_TRUE, _FALSE = ("true", "1", "yes", "y", "t"), ("false", "0", "no", "n", "f")


@dataclass(frozen=True, slots=True)
class Launch:
    """The parts of a launch line, as other sources have them."""

    line: LaunchLine
    accelerate: accelerate.Config | None
    arguments: training_arguments.TrainingArguments | None
    """Of a script that takes fields of TrainingArguments which matter."""
    not_read: Sequence[str]


def read(line: str, folder: Path) -> Launch:
    """A line's parts; paths in it start at `folder`. Raises SpecError for whatever is not understood."""
    found = launch_lines.read(line)
    written, others = _script(found.script_arguments)
    of_training = any(_is_of_a_trainer({**KEYS, **RETIRED}[name]) for name in written)
    not_read = [*found.not_read, *others]
    if not of_training:
        not_read += [f"--{name}" for name in written]
    ignored, config = _accelerate(found, folder)
    return Launch(
        line=found,
        accelerate=config,
        arguments=training_arguments.of_nodes(written, folder) if of_training else None,
        not_read=[*not_read, *ignored],
    )


def _is_of_a_trainer(key: Key) -> bool:
    """Other scripts have options for their data loaders under the same names."""
    return key.matters and not key.to.startswith("train.data_loader")


def fill_draft(draft: Draft, launch: Launch) -> None:
    """Nodes, processes, and the allocator's settings. Raises SpecError for counts that are found while it runs."""
    if launch.line.allocator_conf:
        draft.say_value("allocator.conf", launch.line.allocator_conf, PLACE)
    if launch.line.launcher == "python":
        draft.say_value("cluster.nodes", 1, PLACE)
        draft.say_value("cluster.gpus_per_node", 1, PLACE)
    if launch.line.launcher == "torchrun":
        draft.say_value("cluster.nodes", _nodes(launch.line.options.get("nnodes") or "1"), PLACE)
        draft.say_value("cluster.gpus_per_node", _processes(launch.line.options.get("nproc_per_node") or "1"), PLACE)
    if launch.line.launcher == "deepspeed":
        for key, count in zip(("nodes", "gpus_per_node"), deepspeed_size(launch.line.options), strict=True):
            if count is not None:
                draft.say_value(f"cluster.{key}", count, PLACE)


def _nodes(written: str) -> int:
    least, _, most = written.partition(":")
    if most and most != least:
        raise SpecError(
            f"--nnodes is {written}: the number of nodes changes while the job runs",
            allowed="a number, or the same number twice (2:2)",
            remedy="plan the job for the fewest nodes, where each rank holds most",
            place=PLACE,
        )
    return count_of("--nnodes", least)


def _processes(written: str) -> int:
    if written in ("gpu", "auto", "cpu", "xpu"):
        raise SpecError(
            f"--nproc-per-node is {written}, which the machine decides",
            allowed="a number",
            remedy="write how many GPUs a node has",
            place=PLACE,
        )
    return count_of("--nproc-per-node", written)


def _accelerate(line: LaunchLine, folder: Path) -> tuple[list[str], accelerate.Config | None]:
    """Options of `accelerate launch` as its config would have them."""
    if line.launcher != "accelerate":
        read = ("nnodes", "nproc_per_node", "num_nodes", "num_gpus", "num_accelerators")
        options = [name for name in line.options if name not in read]
        return [f"--{name}" for name in options], None
    top: dict[str, Any] = {}
    ignored = []
    for name, value in line.options.items():
        if name in launch_lines.ACCELERATE_IGNORED | {"q", "quiet", "debug", "m", "module", "no_python"}:
            ignored.append(f"--{name}")
        else:
            _place(top, name, value)
    nodes = node_from_data(top, PLACE).mapping()
    return ignored, accelerate.of_nodes(nodes, folder, PLACE)


def _place(top: dict[str, Any], name: str, value: str | None) -> None:
    kinds = {"multi_gpu": "MULTI_GPU", "use_fsdp": "FSDP", "use_deepspeed": "DEEPSPEED"}
    if name == "config_file":
        raise SpecError(
            f"--config_file is {value}, which is not read from the line",
            allowed="the other options of accelerate launch",
            remedy=f"take it out of the line and add --from-accelerate {value}",
            place=PLACE,
        )
    if name in kinds:
        top["distributed_type"] = kinds[name]
    elif name in launch_lines.ACCELERATE_READ:
        top[name] = _scalar(value)
    elif name in accelerate.DEEPSPEED_KEYS:
        top.setdefault("deepspeed_config", {})[name] = _scalar(value)
    elif name.startswith(("fsdp_", "dynamo_")):
        top.setdefault(f"{name.split('_')[0]}_config", {})[name] = _scalar(value)
    elif name.startswith("parallelism_config_"):
        top.setdefault("parallelism_config", {})[name] = _scalar(value)
    elif name in launch_lines.ACCELERATE_REFUSED or name.startswith(("fp8_", "megatron_lm_")):
        raise SpecError(
            f"--{name} is not planned",
            allowed="jobs on GPUs by DDP, FSDP 2 and DeepSpeed",
            remedy="take it out to plan the job without it",
            place=PLACE,
        )
    elif name not in (
        "enable_cpu_affinity",
        "same_network",
        "use_parallelism_config",
        "no_tpu_cluster",
        "tpu_use_sudo",
    ):
        raise launch_lines.unknown_option(name, launch_lines.LAUNCHER_OPTIONS["accelerate"][2])


def _scalar(value: str | None) -> Any:
    """A value as YAML has it; an option alone is true."""
    if value is None:
        return True
    try:
        found = read_yaml(value, PLACE).plain()
    except SpecError:
        return value
    return found if isinstance(found, int | float | bool) or found is None else value


def _script(words: Sequence[str]) -> tuple[dict[str, Node], list[str]]:
    """Fields of TrainingArguments among a script's arguments, as HfArgumentParser reads them; the names of the rest."""
    written: dict[str, Node] = {}
    others: list[str] = []
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if not word.startswith("--"):
            others.append(word)
            continue
        flag, equals, value = word.partition("=")
        values = [value] if equals else []
        while not equals and index < len(words) and not words[index].startswith("--"):
            values.append(words[index])
            index += 1
        name = flag[2:].replace("-", "_")
        negated = name.removeprefix("no_")
        if name in KEYS or name in RETIRED:
            written[name] = _field(flag, name, values)
        elif name != negated and negated in KEYS and not values:
            written[negated] = node_from_data(False, f"{PLACE}: {flag}", flag)
        else:
            others.append(flag)
    return written, others


def _field(flag: str, name: str, values: Sequence[str]) -> Node:
    key = KEYS.get(name) or RETIRED[name]
    place = f"{PLACE}: {flag}"
    if not values and key.matters and key.kind not in ("flag", "any") and name not in FLAGS_OF_SCRIPTS:
        raise SpecError(f"{flag} has no value", allowed=f"{flag} VALUE", remedy="write its value", place=place)
    return node_from_data(_convert_value(key, " ".join(values) if values else None, place), place, flag)


def _convert_value(key: Key, value: str | None, place: str) -> Any:
    if value is None:
        return True
    if value.startswith("{"):
        return _mapping(value, place)
    if key.kind == "flag" and value.lower() in (*_TRUE, *_FALSE):
        return value.lower() in _TRUE
    if key.kind in ("text", "mapping") or not key.matters:
        return value
    return _scalar(value)


def _mapping(value: str, place: str) -> Mapping[str, Any]:
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        raise SpecError(
            f"{value[:60]!a} is no JSON", allowed="one JSON object", remedy="quote it as a whole", place=place
        ) from None
    return found if isinstance(found, dict) else {}
