"""Imports a launch line: its nodes and processes, accelerate's options, and fields of TrainingArguments."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planner.errors import SpecError
from planner.job.importers import accelerate, training_arguments
from planner.job.importers.drafts import Draft
from planner.job.importers.key_tables import Key, WrittenKeys, table, tables
from planner.job.importers.training_arguments import FLAGS_OF_SCRIPTS, TABLES
from planner.job.launching.launchers import (
    OPTIONS,
    PLACE,
    deepspeed_size,
    refused,
    torchrun_size,
    unknown_option,
    words_of,
)
from planner.job.launching.layers import Unwrapped, local_text, unwrap
from planner.job.launching.line import Launcher, LaunchLine, find_launch, place_tasks
from planner.job.nodes import Node, node_from_data
from planner.job.yaml_text import read_yaml

_TRUE, _FALSE = ("true", "1", "yes", "y", "t"), ("false", "0", "no", "n", "f")
_CONFS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_MATTER = (
    "CUBLAS_WORKSPACE_CONFIG",
    "CUBLASLT_WORKSPACE_SIZE",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "CUDA_MODULE_LOADING",
)
_PREFIXES = ("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The parts of a launch line, as other sources have them."""

    counts: tuple[int | None, int | None]
    """Nodes and processes of each; None where the line does not say them."""
    allocator_conf: str
    accelerate: accelerate.Config | None
    arguments: WrittenKeys | None
    """Of a script that takes fields of TrainingArguments which matter."""
    not_read: Sequence[str]
    """Variables, options, and arguments of the script."""
    notes: Sequence[str]
    """Sentences on what around it was not run, or is not known."""


def read(line: str, folder: Path) -> Launch:
    """A line's parts; paths in it start at `folder`.

    Raises SpecError for what only a shell resolves, for launchers that are not known, for counts that are found while
    it runs, and for whatever is not understood.
    """
    unwrapped = unwrap(words_of(line, PLACE), lambda path: local_text(str(folder / path)), {})
    started, folder = find_launch(unwrapped), folder / unwrapped.folder
    launcher, options = started.launcher, started.options
    conf, variables = _judge_environment(unwrapped.environment)
    fields, others = _fields_of(started.arguments)
    keys = table(*TABLES).keys
    # Other scripts have options for their data loaders under the same names.
    of_trainer = any(keys[name].matters and not keys[name].to.startswith("train.data_loader") for name in fields)
    not_read = [*variables, *others]
    not_read += [] if of_trainer else [f"--{name}" for name in fields]
    config: accelerate.Config | None = None
    counts: tuple[int | None, int | None] = None, None
    if launcher is Launcher.ACCELERATE:
        top: dict[str, Any] = {}
        for name, value in options.items():
            if name in OPTIONS["accelerate"]["ignored"]:
                not_read.append(f"--{name}")
            else:
                _place(top, name, value)
        config = accelerate.of_nodes(node_from_data(top, PLACE).mapping(), folder, PLACE)
    else:
        read_here = ("nnodes", "nproc_per_node", "num_nodes", "num_gpus", "num_accelerators")
        not_read += [f"--{name}" for name in options if name not in read_here]
        counts = _count_ranks(started, unwrapped)
    return Launch(
        counts=counts,
        allocator_conf=conf,
        accelerate=config,
        arguments=training_arguments.of_nodes(fields, folder) if of_trainer else None,
        not_read=not_read,
        notes=unwrapped.notes,
    )


def _count_ranks(started: LaunchLine, unwrapped: Unwrapped) -> tuple[int | None, int | None]:
    """Nodes and processes of each, None where the line does not say them."""
    nodes: int | None = 1
    processes: int | None = 1
    if started.launcher is Launcher.TORCHRUN:
        nodes, processes = torchrun_size(started.options, unwrapped.environment)
    elif started.launcher is Launcher.DEEPSPEED:
        nodes, processes = deepspeed_size(started.options)
    if unwrapped.tasks is None or nodes is None or processes is None:
        return nodes, processes
    placed = place_tasks(replace(started, nodes=nodes, processes_per_node=processes), unwrapped.tasks)
    return placed.nodes, placed.processes_per_node


