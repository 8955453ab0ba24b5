"""The hook of Slurm: commands for the Lua scripts of deploy/slurm."""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence, Set
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from planner.admission import service_query, specs
from planner.admission.client import Client, UnreachableError
from planner.admission.decision import Decision, decide
from planner.admission.policy import Action, Policy, policy_file, section
from planner.errors import PlannerError
from planner.report.statement import from_json

SYSTEM = "slurm"
PLAN_ID = re.compile(r"pl-[a-z2-7]{26}")
_UNFINISHED = re.compile(rf"\.{PLAN_ID.pattern}\.[0-9]+")
"""A verdict's file, and what it is while it is written."""
FILE_SECONDS = 3.0
"""How long a submission waits until the controller can know its verdict."""
SWEEP_SECONDS = 600.0
"""How often files of plans that the service has forgotten are looked for; it forgets as often itself."""
_PAGE, _NEWEST = 1000, 100
"""Plans of one question: all of them, and those since the last one."""
_NOT_SET_UP = 2
ASKING = (
    "gres", "gpus", "gpus-per-node", "gpus-per-task", "nodes", "ntasks", "ntasks-per-node", "constraint",
)  # fmt: skip
"""Options of sbatch that say which GPUs a job asks for, and how many."""


def main(arguments: Sequence[str] | None = None) -> int:
    """One of the three commands; 2 with a line on stderr if it is not set up to work."""
    parser = argparse.ArgumentParser(prog="python -P -m planner.admission.slurm", description=__doc__)
    parser.add_argument("--policy", type=Path, metavar="FILE.ini")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    submit = commands.add_parser("submit", help="decide on a job; prints action, verdict, plan id, then the text")
    submit.add_argument("spec", metavar="SPEC", help="within the submission folder; or run=SCRIPT, a batch script")
    submit.add_argument("--folder", type=Path, default=Path(), help="where the job is submitted (default: here)")
    for option in ASKING:
        submit.add_argument(f"--{option}", default="", help="as of sbatch")
    submit.set_defaults(run=_submit)
    bind = commands.add_parser("bind", help="tell the service which plan a job was admitted with")
    bind.add_argument("job_id")
    bind.add_argument("plan_id")
    bind.set_defaults(run=_bind)
    verdicts = commands.add_parser("verdicts", help="keep a folder of verdicts for job_submit.lua")
    verdicts.add_argument("folder", type=Path)
    verdicts.add_argument("--every", type=float, default=1.0, metavar="SECONDS")
    verdicts.add_argument("--once", action="store_true")
    verdicts.set_defaults(run=_verdicts)
    given = parser.parse_args(arguments)
    try:
        file = given.policy or policy_file(os.environ)
        policy = Policy.read(os.environ, file)
        return int(given.run(given, policy, section(file, SYSTEM) if file else {}))
    except PlannerError as error:
        print(error.one_line, file=sys.stderr)
        return _NOT_SET_UP


def _submit(given: argparse.Namespace, policy: Policy, site: Mapping[str, str]) -> int:
    kind, is_run, script = given.spec.partition("=")
    notes: list[str] = []
    if is_run and kind == specs.RUN:
        decision = service_query.ask_run(lambda: specs.of_slurm(script, given.folder, os.environ, site), policy, SYSTEM)
    else:
        decision = service_query.ask(lambda: _bundle_on(given, site, notes), policy, SYSTEM)
    folder, plan_id = site.get("verdicts", ""), decision.plan_id
    made = decision.verdict in ("fits", "tight", "exceeds") and not decision.by_bound
    if folder and decision.admits and made and PLAN_ID.fullmatch(plan_id) and Path(folder).is_dir():
        until = time.monotonic() + FILE_SECONDS
        while not Path(folder, plan_id).exists() and time.monotonic() < until:
            time.sleep(0.1)
    # Of a job that is only warned of by its lower bound no verdict lies ready at the controller yet.
    verdict = "pending" if decision.by_bound else decision.verdict
    warnings = (f"planner: warning: {note}" for note in notes)
    print("\n".join((decision.action.value, verdict, plan_id, decision.text, *warnings)))
    return 0


