"""Reads accelerate's config, from its questionnaire's file or the options of `accelerate launch`.

Keys are those of accelerate 1.15.0 (commands/config/config_args.py, commands/config/cluster.py, commands/launch.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from planner.errors import SpecError
from planner.job.importers import drafts, fsdp
from planner.job.importers.drafts import Draft, read_yaml_file, unite_drafts
from planner.job.nodes import Node, node_from_data

WRITER = "`accelerate config` writes"
PROGRAM = "accelerate 1.15"
_TYPES = ("NO", "MULTI_GPU", "FSDP", "DEEPSPEED")

KEYS: Mapping[str, drafts.Key] = {
    "distributed_type": drafts.mapped_key("parallel", "text", None, ", ".join(_TYPES)),
    "num_machines": drafts.mapped_key("cluster.nodes", "whole", 1),
    "num_processes": drafts.mapped_key("cluster.gpus_per_node", "whole", None, "of all machines"),
    "mixed_precision": drafts.mapped_key(
        "train.precision", "any", "no", "no, bf16, fp16; as in TrainingArguments"
    ),
    "compute_environment": drafts.fixed_key(("LOCAL_MACHINE",), "jobs of SageMaker are not planned"),
    "use_cpu": drafts.fixed_key((False,), "there is no GPU to plan for"),
    "fp16": drafts.fixed_key((False,), "write mixed_precision"),
    "fp8_config": drafts.fixed_key((None,), "fp8 is not planned"),
    "megatron_lm_config": drafts.fixed_key((None,), "Megatron-LM is not planned"),
    "mpirun_config": drafts.fixed_key((None,), "there is no GPU to plan for"),
    "dynamo_backend": drafts.fixed_key(("NO", "no", None), "write dynamo_config"),
    "fsdp_config": drafts.mapped_key("parallel.dp_shard", "mapping", None, "the keys below"),
    "deepspeed_config": drafts.mapped_key("parallel.deepspeed", "mapping", None, "the keys below"),
    "parallelism_config": drafts.mapped_key("parallel", "mapping", None, "the keys below"),
    "dynamo_config": drafts.mapped_key("train.compile", "mapping", None, "dynamo_backend, unless it is NO"),
    **drafts.ignored_keys(
        "debug", "machine_rank", "gpu_ids", "main_process_ip", "main_process_port", "rdzv_backend", "same_network",
        "main_training_function", "enable_cpu_affinity", "downcast_bf16", "tpu_name", "tpu_zone", "tpu_use_cluster",
        "tpu_use_sudo", "command_file", "commands", "tpu_vm", "tpu_env",
    ),
}  # fmt: skip

DEEPSPEED_KEYS: Mapping[str, drafts.Key] = {
    "deepspeed_config_file": drafts.mapped_key("parallel.deepspeed", "text", None, "a file within the folder"),
    "zero_stage": drafts.mapped_key("parallel.deepspeed", "whole", 2),
    "offload_optimizer_device": drafts.mapped_key("parallel.deepspeed", "text", "none"),
    "gradient_accumulation_steps": drafts.mapped_key("train.gradient_accumulation_steps", "any"),
    "gradient_clipping": drafts.mapped_key("train.gradient_clipping", "any"),
    "offload_param_device": drafts.mapped_key("parallel.deepspeed", "text", "none", "for stage 3"),
    **drafts.ignored_keys(
        "zero3_init_flag", "zero3_save_16bit_model", "offload_optimizer_nvme_path", "offload_param_nvme_path",
        "deepspeed_multinode_launcher", "deepspeed_hostfile", "deepspeed_exclusion_filter",
        "deepspeed_inclusion_filter", "deepspeed_moe_layer_cls_names",
    ),
}  # fmt: skip

PARALLELISM_KEYS: Mapping[str, drafts.Key] = {
    "dp_replicate_size": drafts.mapped_key("parallel.dp_replicate.degree", "whole", 1),
    "dp_shard_size": drafts.mapped_key("parallel.dp_shard.degree", "whole", 1),
    "tp_size": drafts.mapped_key("parallel.tp.degree", "whole", 1),
    "cp_size": drafts.mapped_key("parallel.cp.degree", "whole", 1),
    "cp_comm_strategy": drafts.mapped_key("parallel.cp.rotate", "text", "allgather"),
    "cp_backend": drafts.fixed_key(("torch", None), "another context parallelism is not planned"),
    "sp_size": drafts.fixed_key((1, None), "sequence parallelism by DeepSpeed (Ulysses) is not planned"),
    **drafts.ignored_keys("sp_backend", "sp_seq_length", "sp_seq_length_is_variable", "sp_attn_implementation"),
}
"""Without the prefix `parallelism_config_`."""

DYNAMO_KEYS: Mapping[str, drafts.Key] = {
    "backend": drafts.mapped_key("train.compile", "text", "NO"),
    **drafts.ignored_keys("mode", "use_fullgraph", "use_dynamic", "use_regional_compilation"),
}
"""Without the prefix `dynamo_`."""


@dataclass(frozen=True, slots=True)
class Config:
    """What is written, checked; the parts without their prefixes."""

    top: Mapping[str, Node]
    fsdp: Mapping[str, Node]
    deepspeed: Mapping[str, Node]
    parallelism: Mapping[str, Node]
    dynamo: Mapping[str, Node]
    folder: Path
    place: str

    def kind(self) -> str:
        """How the processes work together; empty where it is not said."""
        node = self.top.get("distributed_type")
        return "" if node is None else str(node.value)

    @property
    def ignored_keys(self) -> list[str]:
        """Names of what is written and does not matter."""
        parts = (
            (KEYS, self.top), (fsdp.KEYS, self.fsdp), (DEEPSPEED_KEYS, self.deepspeed),
            (PARALLELISM_KEYS, self.parallelism), (DYNAMO_KEYS, self.dynamo),
        )  # fmt: skip
        ignored = [name for known, written in parts for name in drafts.list_ignored(known, written)]
        off = {"fsdp_config": "FSDP", "deepspeed_config": "DEEPSPEED"}
        return ignored + [name for name, kind in off.items() if self.kind() != kind and self.top.get(name) is not None]


def read(path: Path) -> Config:
    """That of a YAML file. Raises SpecError for what is unknown, of a wrong type or not understood."""
    return of_nodes(read_yaml_file(path, WRITER).mapping(), path.parent, str(path))


def of_nodes(written: Mapping[str, Node], folder: Path, place: str) -> Config:
    """That of values that somebody read. Raises SpecError as `read`."""
    drafts.check_all(KEYS, written, PROGRAM)
    for name, allowed in (("distributed_type", _TYPES), ("mixed_precision", ("no", "bf16", "fp16", False, None))):
        node = written.get(name)
        if node is not None and node.value not in allowed:
            raise SpecError(
                f"{name} is {node.summary}, which is not planned",
                allowed=", ".join(value for value in allowed if isinstance(value, str)),
                remedy="plan the job with one of these",
                place=node.place,
            )
    tables = {
        "fsdp": (fsdp.KEYS, "fsdp_", "fsdp_config"),
        "deepspeed": (DEEPSPEED_KEYS, "", f"deepspeed_config of {PROGRAM}"),
        "parallelism": (PARALLELISM_KEYS, "parallelism_config_", f"parallelism_config of {PROGRAM}"),
        "dynamo": (DYNAMO_KEYS, "dynamo_", f"dynamo_config of {PROGRAM}"),
    }
    inner = {
        name: {} if (node := written.get(f"{name}_config")) is None or node.value is None else node.mapping()
        for name in tables
    }
    parts = {
        name: drafts.check_all(known, inner[name], program, prefix) for name, (known, prefix, program) in tables.items()
    }
    return Config(top=written, folder=folder, place=place, **parts)


def join_configs(first: Config, second: Config) -> Config:
    """Of a file and of a launch line. Raises SpecError where they contradict each other."""
    parts = ("fsdp", "deepspeed", "parallelism", "dynamo")
    values = {name: unite_drafts(getattr(first, name), getattr(second, name)) for name in parts}
    plain = [
        {name: node for name, node in config.top.items() if not name.endswith("_config")} for config in (first, second)
    ]
    return Config(top=unite_drafts(*plain), folder=first.folder, place=first.place, **values)


def precision_of(config: Config) -> Node | None:
    """`bf16` or `fp16`, if one is asked for; `no` leaves it to others, as accelerate does."""
    node = config.top.get("mixed_precision")
    return None if node is None or node.value in ("no", False, None) else node


def fill_draft(draft: Draft, config: Config) -> None:
    """Machines and processes, and whether it compiles."""
    nodes, processes = config.top.get("num_machines"), config.top.get("num_processes")
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
    backend = config.dynamo.get("backend")
    if backend is not None and str(backend.value).upper() != "NO":
        draft.say_value("train.compile.scope", "model", backend.place)
        draft.say_value("train.compile.backend", str(backend.value).lower(), backend.place)


def settings_of_fsdp(config: Config, *, alone: bool) -> dict[str, Node] | None:
    """What it says of FSDP, `alone` with its own defaults; None where FSDP is off."""
    if config.kind() != "FSDP":
        return None
    if not alone:
        return dict(config.fsdp)
    usual = node_from_data("NO_WRAP", config.place, "fsdp_auto_wrap_policy")
    return {"auto_wrap_policy": usual, **config.fsdp}


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