def fill_draft(draft: Draft, launch: Launch) -> None:
    """Nodes, processes, and the allocator's settings."""
    if launch.allocator_conf:
        draft.say_value("allocator.conf", launch.allocator_conf, PLACE)
    for key, count in zip(("nodes", "gpus_per_node"), launch.counts, strict=True):
        if count is not None:
            draft.say_value(f"cluster.{key}", count, PLACE)


def _judge_environment(environment: Mapping[str, str]) -> tuple[str, list[str]]:
    """PYTORCH_ALLOC_CONF's value, and the names of variables that do not matter."""
    for name in environment:
        if name in _MATTER or name.startswith(_PREFIXES):
            raise refused(
                f"the variable {name} matters to memory, and is not understood here",
                ", ".join(_CONFS) + ", and variables that do not matter",
                "write it in accelerate's config (--from-accelerate)"
                if name.startswith(_PREFIXES)
                else "take it out to plan the job without it",
            )
    confs = [environment[name] for name in _CONFS if name in environment]
    if len(set(confs)) > 1:
        raise refused(
            f"{_CONFS[0]} is {confs[0]!a}, and {_CONFS[1]} is {confs[1]!a}",
            "one value, wherever it is said",
            "delete one of them",
        )
    return (confs[0] if confs else ""), [name for name in environment if name not in _CONFS]


def _place(top: dict[str, Any], name: str, value: str | None) -> None:
    known = OPTIONS["accelerate"]
    kinds = {"multi_gpu": "MULTI_GPU", "use_fsdp": "FSDP", "use_deepspeed": "DEEPSPEED"}
    if name == "config_file":
        raise refused(
            f"--config_file is {value}, which is not read from the line",
            "the other options of accelerate launch",
            f"take it out of the line and add --from-accelerate {value}",
        )
    if name in kinds:
        top["distributed_type"] = kinds[name]
    elif name in known["read"]:
        top[name] = _scalar(value)
    elif name in tables()["deepspeed_config"].keys:
        top.setdefault("deepspeed_config", {})[name] = _scalar(value)
    elif name.startswith(("fsdp_", "dynamo_")):
        top.setdefault(f"{name.split('_')[0]}_config", {})[name] = _scalar(value)
    elif name.startswith("parallelism_config_"):
        top.setdefault("parallelism_config", {})[name] = _scalar(value)
    elif name in known["refused"] or name.startswith(("fp8_", "megatron_lm_")):
        raise refused(
            f"--{name} is not planned",
            "jobs on GPUs by DDP, FSDP 2 and DeepSpeed",
            "take it out to plan the job without it",
        )
    elif name not in known["without_effect"]:
        raise unknown_option(name, known["program"])


def _scalar(value: str | None) -> Any:
    """A value as YAML has it; an option alone is true."""
    if value is None:
        return True
    try:
        plain = read_yaml(value, PLACE).plain()
    except SpecError:
        return value
    return plain if isinstance(plain, int | float | bool) or plain is None else value


def _fields_of(words: Sequence[str]) -> tuple[dict[str, Node], list[str]]:
    """Fields of TrainingArguments among a script's arguments, as HfArgumentParser reads them; the names of the rest."""
    known = table(*TABLES).keys
    fields: dict[str, Node] = {}
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
        name, place = flag[2:].replace("-", "_"), f"{PLACE}: {flag}"
        negated = name.removeprefix("no_")
        if (key := known.get(name)) is not None:
            if not values and key.matters and key.kind not in ("flag", "any") and name not in FLAGS_OF_SCRIPTS:
                raise SpecError(f"{flag} has no value", allowed=f"{flag} VALUE", remedy="write its value", place=place)
            converted = _convert_value(key, " ".join(values), place) if values else True
            fields[name] = node_from_data(converted, place, flag)
        elif name != negated and negated in tables()["TrainingArguments"].keys and not values:
            fields[negated] = node_from_data(False, place, flag)
        else:
            others.append(flag)
    return fields, others


def _convert_value(key: Key, value: str, place: str) -> Any:
    if value.startswith("{"):
        try:
            data = json.loads(value)
        except (ValueError, RecursionError):
            raise SpecError(
                f"{value[:60]!a} is not JSON", allowed="one JSON object", remedy="quote it as a whole", place=place
            ) from None
        return data if isinstance(data, dict) else {}
    if key.kind == "flag" and value.lower() in (*_TRUE, *_FALSE):
        return value.lower() in _TRUE
    if key.kind in ("text", "mapping") or not key.matters:
        return value
    return _scalar(value)
