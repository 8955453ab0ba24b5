"""Reads accelerate's config, from its questionnaire's file or the options of `accelerate launch` (1.15.0)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from planner.errors import SpecError
from planner.job.importers.drafts import Draft, read_yaml_file, unite_drafts
from planner.job.importers.key_tables import WrittenKeys, table
from planner.job.nodes import Node, node_from_data

WRITER = "`accelerate config` writes"
_TYPES = ("NO", "MULTI_GPU", "FSDP", "DEEPSPEED")
_PARTS = {"fsdp": "fsdp_", "deepspeed": "", "parallelism": "parallelism_config_", "dynamo": "dynamo_"}
"""Each is a mapping `..._config`, whose keys may have this prefix."""


@dataclass(frozen=True, slots=True)
class Config:
    """What is written, checked; the parts without their prefixes."""

    top: WrittenKeys
    fsdp: WrittenKeys
    deepspeed: WrittenKeys
    parallelism: WrittenKeys
    dynamo: WrittenKeys
    place: str

    def kind(self) -> str:
        """How the processes work together; empty where it is not said."""
        return str(self.top["distributed_type"]) if "distributed_type" in self.top else ""

    @property
    def ignored(self) -> list[str]:
        """Names of what is written and does not matter."""
        parts = (self.top, self.fsdp, self.deepspeed, self.parallelism, self.dynamo)
        off = {"fsdp_config": "FSDP", "deepspeed_config": "DEEPSPEED"}
        return [name for part in parts for name in part.ignored] + [
            name for name, kind in off.items() if self.kind() != kind and name in self.top
        ]


def read(path: Path) -> Config:
    """That of a YAML file. Raises SpecError for what is unknown, of a wrong type or not understood."""
    return of_nodes(read_yaml_file(path, WRITER).mapping(), path.parent, str(path))


def of_nodes(written: Mapping[str, Node], folder: Path, place: str) -> Config:
    """That of values that somebody read. Raises SpecError as `read`."""
    top = table("accelerate").read(written, folder)
    for name, allowed in (("distributed_type", _TYPES), ("mixed_precision", ("no", "bf16", "fp16", False, None))):
        if name in top and top.node(name).value not in allowed:
            raise SpecError(
                f"{name} is {top.node(name).summary}, which is not planned",
                allowed=", ".join(value for value in allowed if isinstance(value, str)),
                remedy="plan the job with one of these",
                place=top.node(name).place,
            )
    inner = {name: {} if (node := top.node(f"{name}_config")).value is None else node.mapping() for name in _PARTS}
    parts = {name: table(f"{name}_config").read(inner[name], folder, prefix=prefix) for name, prefix in _PARTS.items()}
    return Config(top=top, place=place, **parts)


def join_configs(first: Config, second: Config) -> Config:
    """Of a file and of a launch line. Raises SpecError where they contradict each other."""
    parts: dict[str, WrittenKeys] = {}
    for name in (*_PARTS, "top"):
        sources = [
            {key: node for key, node in getattr(config, name).nodes.items() if not key.endswith("_config")}
            for config in (first, second)
        ]
        parts[name] = replace(getattr(first, name), nodes=unite_drafts(*sources))
    return Config(place=first.place, **parts)


def read_precision(config: Config) -> Node | None:
    """`bf16` or `fp16`, if one is asked for; `no` leaves it to others, as accelerate does."""
    node = config.top.node("mixed_precision")
    return None if node.value in ("no", False, None) else node


def fill_draft(draft: Draft, config: Config) -> None:
    """Machines and processes, and whether it compiles."""
    nodes, processes = config.top.nodes.get("num_machines"), config.top.nodes.get("num_processes")
    if nodes is not None:
        draft.say("cluster.nodes", nodes)
    if processes is not None:
        draft.say("cluster.gpus_per_node", _per_node(processes, nodes))
    if config.kind() == "NO" and processes is not None and processes.value != 1:
        raise SpecError(
            f"num_processes is {processes.summary}, and distributed_type is NO",
            allowed="1; or MULTI_GPU, FSDP, DEEPSPEED",
            remedy="say how the processes work together in distributed_type",
            place=processes.place,
        )
    backend = config.dynamo.node("backend")
    if str(backend.value).upper() != "NO":
        draft.say_value("train.compile.scope", "model", backend.place)
        draft.say_value("train.compile.backend", str(backend.value).lower(), backend.place)


def read_fsdp_settings(config: Config, *, alone: bool) -> dict[str, Node] | None:
    """What it says of FSDP, `alone` with its own defaults; None where FSDP is off."""
    if config.kind() != "FSDP":
        return None
    if not alone:
        return dict(config.fsdp.nodes)
    usual = node_from_data("NO_WRAP", config.place, "fsdp_auto_wrap_policy")
    return {"auto_wrap_policy": usual, **config.fsdp.nodes}


def _per_node(processes: Node, nodes: Node | None) -> Node:
    machines = 1 if nodes is None or not isinstance(nodes.value, int) else nodes.value
    count = processes.value
    if not isinstance(count, int) or count < 1 or machines < 1 or count % machines:
        raise SpecError(
            f"num_processes is {processes.summary} over {machines} machines",
            allowed="a multiple of num_machines, from 1",
            remedy="write the number of all processes of all machines",
            place=processes.place,
        )
    return node_from_data(count // machines, processes.place, "cluster.gpus_per_node")
