"""The hook of `ray job submit`: RAY_JOB_SUBMIT_HOOK=planner.admission.ray_jobs:check, on the submitter's machine.

Ray calls the hook before it submits, with what the command line said; SystemExit ends the command with nothing
submitted. Ray's SDK and REST interface do not call it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from planner.admission import service_query, specs
from planner.admission.decision import Decision, decide_without_verdict
from planner.admission.policy import Action, Policy
from planner.errors import PlannerError, SpecError

SYSTEM = "ray"
SPEC, BUNDLE, PLAN, RUN = "planner.job", "planner.bundle", "planner.plan_id", "planner"
"""Keys of --metadata-json: a path within the working directory, or the bundle itself; what the hook leaves; and, with
the value `run`, that the entrypoint is run on paper."""
REFUSED = 3


def check(
    *,
    submission_id: str | None = None,
    metadata_json: MutableMapping[str, Any] | None = None,
    working_dir: str | None = None,
    entrypoint_num_gpus: float | None = None,
    entrypoint: Sequence[str] = (),
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
                lambda: specs.of_ray(entrypoint, metadata, working_dir, runtime_env_json, os.environ),
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


def _text(value: Any, key: str) -> str:
    if not isinstance(value, str):
        raise SpecError("it must be a string", allowed="a string, as all of Ray's metadata", place=key)
    return value


def _say(text: str) -> None:
    print(text, file=sys.stderr)
