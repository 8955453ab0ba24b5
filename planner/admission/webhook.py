"""The hook of the Kubernetes API: a validating webhook over TLS that reads and answers AdmissionReview v1."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import json
import logging
import os
import re
import ssl
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from planner.admission import kubernetes, service_query, specs
from planner.admission.decision import Decision, decide_without_verdict
from planner.admission.kubernetes_api import Api, ApiError
from planner.admission.policy import Action, Policy
from planner.errors import PlannerError, SettingError, SpecError

SCHEMA = "admission.k8s.io/v1"
LONGEST_WARNING = 256
"""Characters: what is longer may be cut (types.go, AdmissionResponse.Warnings)."""
MOST_WARNINGS = 12
"""With their lengths below the 4,096 characters that a client is shown."""
_LONGEST_MESSAGE = 4096
_DURATION = re.compile(r"([0-9]{1,3})s")
USUAL_SECONDS, MOST_SECONDS = 10.0, 30.0
"""timeoutSeconds of a webhook: its default and its largest value."""


class ReviewError(PlannerError):
    """What arrived is not an AdmissionReview, or cannot be taken: answered with this `status`."""

    def __init__(self, problem: str, allowed: str, *, place: str = "", status: int = 400) -> None:
        super().__init__(problem, allowed=allowed, place=place)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """The request within a review. `job` is the object as it would be stored; empty where there is none."""

    uid: str
    operation: str
    namespace: str
    kind: str
    dry_run: bool
    job: Mapping[str, Any]


def read(body: bytes) -> Review:
    """The review in a request's body. Raises ReviewError."""
    try:
        review = json.loads(body)
    except (ValueError, RecursionError):
        raise ReviewError("the body is not JSON", f"an AdmissionReview of {SCHEMA}") from None
    if not isinstance(review, dict) or review.get("kind") != "AdmissionReview" or review.get("apiVersion") != SCHEMA:
        raise ReviewError("the body is not an AdmissionReview", f"an AdmissionReview of {SCHEMA}")
    request = review.get("request")
    if not isinstance(request, dict):
        raise ReviewError("the review has no request", "an object", place="request")
    uid, kind, job = request.get("uid"), request.get("kind"), request.get("object")
    if not isinstance(uid, str) or not uid or len(uid) > 256:
        raise ReviewError("the request has no uid", "a text of 1 to 256 characters", place="request.uid")
    texts = {
        "operation": _text(request, "operation"),
        "namespace": _text(request, "namespace"),
        "kind": _text(kind, "kind", "request.kind.") if isinstance(kind, dict) else "",
    }
    if job is not None and not isinstance(job, dict):
        raise ReviewError("the object is none", "the object that is submitted", place="request.object")
    return Review(uid=uid, **texts, dry_run=request.get("dryRun") is True, job={} if job is None else job)


def _text(given: Mapping[str, Any], name: str, place: str = "request.") -> str:
    value = given.get(name)
    if value is None or isinstance(value, str):
        return value or ""
    raise ReviewError(f"the {name} must be a string", "a string", place=place + name)


def seconds_left(timeout: str) -> float:
    """How long the API server waits, by the `timeout` that it adds to the address; the usual time if it says none.

    validating/dispatcher.go rounds it up to whole seconds: what is answered has to be there well before.
    """
    duration = _DURATION.fullmatch(timeout)
    seconds = min(max(float(duration[1]), 1.0), MOST_SECONDS) if duration else USUAL_SECONDS
    return seconds - max(1.0, seconds / 10) if seconds > 2 else seconds / 2


def answer(uid: str, decision: Decision | None, notes: Sequence[str] = ()) -> dict[str, Any]:
    """The review that goes back; without a decision the object goes its way without a word."""
    response: dict[str, Any] = {"uid": uid, "allowed": decision is None or decision.admits}
    if decision is not None:
        if warnings := _warnings(decision, notes):
            response["warnings"] = warnings
        if not decision.admits:
            message = decision.text[:_LONGEST_MESSAGE]
            response["status"] = {"code": 403, "reason": "Forbidden", "message": message}
        # The API server puts the webhook's name in front of the keys.
        noted = {"action": decision.action.value, "verdict": decision.verdict, "plan-id": decision.plan_id}
        response["auditAnnotations"] = {key: value for key, value in noted.items() if value}
    return {"apiVersion": SCHEMA, "kind": "AdmissionReview", "response": response}