def _bundle_on(given: argparse.Namespace, site: Mapping[str, str], notes: list[str]) -> Mapping[str, Any]:
    """The bundle of a spec, on the MIG slices that the job asks for; `notes` gets where the two differ. Raises
    SpecError."""
    from planner.admission.gpu_requests import count_gpus, other_gpus, plan_part
    from planner.admission.slurm_requests import read_options
    from planner.job.loading import bundle, load_bundle

    written = specs.bundle_within(given.spec, [given.folder])
    asked = read_options({name: getattr(given, name.replace("-", "_")) for name in ASKING})
    slices = [request for request in asked.requests if request.profile]
    job, said = plan_part(load_bundle(written), slices)
    planned = job.cluster.ranks
    if asked.gpus and asked.gpus != planned:
        notes.append(f"the job asks for {count_gpus(asked.gpus)}, and the spec plans {count_gpus(planned)}")
    products = asked.products or tuple(filter(None, [site.get("gpu", "")]))
    notes.extend([*other_gpus(products, job, "the job goes to"), *said])
    return bundle(job) if slices else written


def _bind(given: argparse.Namespace, policy: Policy, _: Mapping[str, str]) -> int:
    decision = Decision(action=Action.ADMIT, reason="", plan_id=given.plan_id, verdict="fits")
    problem = service_query.bind(policy, SYSTEM, given.job_id, decision)
    if problem:
        print(problem, file=sys.stderr)
    return 1 if problem else 0


def _verdicts(given: argparse.Namespace, policy: Policy, _: Mapping[str, str]) -> int:
    keeper = Verdicts(given.folder, service_query.client_of(policy, SYSTEM), policy)
    last_problem = ""
    while True:
        problem = ""
        try:
            keeper.update()
        except PlannerError as error:
            problem = error.one_line
        except OSError as error:
            problem = f"{given.folder}: {error.strerror}"
        if problem != last_problem:  # a service that is away for an hour is one line
            print(problem or "the service answers again", file=sys.stderr, flush=True)
            last_problem = problem
        if given.once:
            return 1 if problem else 0
        time.sleep(max(given.every, 0.1))


class Verdicts:
    """A file for each plan of the service, called by its id: action, verdict, and the text for the job's owner.

    A plan never changes, so its file is written once by each run: a new policy is a new run. It is deleted when the
    service has forgotten its plan: what the service retains is what the folder holds.
    """

    def __init__(
        self, folder: Path, client: Client, policy: Policy, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder, self._client, self._policy, self._now = folder, client, policy, now
        self._written: set[str] = set()
        self._next_sweep = 0.0

    def update(self) -> None:
        """Writes what is new, and now and then deletes what is old. Raises PlannerError and OSError; what was done
        stays."""
        self._folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        sweeps = self._now() >= self._next_sweep
        seen: set[str] = set()
        before, most = "", _PAGE if sweeps else _NEWEST
        while True:
            # A plan may become visible after one that was stored later: the first page is looked through in full.
            page = self._client.newest(most, before)
            listed = {str(summary.get("plan_id")): str(summary.get("verdict")) for summary in page}
            others = [plan_id for plan_id in listed if plan_id not in seen]
            fresh = [plan_id for plan_id in others if plan_id not in self._written]
            for plan_id in fresh:
                self._write(plan_id, listed[plan_id])
            seen |= listed.keys()
            if len(page) < most or not others or (len(fresh) < len(others) and not sweeps):
                break
            # Several may have been stored at the last one's moment.
            moment = datetime.fromisoformat(str(page[-1]["stored_at"])) + timedelta(microseconds=1)
            before, most = moment.isoformat(), _PAGE
        if sweeps:
            self._delete_all_but(seen)
            self._next_sweep = self._now() + SWEEP_SECONDS

    def _delete_all_but(self, plan_ids: Set[str]) -> None:
        """Also what a run that was killed left unfinished."""
        self._written &= plan_ids
        for path in self._folder.iterdir():
            is_old = PLAN_ID.fullmatch(path.name) and path.name not in plan_ids
            if is_old or _UNFINISHED.fullmatch(path.name):
                path.unlink(missing_ok=True)

    def _write(self, plan_id: str, verdict: str) -> None:
        if not PLAN_ID.fullmatch(plan_id):  # it becomes a file's name
            return
        lines = ["admit", "fits"]
        if verdict != "fits":
            try:
                decision = decide(from_json(self._client.plan_of(plan_id)), self._policy)
            except UnreachableError:
                raise
            except PlannerError:  # forgotten in this moment, or of another version: the others do not wait for it
                return
            lines = [decision.action.value, decision.verdict, decision.text]
        unfinished = self._folder / f".{plan_id}.{os.getpid()}"
        unfinished.write_text("\n".join(lines) + "\n", encoding="utf-8")
        unfinished.chmod(0o644)
        unfinished.replace(self._folder / plan_id)
        self._written.add(plan_id)


if __name__ == "__main__":
    sys.exit(main())
