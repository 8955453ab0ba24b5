"""Commands of training frameworks that start ranks of a program of their own, as the launch lines that they come to."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

from planner.errors import SpecError
from planner.job.launching.launchers import PLACE, TABLES, OptionTable, count_of, read_options, refused
from planner.job.yaml_text import read_yaml

TextOf = Callable[[str], str]
"""The text of a file; raises SpecError where it cannot be read."""
_YES = ("true", "y", "1")


@dataclass(frozen=True, slots=True)
class CommandContext:
    """What a framework's command finds: variables, files, and the GPUs of a node (0: nobody has said)."""

    environment: Mapping[str, str]
    text_of: TextOf
    node_gpus: int

    def count_gpus(self, option: str) -> str:
        """The GPUs of a node. Raises SpecError where neither the user nor this `option` says how many there are."""
        if not self.node_gpus:
            raise refused(
                "how many ranks there are is not said, and this machine's GPUs do not decide it",
                f"{option}, or planner run --gpus NUMBER",
            )
        return str(self.node_gpus)


def _tune(words: list[str], _: CommandContext) -> list[str]:
    """torchtune 0.7 (torchtune/_cli/run.py): a recipe of its own is a file, another one a module."""
    if words[:1] != ["run"]:
        _refuse("tune", words, "tune run [torchrun's options] RECIPE --config CONFIG")
    rest = read_options(words[1:], TABLES["torch.distributed.run"])[1]
    if not rest:
        _refuse("tune run", rest, "tune run [torchrun's options] RECIPE --config CONFIG")
    options, (recipe, *arguments) = words[1 : len(words) - len(rest)], rest
    is_own = not recipe.endswith(".py") and recipe.removeprefix("dev/").isidentifier()
    found = importlib.util.find_spec("torchtune")
    recipes = Path(found.origin).parent.parent / "recipes" if found is not None and found.origin else Path("recipes")
    for number, (option, value) in enumerate(pairwise([*arguments]), 1):
        if option == "--config" and not value.endswith((".yaml", ".yml")):
            arguments[number] = f"{recipes / 'configs' / value}.yaml"
    program = [f"{recipes / recipe}.py"] if is_own else ["-m", recipe.removesuffix(".py").replace("/", ".")]
    return [*(["torchrun", *options] if options else ["python"]), *program, *arguments]


