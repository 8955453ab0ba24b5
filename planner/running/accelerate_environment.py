"""The environment that `accelerate launch` gives its ranks, as accelerate itself works it out."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import Any

from planner.errors import SpecError
from planner.importers.launch_options import PLACE
from planner.running.launch_line import LaunchLine


def variables_of(line: LaunchLine) -> Mapping[str, str]:
    """What accelerate 1.15 sets for every rank (commands/launch.py, utils/launch.py), to be called where a GPU is seen.

    Raises SpecError for options that accelerate refuses, and where it is not installed.
    """
    try:
        launch: Any = importlib.import_module("accelerate.commands.launch")
        environments: Any = importlib.import_module("accelerate.utils.launch")
    except ImportError:
        raise SpecError("accelerate is not installed", remedy="pip install accelerate", place=PLACE) from None
    words = [*line.launcher_words, *(["--"] if line.program.startswith("-") else []), line.program, *line.arguments]
    try:
        arguments = launch.launch_command_parser().parse_args(words)
        arguments, defaults, precision_from_config = launch._validate_launch_command(arguments)
        if arguments.use_deepspeed:
            fields = list(defaults.deepspeed_config) if defaults else []
            fields += ["mixed_precision"] if precision_from_config else []
            arguments.deepspeed_fields_from_accelerate_config = ",".join(fields)
            found = environments.prepare_deepspeed_cmd_env(arguments)[1]
        elif line.world_size > 1 or arguments.use_fsdp:
            found = environments.prepare_multi_gpu_env(arguments)
        else:
            found = environments.prepare_simple_launcher_cmd_env(arguments)[1]
    except (SystemExit, ValueError) as error:
        raise SpecError(
            f"accelerate refuses its options: {error}", allowed="what accelerate launch takes", place=PLACE
        ) from None
    return {name: value for name, value in found.items() if os.environ.get(name) != value}