def _warnings(decision: Decision, notes: Sequence[str]) -> list[str]:
    """A refusal says its own text; clients put their own "Warning:" in front of each of these."""
    lines = []
    if decision.action is Action.WARN:
        lines.append(f"planner: {decision.reason}")
        lines += filter(None, [decision.way_out])
    lines += [f"planner: {note}" for note in notes]
    if lines and decision.plan_id:
        lines.append(f"planner: the plan is {decision.plan_id}")
    warnings: list[str] = []
    for line in lines[:MOST_WARNINGS]:
        # Wrapping one long word takes time that grows faster than it.
        printable = "".join(
            letter if letter.isprintable() else "?" for letter in line[: LONGEST_WARNING * MOST_WARNINGS]
        )
        warnings += textwrap.wrap(printable, LONGEST_WARNING, break_on_hyphens=False)
    return warnings[:MOST_WARNINGS]


class Certificate:
    """A certificate and its key. `context` is for the listening socket: each handshake looks at the files."""

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None = None) -> None:
        """`client_ca`: who signs the certificates of clients, which are then asked for one; probes have none. Raises
        SettingError if there is nothing to begin with."""
        self._pair, self._client_ca = (certificate, key), client_ca
        self._files = (*self._pair, *([client_ca] if client_ca is not None else []))
        self._changing = threading.Lock()
        self._problem = ""
        try:
            self._stamp = self._look()
            self._newest = self._read()
        except (OSError, ssl.SSLError) as error:
            raise SettingError(
                f"the certificate cannot be used: {error}",
                allowed="two files in PEM that belong together, and the clients' CA in PEM",
                place=", ".join(map(str, self._files)),
            ) from None
        self.context = self._read()
        # OpenSSL calls it at every handshake, also of a client that names no server.
        self.context.sni_callback = self._choose

    def _choose(self, connection: ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
        """The context of the files as they are now, or of the last that could be used: a torn renewal stops nobody."""
        with self._changing:
            try:
                stamp = self._look()
                if stamp != self._stamp:
                    self._newest = self._read()
                    self._stamp = stamp
                    _log.info("the certificate was read anew")
                    self._problem = ""
            except (OSError, ssl.SSLError) as error:
                if self._problem != str(error):
                    _log.warning("the certificate cannot be read anew, the last one serves on: %s", error)
                self._problem = str(error)
            connection.context = self._newest

    def _look(self) -> tuple[tuple[int, int, int], ...]:
        return tuple((status.st_mtime_ns, status.st_ino, status.st_size) for status in map(os.stat, self._files))

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(*self._pair)
        if self._client_ca is not None:
            context.verify_mode = ssl.CERT_OPTIONAL
            context.load_verify_locations(self._client_ca)
        return context


@dataclass(frozen=True, slots=True)
class Clients:
    """Who may ask for reviews: whose certificate the clients' CA signed, for this name if there is one."""

    ca: Path
    name: str = ""

    def include(self, names: Sequence[str]) -> bool:
        """Whether a client with these names in its verified certificate is one of them."""
        return self.name in names if self.name else bool(names)


def _names_in(certificate: Any) -> tuple[str, ...]:
    """The common name and the DNS names, as `getpeercert` has them; none without a verified certificate."""
    given = certificate or {}
    subject = (item for part_of in given.get("subject", ()) for item in part_of)
    return tuple(value for kind, value in (*subject, *given.get("subjectAltName", ())) if kind in ("commonName", "DNS"))


def _with_client_names(protocol: Any) -> Any:
    """The protocol of uvicorn, whose requests have the names of their connection's certificate in their scope."""

    class WithClientNames(protocol):  # type: ignore[misc]
        app: Any

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            app = self.app
            names = _names_in(transport.get_extra_info("peercert"))

            async def named(scope: Any, receive: Any, send: Any) -> None:
                await app({**scope, _CLIENT_NAMES: names}, receive, send)

            self.app = named

    return WithClientNames


USUAL = {"exceeds": Action.WARN}
"""What the policy's file leaves open: a webhook that refuses is a site's own choice."""
MOST_BYTES = 4 * 2**20
"""Of a review: an object of the API has at most 3 MiB, and there is one."""
LARGE_BYTES = MOST_BYTES // 8
"""Reviews beyond it are parsed one at a time: `json.loads` lets no other thread run for 50 ms a MiB."""
_BODY_SECONDS = 5.0
_MOST_AT_ONCE = 256
_CLIENT_NAMES = "planner.client_names"
_SAID_AGAIN_SECONDS = 60.0

_log = logging.getLogger("planner.admission")


class Webhook:
    """Decides on reviews. `api` gives the cluster's API, and is asked for only if a job names a ConfigMap."""

    def __init__(self, policy: Policy, api: Callable[[], Api], clients: Clients | None = None) -> None:
        self._policy, self._api, self._clients = policy, api, clients
        # One for each: none waits for another one's plan.
        self._threads = ThreadPoolExecutor(_MOST_AT_ONCE, "review")
        self._large = asyncio.Semaphore(1)
        self._said_at = -_SAID_AGAIN_SECONDS

    def app(self) -> Starlette:
        """The ASGI application."""
        routes = [Route("/validate", self._validate, methods=["POST"])]
        return Starlette(routes=[*routes, Route("/livez", _ok), Route("/readyz", _ok)])

    async def _validate(self, request: Request) -> Response:
        began = time.monotonic()
        try:
            self._check_client(request)
            body = await _body(request)
            async with self._large if len(body) > LARGE_BYTES else contextlib.nullcontext():
                review = await asyncio.get_running_loop().run_in_executor(self._threads, read, body)
        except ReviewError as error:  # RFC 9457
            kind = {"type": "urn:planner:problem:review", "title": "The review cannot be read", "status": error.status}
            document = {**kind, "detail": error.one_line, **error.parts}
            return Response(json.dumps(document), error.status, media_type="application/problem+json")
        if review.operation != "CREATE":
            return _json(200, answer(review.uid, None))
        decision, notes = await self._within(seconds_left(request.query_params.get("timeout", "")), review)
        if decision is None:
            return _json(200, answer(review.uid, None))
        job = kubernetes.read_submission(review.job, review.namespace)
        _log.info(
            "%s: %s, %s %s, %.2f s",
            ascii(f"{review.kind} {job.namespace}/{job.name}"), decision.action, decision.verdict, decision.plan_id,
            time.monotonic() - began,
        )  # fmt: skip
        bind = decision.admits and not review.dry_run
        task = BackgroundTask(self._bind, job.job_id, decision) if bind else None
        return _json(200, answer(review.uid, decision, notes), task)

    def _check_client(self, request: Request) -> None:
        """Raises ReviewError for one that shows no certificate, or another one's."""
        if self._clients is None or self._clients.include(request.scope.get(_CLIENT_NAMES, ())):
            return
        whose = f" for {self._clients.name}" if self._clients.name else ""
        allowed = f"a certificate{whose} that {self._clients.ca} signed"
        if time.monotonic() - self._said_at >= _SAID_AGAIN_SECONDS:
            _log.warning("a review was refused: its client does not show %s", allowed)
            self._said_at = time.monotonic()
        raise ReviewError("the client is not the API server", allowed, status=401)

    async def _within(self, seconds: float, review: Review) -> tuple[Decision | None, list[str]]:
        """The decision, in time: a plan may take half of it, every other answer of the service less than that."""
        policy = dataclasses.replace(
            self._policy,
            wait_seconds=min(self._policy.wait_seconds, seconds * 0.5),
            timeout_seconds=min(self._policy.timeout_seconds, seconds * 0.4),
        )
        work = functools.partial(decide, review, policy, self._api)
        try:
            return await asyncio.wait_for(asyncio.get_running_loop().run_in_executor(self._threads, work), seconds)
        except TimeoutError:
            reason = f"there is no answer within {seconds:g} s"
            return decide_without_verdict("unreachable", policy.unreachable, reason), []
        except Exception:
            _log.exception("the webhook failed")
            return decide_without_verdict(
                "unreachable", policy.unreachable, "planner's webhook failed; its log says why"
            ), []

    async def _bind(self, job_id: str, decision: Decision) -> None:
        work = functools.partial(service_query.bind_new, self._policy, kubernetes.SYSTEM, job_id, decision)
        if problem := await asyncio.get_running_loop().run_in_executor(self._threads, work):
            _log.warning("%s", problem)


def decide(review: Review, policy: Policy, api: Callable[[], Api]) -> tuple[Decision | None, list[str]]:
    """What to do with the object, None for one that is not planner's business; and where it differs from its spec.

    Raises SettingError if no service is set.
    """
    submitted = kubernetes.read_submission(review.job, review.namespace, api)
    if submitted.is_part_of_job:
        return None, []
    if not submitted.carries_spec and kubernetes.RUN in submitted.annotations:
        return service_query.ask_run(
            lambda: specs.of_kubernetes(
                submitted.annotations, kubernetes.RUN, submitted.asked.command, submitted.gpu, submitted.name
            ),
            policy,
            kubernetes.SYSTEM,
        ), []
    if not submitted.carries_spec:
        reason = "" if policy.unplanned is Action.ADMIT else _why_it_needs_a_spec(submitted)
        return decide_without_verdict("unplanned", policy.unplanned, reason) if reason else None, []
    notes: list[str] = []

    def bundle() -> Mapping[str, Any]:
        job, said = kubernetes.bundle_of(submitted.annotations, submitted.namespace, api, lambda: submitted.asked)
        notes.extend(said)
        return job

    return service_query.ask(bundle, policy, kubernetes.SYSTEM), notes


def _why_it_needs_a_spec(submitted: kubernetes.Submission) -> str:
    """Empty where it asks for no GPU."""
    try:
        if submitted.asks_for_gpus:
            return f"the job asks for GPUs and carries no spec: annotate it with {kubernetes.BUNDLE}"
        if submitted.asked.may_ask_by_runtime:
            return (
                f"{submitted.asked.runtime} may ask for GPUs and the job carries no spec: annotate it with "
                f"{kubernetes.BUNDLE}, or write how many GPUs a node has (0 for none) into "
                "trainer.resourcesPerNode.limits"
            )
    except SpecError as error:  # what is too large to be looked through may ask for some
        return f"{error.one_line}; and it carries no spec: annotate it with {kubernetes.BUNDLE}"
    return ""


async def _body(request: Request) -> bytes:
    """Not larger and not slower than the API server sends it. Raises ReviewError."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ReviewError("the body is of another type", "Content-Type: application/json", status=415)
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MOST_BYTES:
                    raise ReviewError("the body is too large", f"at most {MOST_BYTES} bytes", status=413)
    except TimeoutError:
        raise ReviewError("the body does not arrive", f"all of it within {_BODY_SECONDS:g} s", status=408) from None
    except ClientDisconnect:
        raise ReviewError("the body was cut off", "all of it") from None
    return bytes(body)


async def _ok(_: Request) -> Response:
    return PlainTextResponse("ok\n")


def _json(status: int, document: Mapping[str, Any], task: BackgroundTask | None = None) -> Response:
    """In ASCII: a text of the review may hold what is not UTF-8."""
    return Response(json.dumps(document), status, media_type="application/json", background=task)


def serve_webhook(
    *, host: str, port: int, certificate: Path, key: Path, policy_file: Path | None, clients: Clients | None = None
) -> None:
    """Serves until SIGTERM, any client if `clients` is None. Raises PlannerError if it is not set up to work."""
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    policy = Policy.read(os.environ, policy_file, USUAL)
    service_query.client_of(policy, kubernetes.SYSTEM)
    reloaded = Certificate(certificate, key, clients.ca if clients else None)
    if clients is None:
        _log.warning("--any-client: every client that reaches this port may have jobs planned and bound")
    config = uvicorn.Config(
        Webhook(policy, cluster, clients).app(), host=host, port=port, ssl_certfile=certificate,
        ssl_keyfile=key, lifespan="off", access_log=False, log_level="warning", server_header=False,
        limit_concurrency=_MOST_AT_ONCE, timeout_graceful_shutdown=10,
    )  # fmt: skip
    config.load()
    config.ssl = reloaded.context
    config.http_protocol_class = _with_client_names(config.http_protocol_class)
    uvicorn.Server(config).run()


_api = functools.cache(functools.partial(Api, seconds=2))


def cluster() -> Api:
    """The API of this cluster. Raises ApiError where there is no way to it."""
    try:
        return _api()
    except PlannerError as error:
        raise ApiError(0, error.one_line) from None
