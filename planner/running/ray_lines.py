"""Reads `ray job submit`: the entrypoint, and of the runtime environment the variables and the working folder.

Options are those of Ray 2.60 (dashboard/modules/job/cli.py). The entrypoint is one process on one node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.errors import SpecError
from planner.importers.launch_options import read_options, refused
from planner.job.json_text import read_json
from planner.job.yaml_text import read_yaml

_WITH_VALUE = frozenset({
    "address", "job_id", "submission_id", "runtime_env", "runtime_env_json", "working_dir", "metadata_json",
    "entrypoint_num_cpus", "entrypoint_num_gpus", "entrypoint_memory", "entrypoint_resources",
    "entrypoint_label_selector", "log_style", "log_color", "headers", "verify",
})  # fmt: skip
_ALONE = frozenset({"no_wait", "verbose", "v"})


@dataclass(frozen=True, slots=True)
class Submission:
    """What Ray is asked to run."""

    entrypoint: tuple[str, ...]
    environment: Mapping[str, str]
    folder: str
    """Of this machine; empty where the working folder is a package somewhere else, or not named."""


def read_submit(words: Sequence[str], text_of: Callable[[str], str]) -> Submission:
    """The parts of the words behind `ray job submit`. Raises SpecError."""
    options, entrypoint = read_options(words, _WITH_VALUE, _ALONE, "ray job submit of Ray 2.60")
    if not entrypoint:
        raise refused("ray job submit has no entrypoint", "ray job submit [options] -- COMMAND")
    runtime: Mapping[str, Any] = {}
    if path := options.get("runtime_env"):
        runtime = _mapping(read_yaml(text_of(path), path).plain(), path)
    if text := options.get("runtime_env_json"):
        runtime = _mapping(read_json(text, "--runtime-env-json"), "--runtime-env-json")
    return submission_of(entrypoint, runtime, options.get("working_dir") or "")


def submission_of(entrypoint: Sequence[str], runtime: Mapping[str, Any], folder: str = "") -> Submission:
    """An entrypoint with its runtime environment, as Ray's command line and its REST interface have it."""
    variables = runtime.get("env_vars") or {}
    if not isinstance(variables, Mapping) or not all(isinstance(each, str) for each in variables.values()):
        raise SpecError("env_vars are no texts", allowed="a mapping of names to texts", place="runtime_env.env_vars")
    folder = folder or str(runtime.get("working_dir") or "")
    return Submission(tuple(entrypoint), dict(variables), "" if "://" in folder else folder)


def _mapping(found: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(found, Mapping):
        said = f"is a {type(found).__name__}, and no mapping"
        raise SpecError(said, allowed="a runtime environment of Ray", place=place)
    return found
