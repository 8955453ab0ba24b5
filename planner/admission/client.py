"""HTTP client of the planner service: standard library only, every wait and every answer bounded."""

from __future__ import annotations

import json
import re
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.message import Message
from typing import IO, Any

from planner.admission.specs import ProgramAsk
from planner.errors import PlannerError, SettingError

MOST_BYTES = 64 * 2**20
"""The largest answer that is read: plans of many rank classes take some megabytes."""
_LONGEST_WAIT = 20.0
"""Seconds that one request waits for a plan: proxies end what is silent for half a minute."""
_PAUSE = 0.5
_BUSY = (429, 503)
_JOBS_FAULT = (400, 403, 413, 415, 422)


class UnreachableError(PlannerError):
    """The service does not answer, or not as a planner does; says nothing about the job."""


class _LateError(UnreachableError):
    """The service hangs, or is far too slow: another question would cost as much again."""


class UnplannableError(PlannerError):
    """The service answered that this job cannot be planned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFound:
    """A plan (`planner.plan/2`), that of a spec with the metadata of the job that was asked about."""

    plan: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPending:
    """The plan is still being made, and will be found under this id."""

    plan_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExceedsByBound:
    """The plan is still being made, and the job exceeds whatever it will say: it takes `least_bytes` at least."""

    plan_id: str
    least_bytes: int
    capacity_bytes: int


@dataclass(frozen=True, slots=True)
class _Reply:
    status: int
    document: Mapping[str, Any]
    retry_seconds: float


class Client:
    """Asks one service. Not for several threads."""

    def __init__(
        self,
        server: str,
        token: str = "",
        *,
        system: str = "",
        timeout_seconds: float = 3.0,
        now: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """`system` is told to the service, which counts checks by it. Raises ValueError for a server without http."""
        if urllib.parse.urlsplit(server).scheme not in ("http", "https"):
            raise ValueError("the planner service is named by an http:// or https:// address")
        self._server, self._token, self._system = server.rstrip("/"), token, system
        self._timeout, self._now, self._pause = timeout_seconds, now, pause
        self._opener = urllib.request.build_opener(_NoRedirects)

    def plan(self, bundle: Mapping[str, Any], wait_seconds: float) -> PlanFound | PlanPending | ExceedsByBound:
        """The plan of a bundle, remembered by the service as a check; Pending if it is not made after `wait_seconds`.

        Hopeless, at once, for a job without a plan whose parameters, gradients and optimizer state alone are too much.

        Raises UnreachableError and UnplannableError.
        """
        until = self._now() + wait_seconds
        headers = {"X-Planner-Check": uuid.uuid4().hex, "X-Planner-System": self._system}
        reply = self._ask_patiently("/v1/checks", bundle, headers, until)
        plan_id = _text(reply.document, "plan_id")
        if reply.status != 200:
            return PlanPending(plan_id=plan_id)
        if reply.document.get("basis") != "lower_bound":
            return self._fetch_plan(plan_id, bundle, until)
        least, capacity = reply.document.get("device_bytes"), reply.document.get("capacity_bytes")
        if not isinstance(least, int) or not isinstance(capacity, int):
            raise self._unreachable("answers a lower bound without its bytes")
        return ExceedsByBound(plan_id=plan_id, least_bytes=least, capacity_bytes=capacity)

    def run(self, asked: ProgramAsk, wait_seconds: float) -> PlanFound | PlanPending:
        """The plan of a program; Pending if it is not done after `wait_seconds`: it goes on.

        Raises UnreachableError, and UnplannableError for a program that cannot be run, or not by this service.
        """
        body, headers = asked.request()
        until = self._now() + wait_seconds
        reply = self._ask_patiently("/v1/plans", body, {"Prefer": "respond-async, ", **headers}, until)
        if reply.status == 200:
            return PlanFound(plan=reply.document)
        return PlanPending(plan_id=_text(reply.document, "plan_id"))

    def bind(self, system: str, job_id: str, facts: Mapping[str, Any]) -> None:
        """Tells the service of a job (`PUT /v1/jobs`), such as the plan it was admitted with."""
        self._ask("PUT", _path_of_job(system, job_id), facts)

    def plan_id_of_job(self, system: str, job_id: str) -> str:
        """The plan that a job is bound to; empty for a job that the service does not know. Raises UnreachableError."""
        try:
            return _text(self._ask("GET", _path_of_job(system, job_id)).document, "plan_id")
        except UnplannableError:
            return ""

    def plan_of(self, plan_id: str) -> Mapping[str, Any]:
        """A plan that was made before. Raises UnplannableError if the service does not have it."""
        return self._ask("GET", f"/v1/plans/{urllib.parse.quote(plan_id, safe='')}").document

    def newest(self, limit: int = 1000, before: str = "") -> list[Mapping[str, Any]]:
        """Summaries of plans, the newest first; `before` goes on from the `stored_at` of the last one."""
        query = urllib.parse.urlencode({"limit": limit, **({"before": before} if before else {})})
        plans = self._ask("GET", f"/v1/plans?{query}").document.get("plans")
        if not isinstance(plans, list) or not all(isinstance(plan, dict) for plan in plans):
            raise self._unreachable("answers a list of plans without plans")
        return plans

    def capacity(self, question: Sequence[tuple[str, str]] = ()) -> Mapping[str, Any]:
        """What `GET /v1/capacity` answers to its parameters. Raises UnplannableError for those it does not know."""
        answer = self._ask("GET", f"/v1/capacity?{urllib.parse.urlencode(question)}").document
        if not str(answer.get("schema", "")).startswith("planner.capacity/"):
            raise self._unreachable("answers something else than its capacity")
        return answer

    def _fetch_plan(self, plan_id: str, bundle: Mapping[str, Any], until: float) -> PlanFound:
        """The whole plan of a verdict. It is in the store, unless that fails: then it is asked for with the job."""
        later = max(until, self._now() + self._timeout)
        try:
            plan = self.plan_of(plan_id)
        except _LateError:
            raise
        except (UnplannableError, UnreachableError):
            reply = self._ask("POST", "/v1/plans", bundle, {"Prefer": "wait=1"}, until=later, wait=1.0)
            plan = reply.document
        job = plan.get("job")
        if not isinstance(job, dict):
            raise self._unreachable("answers a plan without its job")
        # Equal jobs share a plan, under the name of the first.
        return PlanFound(plan={**plan, "job": {**job, "metadata": bundle.get("metadata") or {}}})

    def _ask_patiently(
        self, path: str, body: Mapping[str, Any] | bytes, headers: Mapping[str, str], until: float
    ) -> _Reply:
        """What the service answers when it is done; or, when the time is over, that it is not."""
        while True:
            wait = int(min(max(until - self._now(), 0.0), _LONGEST_WAIT))
            prefer = {"Prefer": f"{headers.get('Prefer', '')}wait={wait}"}
            reply = self._ask("POST", path, body, {**headers, **prefer}, until=until, wait=wait)
            if reply.status == 200 or self._now() + _PAUSE >= until:
                return reply
            self._pause(_PAUSE)

    def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        until: float | None = None,
        wait: float = 0.0,
    ) -> _Reply:
        """One answer; a service that is busy is asked again as long as there is time. It may take `wait` seconds more
        than any answer."""
        until = self._now() + self._timeout if until is None else until
        while True:
            reply = self._once(method, path, body, headers or {}, max(wait + self._timeout, 0.1))
            if reply.status < 300:
                return reply
            if reply.status in _BUSY and self._now() + reply.retry_seconds < until:
                self._pause(reply.retry_seconds)
                continue
            raise self._fault(reply)

    def _once(
        self, method: str, path: str, body: Mapping[str, Any] | bytes | None, headers: Mapping[str, str], seconds: float
    ) -> _Reply:
        """The answer within so many seconds. More than any answer may take it gets only while the service answers
        others: one that waits for a plan is known by that from one that hangs."""
        request = urllib.request.Request(
            self._server + path,
            data=body if body is None or isinstance(body, bytes) else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "Accept": "application/json", **headers},
            method=method,
        )
        if self._token:
            request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        reply = self._begin(request, seconds)
        usual = min(seconds, self._timeout)
        silent, left = usual / 2, seconds - usual / 2
        with suppress(TimeoutError):
            return reply.result(silent)
        if seconds > usual and not self._answers_others(silent):
            seconds, left = usual, 0.0
        try:
            return reply.result(left)
        except TimeoutError:
            raise self._late(seconds) from None

    def _begin(self, request: urllib.request.Request, seconds: float) -> Future[_Reply]:
        """In a thread of its own: the socket's limit is neither for names that nobody resolves nor for a trickle."""
        reply: Future[_Reply] = Future()

        def send() -> None:
            try:
                reply.set_result(self._send(request, seconds))
            except UnreachableError as error:
                reply.set_exception(error)

        threading.Thread(target=send, daemon=True).start()
        return reply

    def _answers_others(self, seconds: float) -> bool:
        try:
            self._begin(urllib.request.Request(f"{self._server}/livez"), seconds).result(seconds)
        except (TimeoutError, _LateError):
            return False
        except UnreachableError:  # its answer is a plain word
            pass
        return True

    def _send(self, request: urllib.request.Request, seconds: float) -> _Reply:
        try:
            try:
                with self._opener.open(request, timeout=seconds) as answer:
                    return self._read(answer.status, answer.headers, answer)
            except urllib.error.HTTPError as error:
                with error:
                    return self._read(error.code, error.headers, error)
        except UnreachableError:
            raise
        except Exception as error:  # also what http.client makes of an answer that is none
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            if isinstance(reason, TimeoutError):
                raise self._late(seconds) from None
            raise self._unreachable(f"cannot be reached: {_short(reason) or type(reason).__name__}") from None

    def _read(self, status: int, headers: Message, answer: IO[bytes]) -> _Reply:
        content = answer.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise self._unreachable("answers more than a plan")
        retry = str(headers.get("Retry-After", ""))
        retry_seconds = max(float(retry), 0.1) if re.fullmatch("[0-9]{1,9}", retry) else 1.0
        try:
            document = json.loads(content)
        except ValueError:
            document = None
        if not isinstance(document, dict):
            if status in _BUSY:
                return _Reply(status, {}, retry_seconds)
            # A proxy in front of a service that is not there speaks HTML or plain text.
            raise self._unreachable(f"answers {status}, and not as a planner does")
        return _Reply(status, document, retry_seconds)

    def _late(self, seconds: float) -> _LateError:
        return _LateError(self._unreachable(f"does not answer within {seconds:g} s").problem)

    def _fault(self, reply: _Reply) -> PlannerError:
        document = reply.document
        problem = _short(document.get("problem") or document.get("title") or "")
        if reply.status == 401:
            return self._unreachable("does not know our token")
        if reply.status in (*_JOBS_FAULT, 404, 409) and str(document.get("type", "")).startswith("urn:planner:"):
            parts = {name: _short(document.get(name) or "") for name in ("allowed", "remedy", "place")}
            return UnplannableError(problem, **parts)
        return self._unreachable(f"answers {reply.status}: {problem}" if problem else f"answers {reply.status}")

    def _unreachable(self, what: str) -> UnreachableError:
        return UnreachableError(f"the planner service at {self._server} {what}")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Whoever answers there does not decide where else a job, or a token, is sent."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _path_of_job(system: str, job_id: str) -> str:
    return "/v1/jobs/" + "/".join(urllib.parse.quote(part, safe="") for part in (system, job_id))


