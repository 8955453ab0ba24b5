"""Launchers read their own options: their parsers are asked in a child process, for loading one loads torch."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
from collections.abc import Mapping, Sequence
from typing import Any

from planner.errors import SpecError
from planner.runtime import running

PLACE = "the launch line"
Parsed = tuple[dict[str, str | None], list[str]]
"""Options that differ from what they are if they are not given, by their names with underscores and None for one
without a value; and the program with its arguments."""


def ask_parser(module: str, words: Sequence[str]) -> Parsed:
    """What the launcher of this module reads in these words. Raises SpecError for what it refuses."""
    parsed: Parsed = running.call(f"{__name__}:parse", module, tuple(words))
    return parsed


def parse(module: str, words: Sequence[str]) -> Parsed:
    """The child's side of :func:`ask_parser`."""
    launcher: Any = importlib.import_module(module)
    parse_args = launcher.launch_command_parser().parse_args if "accelerate" in module else launcher.parse_args
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            given, usual = vars(parse_args([*words])), vars(parse_args(["program"]))
    except SystemExit:
        *_, last = ["", *said.getvalue().strip().splitlines()]
        raise SpecError(
            f"{module} refuses its options: {last}", allowed="what its own --help says", place=PLACE
        ) from None
    names = ("user_script", "user_args") if "user_script" in given else ("training_script", "training_script_args")
    options = {
        name: None if value is True else str(value)
        for name, value in given.items()
        if isinstance(value, str | int | float) and name not in names and value != usual[name]
    }
    program, arguments = (given[name] for name in names)
    return options, [program, *arguments]


def accelerate_variables(words: Sequence[str], *, is_alone: bool) -> Mapping[str, str]:
    """What accelerate 1.15 sets for every rank (commands/launch.py, utils/launch.py) by these options and program, to
    be called where a GPU is seen. `is_alone`: there is one rank.

    Raises SpecError for options that accelerate refuses, and where it is not installed.
    """
    try:
        launch: Any = importlib.import_module("accelerate.commands.launch")
        environments: Any = importlib.import_module("accelerate.utils.launch")
    except ImportError:
        raise SpecError("accelerate is not installed", remedy="pip install accelerate", place=PLACE) from None
    try:
        arguments = launch.launch_command_parser().parse_args([*words])
        arguments, defaults, precision_from_config = launch._validate_launch_command(arguments)
        if arguments.use_deepspeed:
            fields = list(defaults.deepspeed_config) if defaults else []
            fields += ["mixed_precision"] if precision_from_config else []
            arguments.deepspeed_fields_from_accelerate_config = ",".join(fields)
            variables = environments.prepare_deepspeed_cmd_env(arguments)[1]
        elif arguments.use_fsdp or not is_alone:
            variables = environments.prepare_multi_gpu_env(arguments)
        else:
            variables = environments.prepare_simple_launcher_cmd_env(arguments)[1]
    except (SystemExit, ValueError) as error:
        raise SpecError(
            f"accelerate refuses its options: {error}", allowed="what accelerate launch takes", place=PLACE
        ) from None
    return {name: value for name, value in variables.items() if os.environ.get(name) != value}