def _llamafactory(words: list[str], found: CommandContext) -> list[str]:
    """LLaMA-Factory 0.9.6 (llamafactory/launcher.py)."""
    if words[:1] != ["train"]:
        _refuse("llamafactory-cli", words, "llamafactory-cli train CONFIG.yaml")
    module = ["-m", "llamafactory.launcher", *words[1:]]
    several = found.node_gpus > 1 or (not found.node_gpus and found.environment.get("NPROC_PER_NODE", "1") != "1")
    forced = any(found.environment.get(name, "").lower() in _YES for name in ("FORCE_TORCHRUN", "USE_MCA"))
    if not forced and (not several or found.environment.get("USE_RAY", "").lower() in _YES):
        return ["python", *module]
    nodes, processes = found.environment.get("NNODES", "1"), found.environment.get("NPROC_PER_NODE", "")
    tuned = found.environment.get("OPTIM_TORCH", "1").lower() in _YES
    variables = ["PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "TORCH_NCCL_AVOID_RECORD_STREAMS=1"]
    counts = ["--nnodes", nodes, "--nproc_per_node", processes or found.count_gpus("NPROC_PER_NODE=NUMBER")]
    return [*(variables if tuned else []), "torchrun", *counts, *module]


def _axolotl(words: list[str], _: CommandContext) -> list[str]:
    """Axolotl 0.18 (axolotl/cli/main.py, cli/utils/train.py): what follows `--` is the launcher's."""
    if words[:1] != ["train"] or not words[1:]:
        _refuse("axolotl", words, "axolotl train CONFIG.yaml")
    own, beyond = words[1:], []
    if "--" in own:
        own, beyond = own[: own.index("--")], own[own.index("--") + 1 :]
    launcher, kept = "accelerate", []
    while own:
        name, equals, value = own.pop(0).partition("=")
        plain = name.lstrip("-").replace("-", "_")
        if plain in ("launcher", "num_processes", "main_process_port", "sweep", "cloud") and name.startswith("-"):
            value = value if equals or not own else own.pop(0)
            if plain == "launcher":
                launcher = value
            elif plain in ("sweep", "cloud"):
                raise refused(f"axolotl has --{plain}: other jobs come of it", "axolotl train CONFIG.yaml of one job")
            else:
                beyond = [f"--{plain}", value, *beyond]
        else:
            kept.append(name + equals + value)
    start = {"accelerate": ["accelerate", "launch", *beyond], "torchrun": ["torchrun", *beyond], "python": ["python"]}
    if launcher not in start:
        raise refused(f"--launcher is {launcher[:40]!a}", ", ".join(start))
    return [*start[launcher], "-m", "axolotl.cli.train", *kept]


def _swift(words: list[str], found: CommandContext) -> list[str]:
    """ms-swift 4.6 (swift/cli/main.py): the first argument may be a file of arguments."""
    method = words[0].replace("_", "-") if words else ""
    if method not in ("pt", "sft", "rlhf", "infer"):
        _refuse("swift", words, "swift sft, swift pt, swift rlhf, swift infer")
    arguments, variables, environment = words[1:], [], found.environment
    if arguments and arguments[0].endswith((".yaml", ".yml", ".json")):
        config = read_yaml(found.text_of(arguments[0]), arguments[0]).plain()
        if not isinstance(config, Mapping):
            raise SpecError("must be a mapping", allowed="arguments of swift by their names", place=arguments[0])
        settings = config.get("ENV") or {}
        variables = [f"{name}={value}" for name, value in settings.items() if name not in found.environment]
        environment = {**{str(name): str(value) for name, value in settings.items()}, **environment}
        given: list[str] = []
        for name, value in config.items():
            if name != "ENV":
                given += [f"--{name}", *([str(each) for each in value] if isinstance(value, list) else [str(value)])]
        arguments = [*given, *arguments[1:]]
    counts = [
        word
        for name in ("NPROC_PER_NODE", "NNODES")
        if environment.get(name)
        for word in (f"--{name.lower()}", environment[name])
    ]
    return [*variables, *(["torchrun", *counts] if counts else ["python"]), "-m", f"swift.cli.{method}", *arguments]


def _composer(words: list[str], found: CommandContext) -> list[str]:
    """Composer 0.33 (composer/cli/launcher.py), whose ranks have torchrun's variables and NODE_RANK."""
    letters = {"n": "nproc", "v": "verbose", "m": "module_mode", "c": "command_mode"}
    alone = ("verbose", "module_mode", "command_mode")
    options, program = read_options(words, OptionTable(alone, "composer of Composer 0.33", short=letters))
    if "command_mode" in options:
        raise refused("composer has --command_mode", "a Python program, or a module after -m")
    processes = count_of(
        "-n", options.get("nproc") or found.environment.get("LOCAL_WORLD_SIZE") or found.count_gpus("-n N")
    )
    said = options.get("world_size") or found.environment.get("WORLD_SIZE")
    world = count_of("--world_size", said) if said else processes
    if world % processes:
        raise refused(f"{world} ranks, {processes} on each node", "as many ranks on each node")
    counts = ["--nnodes", str(world // processes), "--nproc-per-node", str(processes)]
    return ["NODE_RANK=0", "torchrun", *counts, *(["-m"] if "module_mode" in options else []), *program]


def _fabric(words: list[str], found: CommandContext) -> list[str]:
    """Lightning 2.6 (lightning/fabric/cli.py); `lightning run model` is its older name."""
    rest = words[2:] if words[:2] == ["run", "model"] else words[1:] if words[:1] == ["run"] else []
    if not rest:
        _refuse("fabric", words, "fabric run [options] SCRIPT")
    options, program = read_options(rest, OptionTable((), "fabric run of Lightning 2.6"))
    devices, nodes = options.get("devices") or "1", options.get("num_nodes") or "1"
    listed = re.sub(r"[\[\]\s]", "", devices)
    if devices in ("auto", "-1"):
        processes = "1" if devices == "auto" else found.count_gpus("--devices NUMBER")
    else:
        processes = str(len(listed.strip(",").split(","))) if "," in listed or "[" in devices else devices
    settings = {"DEVICES": devices, "NUM_NODES": nodes, "ACCELERATOR": "", "STRATEGY": "", "PRECISION": ""}
    said = {name: options.get(name.lower()) or default for name, default in settings.items()}
    variables = [f"LT_{name}={value}" for name, value in said.items() if value]
    return ["LT_CLI_USED=1", *variables, "torchrun", "--nproc_per_node", processes, "--nnodes", nodes, *program]


def _trl(words: list[str], _: CommandContext) -> list[str]:
    """TRL 0.19 (trl/cli.py): a script of its own, by accelerate launch, which takes the options that are its own."""
    if not words or words[0] not in ("sft", "dpo", "grpo", "kto", "reward", "rloo"):
        _refuse("trl", words, "trl sft, dpo, grpo, kto, reward, rloo")
    own, kept, rest = [], [], words[1:]
    while rest:
        word = rest.pop(0)
        plain = word.partition("=")[0].lstrip("-")
        if plain in ("num_processes", "num_machines", "accelerate_config", "config_file", "main_process_port"):
            own.append(word.replace("accelerate_config", "config_file"))
            own += [rest.pop(0)] if "=" not in word and rest else []
        else:
            kept.append(word)
    return ["accelerate", "launch", *own, "-m", f"trl.scripts.{words[0]}", *kept]


FRAMEWORKS: Mapping[str, Callable[[list[str], CommandContext], list[str]]] = {
    "tune": _tune,
    **dict.fromkeys(("llamafactory-cli", "lmf"), _llamafactory),
    "axolotl": _axolotl,
    "swift": _swift,
    "composer": _composer,
    **dict.fromkeys(("fabric", "lightning"), _fabric),
    "trl": _trl,
}
"""Readers of what follows a framework's command: each gives the words that it comes to, and raises
SpecError for a command that starts no training, and where how many ranks it starts is not said."""


def _refuse(name: str, words: Sequence[str], allowed: str) -> NoReturn:
    raise SpecError(
        f"`{' '.join([name, *words[:1]])}` starts no training that is known here",
        allowed=allowed,
        remedy="give the command that trains, or python with the program that it runs",
        place=PLACE,
    )