def _text(document: Mapping[str, Any], name: str) -> str:
    value = document.get(name)
    return value if isinstance(value, str) else ""


def _short(value: object) -> str:
    text = "".join(letter if letter.isprintable() else " " for letter in str(value))
    return text if len(text) <= 400 else text[:400] + "..."


MOST_SECONDS = 600.0
_UNITS = {"h": "hours", "d": "days", "w": "weeks"}
_ALLOWED = "30d, 12h, 4w, or a moment such as 2026-01-31T12:00:00Z"


def ask(
    server: str,
    *,
    token: str = "",
    since: str = "",
    on: Sequence[str] = (),
    seconds: float = 10.0,
) -> Mapping[str, Any]:
    """What `GET /v1/capacity` answers within so many seconds.

    Raises SettingError without a server, PlannerError for a question that makes no sense, UnreachableError.
    """
    if not server:
        raise SettingError("no planner service is named", remedy="--server URL, or PLANNER_SERVER", place="--server")
    if not 0 < seconds <= MOST_SECONDS:
        raise PlannerError("this is not a time to wait", allowed=f"up to {MOST_SECONDS:g} seconds", place="--timeout")
    question = [("on", gpu) for gpu in on]
    if since:
        question.append(("since", moment(since, datetime.now(UTC)).isoformat()))
    try:
        client = Client(server, token, timeout_seconds=seconds)
    except ValueError as error:
        raise PlannerError(str(error), place="--server") from None
    return client.capacity(question)


def moment(written: str, now: datetime) -> datetime:
    """`30d` before now, or the moment itself; PlannerError for anything else, also one without a time zone."""
    ago = re.fullmatch(r"([0-9]{1,4})([hdw])", written)
    if ago is not None:
        return now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
    try:
        stated = datetime.fromisoformat(written)
    except ValueError:
        raise PlannerError(f"`{written[:40]}` is not a time", allowed=_ALLOWED, place="--since") from None
    if stated.tzinfo is None:
        raise PlannerError("the moment has no time zone", allowed=_ALLOWED, place="--since")
    return stated
