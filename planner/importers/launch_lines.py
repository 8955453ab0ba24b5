"""Parses a launch line: the launcher, its options, the environment, and the script with its arguments.

Launchers and their options are those of torch 2.13 (torch/distributed/run.py), accelerate 1.15.0 (commands/launch.py)
and DeepSpeed 0.19.8 (launcher/runner.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from planner.errors import SpecError
from planner.importers.shell_words import words_of

PLACE = "the launch line"
_LAUNCHERS = (
    "torchrun, python -m torch.distributed.run, accelerate launch, deepspeed, python SCRIPT; with srun and its options"
    " before"
)

TORCHRUN_WITH_VALUE = frozenset({
    "nnodes", "nproc_per_node", "rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf", "max_restarts",
    "monitor_interval", "start_method", "event_log_handler", "role", "log_dir", "r", "redirects", "t", "tee",
    "local_ranks_filter", "duplicate_stdout_filters", "duplicate_stderr_filters", "node_rank", "master_addr",
    "master_port", "local_addr", "logs_specs", "numa_binding", "signals_to_handle", "shutdown_timeout",
})  # fmt: skip
TORCHRUN_ALONE = frozenset({"standalone", "m", "module", "no_python", "run_path", "virtual_local_rank"})
DEEPSPEED_WITH_VALUE = frozenset({
    "H", "hostfile", "i", "include", "e", "exclude", "num_nodes", "num_gpus", "num_accelerators", "master_port",
    "master_addr", "node_rank", "launcher", "launcher_args", "enable_each_rank_log", "autotuning", "bind_core_list",
    "ssh_port", "venv_script", "log_level",
})  # fmt: skip
DEEPSPEED_ALONE = frozenset({
    "module", "no_python", "no_local_rank", "no_ssh", "no_ssh_check", "force_multi", "save_pid",
    "bind_cores_to_rank", "q", "quiet",
})  # fmt: skip
ACCELERATE_ALONE = frozenset({
    "q", "quiet", "cpu", "multi_gpu", "tpu", "enable_cpu_affinity", "dynamo_use_fullgraph", "dynamo_use_dynamic",
    "dynamo_use_regional_compilation", "use_deepspeed", "use_fsdp", "use_parallelism_config", "use_megatron_lm",
    "same_network", "m", "module", "no_python", "tpu_cluster", "no_tpu_cluster", "tpu_use_sudo", "downcast_bf16",
    "fp8_use_autocast_during_eval", "debug",
})  # fmt: skip
ACCELERATE_READ = frozenset({"num_processes", "num_machines", "mixed_precision", "config_file"})
ACCELERATE_IGNORED = frozenset({
    "gpu_ids", "machine_rank", "main_process_ip", "main_process_port", "t", "tee", "log_dir", "role", "rdzv_backend",
    "rdzv_conf", "max_restarts", "monitor_interval", "main_training_function", "num_cpu_threads_per_process",
    "mpirun_hostfile", "vm", "env", "aws_access_key_id", "aws_secret_access_key",
})  # fmt: skip
ACCELERATE_REFUSED = ("cpu", "tpu", "tpu_cluster", "use_megatron_lm", "downcast_bf16")

_CONFS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_MATTER = (
    "CUBLAS_WORKSPACE_CONFIG",
    "CUBLASLT_WORKSPACE_SIZE",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "CUDA_MODULE_LOADING",
)
_PREFIXES = ("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_")


@dataclass(frozen=True, slots=True)
class LaunchLine:
    """What stands in the line, not judged yet."""

    launcher: str
    """torchrun | accelerate | deepspeed | python"""
    options: Mapping[str, str | None]
    """Of the launcher, by their names with underscores; None for those without a value."""
    script_arguments: Sequence[str]
    allocator_conf: str
    not_read: Sequence[str]
    """Variables, and options of srun."""


def read(line: str) -> LaunchLine:
    """The parts of a line. Raises SpecError for what only a shell resolves, and for launchers that are not known."""
    behind_variables, environment = _environment(words_of(line, PLACE))
    command, before = _behind_srun(behind_variables)
    launcher, rest = _launcher(command, srun=bool(before))
    options, script = _options(launcher, rest)
    conf, variables = _judge_environment(environment)
    return LaunchLine(launcher, options, script, conf, [*variables, *before])


def _environment(words: Sequence[str]) -> tuple[Sequence[str], dict[str, str]]:
    found: dict[str, str] = {}
    rest = words[1:] if words and words[0] == "env" else words
    while rest and (match := re.fullmatch(r"([A-Za-z_]\w*)=(.*)", rest[0], re.DOTALL)):
        found[match[1]] = match[2]
        rest = rest[1:]
    return rest, found


def _judge_environment(environment: Mapping[str, str]) -> tuple[str, list[str]]:
    """PYTORCH_ALLOC_CONF's value, and the names of variables that do not matter."""
    for name in environment:
        if name in _MATTER or name.startswith(_PREFIXES):
            raise SpecError(
                f"the variable {name} matters to memory, and is not understood here",
                allowed=", ".join(_CONFS) + ", and variables that do not matter",
                remedy="write it in accelerate's config (--from-accelerate)"
                if name.startswith(_PREFIXES)
                else "take it out to plan the job without it",
                place=PLACE,
            )
    confs = [environment[name] for name in _CONFS if name in environment]
    if len(set(confs)) > 1:
        raise SpecError(
            f"{_CONFS[0]} is {confs[0]!a}, and {_CONFS[1]} is {confs[1]!a}",
            allowed="one value, wherever it is said",
            remedy="delete one of them",
            place=PLACE,
        )
    return (confs[0] if confs else ""), [name for name in environment if name not in _CONFS]


