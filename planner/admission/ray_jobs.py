"""The hook of `ray job submit`: RAY_JOB_SUBMIT_HOOK=planner.admission.ray_jobs:check, on the submitter's machine.

Ray calls the hook before it submits, with what the command line said; SystemExit ends the command with nothing
submitted. Ray's SDK and REST interface do not call it.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import tarfile
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from planner.admission import service_query, specs
from planner.admission.decision import Decision, decide_without_verdict
from planner.admission.policy import Action, Policy
from planner.errors import PlannerError, SpecError
from planner.job.masking import mask_variable

SYSTEM = "ray"
SPEC, BUNDLE, PLAN, RUN = "planner.job", "planner.bundle", "planner.plan_id", "planner"
"""Keys of --metadata-json: a path within the working directory, or the bundle itself; what the hook leaves; and, with
the value `run`, that the entrypoint is run on paper."""
REFUSED = 3
MOST_FILES_BYTES = 8 * 2**20
"""Of a packed folder: what the service takes."""
_MOST_FILES = 10_000


def check(
    *,
    submission_id: str | None = None,
    metadata_json: MutableMapping[str, Any] | None = None,
    working_dir: str | None = None,
    entrypoint_num_gpus: float | None = None,
    entrypoint: Sequence[str] = (),
    runtime_env: str | None = None,
    runtime_env_json: str | None = None,
    **_: Any,
) -> None:
    """Returns if the job may be submitted, else raises SystemExit with what its owner needs to know.

    `metadata_json` is what Ray submits afterwards: the bundle is taken out of it, the plan's id left in its place.
    """
    metadata = {} if metadata_json is None else metadata_json
    try:
        policy = Policy.read(os.environ)
        if metadata.get(RUN) == specs.RUN:
            decision: Decision | None = service_query.ask_run(
                lambda: _program(entrypoint, metadata, _runtime_env(runtime_env, runtime_env_json, working_dir)),
                policy,
                SYSTEM,
            )
        else:
            decision = _decide(metadata, working_dir, bool(entrypoint_num_gpus), policy)
    except PlannerError as error:  # how the site set it up: nobody's job stands still for that
        _say(f"planner: warning: the job is not checked: {error.one_line}")
        return
    if decision is None:
        return
    _say(decision.text)
    if not decision.admits:
        _say("planner: nothing was submitted")
        raise SystemExit(REFUSED)
    metadata.pop(BUNDLE, None)
    if decision.plan_id:
        metadata[PLAN] = decision.plan_id
    if submission_id and (problem := service_query.bind(policy, SYSTEM, submission_id, decision)):
        _say(f"planner: warning: {problem}")


def _decide(
    metadata: Mapping[str, Any], working_dir: str | None, asks_for_gpus: bool, policy: Policy
) -> Decision | None:
    bundle, path = metadata.get(BUNDLE), metadata.get(SPEC)
    if bundle is not None:
        return service_query.ask(lambda: specs.bundle_of_text(_text(bundle, BUNDLE)), policy, SYSTEM)
    if path is not None:
        # A spec may lie in what is uploaded for the job, else where the command was given.
        uploads = working_dir and "://" not in working_dir and Path(working_dir).is_dir()
        folder = Path(working_dir) if working_dir and uploads else Path.cwd()
        return service_query.ask(lambda: specs.bundle_within(_text(path, SPEC), [folder]), policy, SYSTEM)
    if policy.unplanned is Action.ADMIT or not asks_for_gpus:
        return None
    reason = f'the job asks for GPUs and carries no spec: --metadata-json \'{{"{SPEC}": "job.yaml"}}\''
    return decide_without_verdict("unplanned", policy.unplanned, reason)


def _runtime_env(path: str | None, text: str | None, working_dir: str | None) -> Mapping[str, Any]:
    """What Ray makes of the options of these names. Raises SpecError."""
    try:
        from ray.dashboard.modules.dashboard_sdk import parse_runtime_env_args

        found = parse_runtime_env_args(path, text, working_dir)
    except Exception as error:  # of a file, YAML or JSON: Ray raises what its readers do
        raise SpecError(f"Ray cannot read it: {error}", place="--runtime-env") from None
    if not isinstance(found, dict):
        raise SpecError("must be a mapping", allowed="Ray's runtime environment", place="--runtime-env")
    return found


def _program(
    entrypoint: Sequence[str], metadata: Mapping[str, Any], runtime_env: Mapping[str, Any]
) -> specs.ProgramAsk:
    """An entrypoint with its working directory, packed as Ray itself uploads it. Raises SpecError."""
    if not entrypoint:
        raise SpecError("the job has no entrypoint", allowed="ray job submit ... -- COMMAND")
    working_dir, excludes = runtime_env.get("working_dir"), runtime_env.get("excludes") or []
    if not isinstance(working_dir, str) or not Path(working_dir).is_dir():
        # Nothing is sent that Ray would not upload.
        raise SpecError("the job uploads no folder of its own", allowed="--working-dir FOLDER", place="working_dir")
    if not isinstance(excludes, list) or not all(isinstance(each, str) for each in excludes):
        raise SpecError("must be a list of strings", allowed="Ray's patterns", place="excludes")
    variables = runtime_env.get("env_vars")
    words: list[str] = []
    if isinstance(variables, dict) and variables:
        words = ["env", *(f"{name}={mask_variable(str(name), str(value))}" for name, value in variables.items())]
    gpu = metadata.get("planner.gpu") or os.environ.get(specs.USUAL_GPU, "")
    return specs.ProgramAsk(
        command=(*words, *entrypoint), gpu=str(gpu), tarball=pack_folder(Path(working_dir).absolute(), excludes)
    )


def pack_folder(folder: Path, excludes: Sequence[str]) -> bytes:
    """A gzipped tarball of what Ray uploads of the folder (ray 2.60, _private/runtime_env/packaging.py), by Ray's own
    rules: its default excludes, those of the job, .gitignore and .rayignore; and without links. Raises SpecError."""
    content, count = io.BytesIO(), 0

    def add(path: Path) -> None:
        nonlocal count
        is_empty = path.is_dir() and next(path.iterdir(), None) is None
        linked = any(each.is_symlink() for each in (path, *path.parents) if each.is_relative_to(folder))
        if path == folder or linked or not (path.is_file() or is_empty):
            return
        count += 1
        tar.add(path, str(path.relative_to(folder)), recursive=False)
        if count > _MOST_FILES or content.tell() > MOST_FILES_BYTES:
            raise SpecError(
                f"the working directory is too large to be sent: {str(folder)[:200]}",
                allowed=f"{_MOST_FILES:,} files, 8 MiB packed",
                remedy="name data and weights in .rayignore, or plan the job by a spec",
                place="working_dir",
            )

    quiet = logging.Logger("planner.admission.ray_jobs", logging.CRITICAL)
    try:
        from ray._private import ray_constants
        from ray._private.runtime_env import packaging

        skips = packaging._get_excludes(folder, [*ray_constants.get_runtime_env_default_excludes(), *excludes])
        reads_gitignore = os.environ.get(ray_constants.RAY_RUNTIME_ENV_IGNORE_GITIGNORE, "0") != "1"
        with tarfile.open(fileobj=content, mode="w:gz") as tar:
            packaging._dir_travel(folder, [skips], add, include_gitignore=reads_gitignore, logger=quiet)
    except SpecError:
        raise
    except Exception as error:  # another Ray, a pattern that is none, a file that cannot be read: nothing is sent
        raise SpecError(
            f"Ray's own rules could not be followed: {type(error).__name__}: {error}",
            allowed="Ray as tested: 2.60",
            remedy="plan the job by a spec",
            place="working_dir",
        ) from None
    if len(content.getvalue()) > MOST_FILES_BYTES or not count:
        raise SpecError(
            "the working directory is empty, or too large to be sent", allowed="8 MiB packed", place="working_dir"
        )
    return content.getvalue()


def _text(value: Any, key: str) -> str:
    if not isinstance(value, str):
        raise SpecError("it must be a string", allowed="a string, as all of Ray's metadata", place=key)
    return value


def _say(text: str) -> None:
    print(text, file=sys.stderr)
