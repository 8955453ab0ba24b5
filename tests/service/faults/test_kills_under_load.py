"""Thirty-two callers for a minute while each part of the service is killed twice: nobody goes unanswered."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.cluster

Job = dict[str, Any]
NewJob = Callable[..., Job]
CLIENTS, SECONDS, KNOWN = 32, 60.0, 3
MOST_SECONDS = 5 * SECONDS
"""Until each part was back to be killed again, on a machine that has other work."""
PARTS = (
    "haproxy",
    "ray::ServeReplica:planner:Planner",
    "ray::ServeReplica:planner:Tracers",
    "ray::ServeReplica:planner:Validations",
    "ray::TracingWorker",
    "ray::ServeController",
    "ray::ProxyActor",
)
FRONT = PARTS[0]
MOST_WAIT = 30
"""What a caller gives the service for a plan; it says so (Prefer: wait)."""
DEADLINE = MOST_WAIT + 15.0
"""By then every request is answered: twice two cores have more to do than to answer."""
LATER = (429, 502, 503)
"""Come again; Retry-After says when."""


@dataclass
class Asked:
    """One request and what became of it."""

    what: str
    at: float
    seconds: float
    status: int
    retry_after: str = ""
    problem: str = ""


@dataclass
class Load:
    """Callers that go on until they are told to stop, and what they were told."""

    url: str
    known: list[Job]
    new_job: NewJob
    asked: list[Asked] = field(default_factory=list)
    plans: dict[str, Job] = field(default_factory=dict)
    """Jobs by the ids of plans that were said to be stored."""
    bound: list[str] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def call(self, client: int) -> None:
        """As one client: another kind of request each time."""
        turn = client
        with httpx.Client(base_url=self.url, timeout=DEADLINE) as http:
            while not self.ended.is_set():
                turn += 1
                pause = self._one(http, turn, f"{client}-{turn}")
                self.ended.wait(pause)

    def _one(self, http: httpx.Client, turn: int, name: str) -> float:
        known = self.known[turn % KNOWN]
        kinds: tuple[tuple[str, Callable[[], httpx.Response]], ...] = (
            ("a known plan", lambda: http.post("/v1/plans", json=known)),
            ("a check", lambda: http.post("/v1/checks", json=known)),
            ("a job", lambda: http.put(f"/v1/jobs/load/{name}", json={"plan_id": next(iter(self.plans))})),
            ("capacity", lambda: http.get("/v1/capacity")),
            ("a new plan", lambda: self._new(http)),
            ("a known plan", lambda: http.post("/v1/plans", json=known)),
            ("metrics", lambda: http.get("/metrics")),
            ("a new check", lambda: http.post("/v1/checks", json=self.new_job())),
        )
        what, ask = kinds[turn % len(kinds)]
        began = time.monotonic()
        try:
            answer = ask()
        except httpx.TransportError as cut:
            self._note(Asked(what, began, time.monotonic() - began, 0, problem=repr(cut)))
            return 0.2
        again = answer.headers.get("Retry-After", "")
        self._note(Asked(what, began, time.monotonic() - began, answer.status_code, again, answer.text[:300]))
        if what == "a job" and answer.status_code == 200:
            with self._lock:
                self.bound.append(name)
        return float(again) if answer.status_code in LATER and again else 0.02

    def _new(self, http: httpx.Client) -> httpx.Response:
        job = self.new_job()
        answer = http.post("/v1/plans", json=job, headers={"Prefer": f"wait={MOST_WAIT}"})
        if answer.status_code == 200 and answer.headers["X-Planner-Stored"] == "true":
            with self._lock:
                self.plans[answer.json()["plan_id"]] = job
        return answer

    def _note(self, asked: Asked) -> None:
        with self._lock:
            self.asked.append(asked)


@dataclass
class Outcome:
    """What was asked, and when which part was killed."""

    service: Any
    load: Load
    kills: list[tuple[str, float]]


@pytest.fixture(scope="module")
def outcome(planner_serve: Any, new_job: NewJob, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    database = f"sqlite:///{tmp_path_factory.mktemp('load') / 'planner.sqlite'}"
    with planner_serve(database, trace_workers=2) as service:
        load = Load(service.url, [new_job() for _ in range(KNOWN)], new_job)
        for job in load.known:
            load.plans[service.insist(job).json()["plan_id"]] = job
        callers = [threading.Thread(target=load.call, args=(number,)) for number in range(CLIENTS)]
        began = time.monotonic()
        try:
            for caller in callers:
                caller.start()
            kills = _kill_each_twice(service, began)
            load.ended.wait(max(0.0, began + SECONDS - time.monotonic()))
        finally:
            load.ended.set()
            for caller in callers:
                caller.join(2 * DEADLINE)
        _show(load, kills, began)
        yield Outcome(service, load, kills)


def _kill_each_twice(service: Any, began: float) -> list[tuple[str, float]]:
    """In turn, leaving out what is not back yet: that is killed when it is there again."""
    kills: list[tuple[str, float]] = []
    left = [*PARTS, *PARTS]
    pause = SECONDS / (len(left) + 1)
    while left:
        assert time.monotonic() < began + MOST_SECONDS, f"not back: {left}"
        there = next((part for part in left if service.processes.named(part)), None)
        if there is not None:
            left.remove(there)
            kills.append((there, time.monotonic()))
            service.processes.kill(there)
        time.sleep(pause)
    return kills


def _show(load: Load, kills: list[tuple[str, float]], began: float) -> None:
    """For whoever reads why it failed, or how it went."""
    counts = Counter((each.what, each.status) for each in load.asked)
    print("asked:", *sorted(f"{what} {status}: {count}" for (what, status), count in counts.items()), sep="\n  ")
    print("longest:", max(each.seconds for each in load.asked))
    print("killed:", *(f"{part} {at - began:.1f}" for part, at in kills), sep="\n  ")
    for each in load.asked:
        if each.status not in (200, 202, 429):
            print(f"{each.at - began:6.1f} {each.seconds:6.1f} {each.status} {each.what}: {each.problem}")


def test_everybody_is_answered_in_time(outcome: Outcome) -> None:
    unforeseen = [each for each in outcome.load.asked if each.status not in (0, 200, 202, 504, *LATER)]
    late = [each for each in outcome.load.asked if each.seconds > DEADLINE]

    assert len(outcome.load.asked) > 10 * CLIENTS
    assert unforeseen == []
    assert late == []
    assert [each for each in outcome.load.asked if each.status == 504 and each.what != "a new plan"] == []


def test_whoever_is_sent_away_is_told_when_to_come_again(outcome: Outcome) -> None:
    away = [each for each in outcome.load.asked if each.status in LATER]

    assert [each for each in away if not 1 <= int(each.retry_after or 0) <= 60] == []


def test_only_a_front_that_dies_cuts_off_whom_it_was_answering(outcome: Outcome) -> None:
    deaths = [at for part, at in outcome.kills if part == FRONT]
    cut = [each for each in outcome.load.asked if each.status == 0]

    assert [each for each in cut if not any(each.at - 1 <= at <= each.at + each.seconds + 1 for at in deaths)] == []
    assert len(cut) <= len(deaths) * CLIENTS


def test_nothing_that_was_acknowledged_is_lost(outcome: Outcome) -> None:
    service, load = outcome.service, outcome.load
    service.wait_until_ready()

    assert set(load.plans) - service.stored() == set()
    assert len(load.bound) > CLIENTS
    unknown = [name for name in load.bound if service.get(f"/v1/jobs/load/{name}").status_code != 200]
    assert unknown == []


def test_plans_made_meanwhile_are_those_of_the_command_line(outcome: Outcome, tmp_path: Path) -> None:
    made = list(outcome.load.plans.items())
    for plan_id, job in (made[0], made[-1]):
        file = tmp_path / f"{plan_id}.json"
        file.write_text(json.dumps(job), encoding="utf-8")
        command = [sys.executable, "-m", "planner", "plan", str(file), "--format", "json"]
        said = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

        assert said.returncode == 0, said.stderr
        assert without_seconds(outcome.service.get(f"/v1/plans/{plan_id}").text) == without_seconds(said.stdout)


def without_seconds(text: str) -> str:
    """The plan as text, in the order of its parts, but for how long it took to make."""
    plan = json.loads(text)
    del plan["seconds"]
    return json.dumps(plan)