def _behind_srun(words: Sequence[str]) -> tuple[Sequence[str], list[str]]:
    if not words or PurePosixPath(words[0]).name != "srun":
        return words, []
    for index, word in enumerate(words):
        if _is_launcher(word):
            return words[index:], ["srun", *(each for each in words[1:index] if each.startswith("-"))]
    raise _no_launcher(words)


def _is_launcher(word: str) -> bool:
    name = PurePosixPath(word).name
    return name in ("torchrun", "accelerate", "deepspeed") or re.fullmatch(r"python[0-9.]*", name) is not None


def _launcher(words: Sequence[str], *, srun: bool) -> tuple[str, Sequence[str]]:
    if not words or not _is_launcher(words[0]):
        raise _no_launcher(words)
    name = PurePosixPath(words[0]).name
    if name in ("torchrun", "deepspeed"):
        return name, words[1:]
    if name == "accelerate":
        if words[1:2] != ["launch"]:
            raise _no_launcher(words)
        return "accelerate", words[2:]
    rest = words[1:]
    while rest and rest[0] in ("-u", "-O", "-B"):
        rest = rest[1:]
    if rest[:2] in (["-m", "torch.distributed.run"], ["-m", "torch.distributed.launch"]):
        return "torchrun", rest[2:]
    if rest[:2] == ["-m", "accelerate.commands.launch"]:
        return "accelerate", rest[2:]
    if srun:
        raise SpecError(
            "srun starts python itself, and how many processes it starts stands elsewhere",
            allowed=_LAUNCHERS,
            remedy="launch by torchrun, or write cluster and parallel in JOB.yaml instead of the launch line",
            place=PLACE,
        )
    return "python", rest


def _options(launcher: str, words: Sequence[str]) -> tuple[dict[str, str | None], Sequence[str]]:
    """Options up to the script, and what stands behind the script."""
    found: dict[str, str | None] = {}
    index = 0
    while index < len(words) and words[index].startswith("-") and words[index] != "--":
        written, equals, value = words[index].lstrip("-").partition("=")
        name = written.replace("-", "_")
        index += 1
        if _stands_alone(launcher, name):
            found[name] = None
        elif equals:
            found[name] = value
        elif index < len(words):
            found[name] = words[index]
            index += 1
        else:
            raise SpecError(
                f"--{written} has no value", allowed=f"--{written} VALUE", remedy="write its value", place=PLACE
            )
    if words[index : index + 1] == ["--"]:
        index += 1
    if index >= len(words):
        raise SpecError(
            "the line has no script",
            allowed=f"{launcher} ... train.py ...",
            remedy="give the whole line, with the script and its arguments",
            place=PLACE,
        )
    return found, words[index + 1 :]


def _stands_alone(launcher: str, name: str) -> bool:
    """Raises SpecError for an option that the launcher does not have, since it may take the next word."""
    if launcher == "python":
        return True
    if launcher == "accelerate":
        return name in ACCELERATE_ALONE
    if launcher == "deepspeed":
        if name not in DEEPSPEED_ALONE | DEEPSPEED_WITH_VALUE:
            raise unknown_option(name, "deepspeed of DeepSpeed 0.19.8")
        return name in DEEPSPEED_ALONE
    if name not in TORCHRUN_ALONE | TORCHRUN_WITH_VALUE:
        raise unknown_option(name, "torchrun of torch 2.13")
    return name in TORCHRUN_ALONE


def unknown_option(name: str, program: str) -> SpecError:
    """An option that nobody knows."""
    return SpecError(
        f"unknown option --{name}",
        allowed=f"the options of {program}",
        remedy="delete it, or say what it decides in JOB.yaml",
        place=PLACE,
    )


def _no_launcher(words: Sequence[str]) -> SpecError:
    first = words[0][:100] if words else "nothing"
    return SpecError(
        f"the line starts {first!a}, which is no launcher that is understood",
        allowed=_LAUNCHERS,
        remedy="give the line that starts the processes, or write cluster in JOB.yaml instead",
        place=PLACE,
    )
