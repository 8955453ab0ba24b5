"""Parses a launch line without a shell: the launcher, its options, the environment, and the script."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import PurePosixPath

from planner.errors import SpecError
from planner.job.size_limits import MOST_RANKS

# Options are those of torch 2.13 (torch/distributed/run.py), accelerate 1.15.0 (commands/launch.py) and DeepSpeed
# 0.19.8 (launcher/runner.py).
PLACE = "the launch line"

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

LAUNCHER_OPTIONS: Mapping[str, tuple[Collection[str] | None, Collection[str], str]] = {
    "torchrun": (TORCHRUN_WITH_VALUE, TORCHRUN_ALONE, "torchrun of torch 2.13"),
    "accelerate": (None, ACCELERATE_ALONE, "accelerate launch of accelerate 1.15"),
    "deepspeed": (DEEPSPEED_WITH_VALUE, DEEPSPEED_ALONE, "deepspeed of DeepSpeed 0.19.8"),
}
"""Of each launcher the options with a value, those that stand alone, and its name, as `read_options` takes them."""


def read_options(
    words: Sequence[str],
    with_value: Collection[str] | None,
    alone: Collection[str],
    program: str,
    *,
    short: Mapping[str, str] | None = None,
    values: Mapping[str, int] | None = None,
) -> tuple[dict[str, str | None], list[str]]:
    """Options up to the command, by their names with underscores, and what follows.

    `with_value` None: every option that is not alone has a value. `short`: names of one letter, whose value may follow
    without a space. `values`: options with several. Raises SpecError for an option that the program does not have.
    """
    found: dict[str, str | None] = {}
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        word = rest.pop(0)
        written, equals, value = word.lstrip("-").partition("=")
        name = written.replace("-", "_")
        if short is not None and not word.startswith("--"):
            name, written, equals, value = _short(word, short, alone, program)
        if name in alone:
            found[name] = value if equals else None
        elif with_value is not None and name not in with_value and not (values and name in values):
            raise unknown_option(written, program)
        elif equals:
            found[name] = value
        else:
            count = (values or {}).get(name, 1)
            if len(rest) < count:
                raise SpecError(
                    f"--{written} has no value", allowed=f"--{written} VALUE", remedy="write its value", place=PLACE
                )
            found[name] = " ".join(rest[:count])
            del rest[:count]
    return found, rest[1:] if rest[:1] == ["--"] else rest


def _short(word: str, short: Mapping[str, str], alone: Collection[str], program: str) -> tuple[str, str, str, str]:
    """`-N2`, `-N 2`, `-N=2`; of letters that stand alone several may follow each other."""
    letter, value = word[1], word[2:]
    if letter not in short:
        raise unknown_option(letter, program)
    name = short[letter]
    if name in alone:
        others = [each for each in value if short.get(each) not in alone]
        if others:
            raise unknown_option(word.lstrip("-"), program)
        return name, letter, "", ""
    return name, letter, "=" if value else "", value.removeprefix("=")


def count_of(name: str, written: str) -> int:
    """A whole number from 1 on. Raises SpecError for anything else."""
    if not re.fullmatch(r"[0-9]{1,7}", written) or not 0 < int(written) <= MOST_RANKS:
        raise refused(f"{name} is {written[:40]!a}", f"a whole number from 1 to {MOST_RANKS:,}")
    return int(written)


def refused(problem: str, allowed: str) -> SpecError:
    """The refusal of a launch line."""
    return SpecError(problem, allowed=allowed, remedy="write the command as it would run on the cluster", place=PLACE)


def deepspeed_size(options: Mapping[str, str | None]) -> tuple[int | None, int | None]:
    """Nodes and GPUs of each, as DeepSpeed's launcher is told them; None where it asks a file of hosts or the machine.

    Raises SpecError for no counts, and for a line that starts several jobs.
    """
    if options.get("autotuning"):
        raise SpecError(
            "the line asks for autotuning, and so for several jobs",
            allowed="a line that starts one job",
            remedy="take --autotuning out",
            place=PLACE,
        )
    hosts = {"H", "hostfile", "i", "include", "e", "exclude"} & options.keys()
    included = (options.get("i") or options.get("include") or "").split("@")
    slots = {len(slots.split(",")) if slots else 0 for _, _, slots in (each.partition(":") for each in included)}
    if len(slots) == 1 and 0 not in slots:
        return len(included), slots.pop()
    gpus = options.get("num_gpus") or options.get("num_accelerators")
    nodes = options.get("num_nodes") or (None if hosts or gpus is None else "1")
    return (
        None if nodes is None else count_of("--num_nodes", nodes),
        None if gpus is None else count_of("--num_gpus", gpus),
    )


def unknown_option(name: str, program: str) -> SpecError:
    """An option that nobody knows."""
    return SpecError(
        f"unknown option --{name}",
        allowed=f"the options of {program}",
        remedy="see how it is spelt there, or delete it",
        place=PLACE,
    )


_MOST_CHARACTERS = 100_000
_OPERATORS = {
    ";": "several commands", "|": "a pipe", "&": "several commands", "<": "a redirection", ">": "a redirection",
    "(": "a subshell", ")": "a subshell", "\n": "several commands", "*": "a pattern of file names",
}  # fmt: skip


def words_of(line: str, place: str) -> list[str]:
    """The words of one command. Raises SpecError for variables, substitutions and everything but one command."""
    if len(line) > _MOST_CHARACTERS:
        raise SpecError(
            f"the line has {len(line)} characters",
            allowed=f"up to {_MOST_CHARACTERS}",
            remedy="give the command that launches the job",
            place=place,
        )
    line = line.replace("\r\n", "\n").replace("\\\n", " ").strip()
    _check(line, place)
    try:
        return shlex.split(line)
    except ValueError as error:
        raise SpecError(
            f"the line cannot be read: {error}", allowed="one command", remedy="close what is open", place=place
        ) from None


def _check(line: str, place: str) -> None:
    quote, escaped = "", False
    for index, character in enumerate(line):
        if escaped:
            escaped = False
        elif quote == "'":
            quote = "" if character == "'" else quote
        elif character == "\\":
            escaped = True
        elif character in "$`":
            raise _needs_a_shell(line, index, "a variable" if character == "$" else "a command", place)
        elif quote == '"':
            quote = "" if character == '"' else quote
        elif character in "'\"":
            quote = character
        elif character in _OPERATORS:
            raise _needs_a_shell(line, index, _OPERATORS[character], place)


def _needs_a_shell(line: str, index: int, what: str, place: str) -> SpecError:
    return SpecError(
        f"{line[index : index + 30]!a} is {what}, and no shell is run",
        allowed="one command, with values as they are",
        remedy="write what the shell would put there",
        place=f"{place}:{index + 1}",
    )


_LAUNCHERS = (
    "torchrun, python -m torch.distributed.run, accelerate launch, deepspeed, python SCRIPT; with srun and its options"
    " before"
)

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
    options: dict[str, str | None] = {}
    rest = [*dropwhile(lambda word: word.startswith("-"), words)]
    if launcher in LAUNCHER_OPTIONS:
        options, rest = read_options(words, *LAUNCHER_OPTIONS[launcher])
    if not rest:
        raise SpecError(
            "the line has no script",
            allowed=f"{launcher} ... train.py ...",
            remedy="give the whole line, with the script and its arguments",
            place=PLACE,
        )
    return options, rest[1:]


def _no_launcher(words: Sequence[str]) -> SpecError:
    first = words[0][:100] if words else "nothing"
    return SpecError(
        f"the line starts {first!a}, which is no launcher that is understood",
        allowed=_LAUNCHERS,
        remedy="give the line that starts the processes, or write cluster in JOB.yaml instead",
        place=PLACE,
    )
