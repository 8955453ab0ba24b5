"""The hook of the Kubernetes API: a validating webhook over TLS for jobs that carry their spec.

It warns unless its policy says refuse, and answers before the API server stops waiting, whatever the service does.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from planner.admission import kubernetes, kubernetes_specs, program_asks, reviews, service_query, specs
from planner.admission.certificates import Certificate
from planner.admission.decision import Decision, decide_without_verdict
from planner.admission.kubernetes_api import Api, ApiError
from planner.admission.policy import Answer, Policy
from planner.admission.reviews import Review, ReviewError
from planner.errors import PlannerError

USUAL = {"exceeds": Answer.WARN}
"""What the policy's file leaves open: a webhook that refuses is a site's own choice."""
MOST_BYTES = 4 * 2**20
"""Of a review: an object of the API has at most 3 MiB, and there is one."""
_BODY_SECONDS = 5.0
_THREADS = 32
_MOST_AT_ONCE = 256

_log = logging.getLogger("planner.admission")


class Webhook:
    """Decides on reviews. `api` gives the cluster's API, and is asked for only if a job names a ConfigMap."""

    def __init__(self, policy: Policy, api: Callable[[], Api]) -> None:
        self._policy, self._api = policy, api
        self._threads = ThreadPoolExecutor(_THREADS, "review")

    def app(self) -> Starlette:
        """The ASGI application."""
        routes = [Route("/validate", self._validate, methods=["POST"])]
        return Starlette(routes=[*routes, Route("/livez", _ok), Route("/readyz", _ok)])

    async def _validate(self, request: Request) -> Response:
        began = time.monotonic()
        try:
            review = reviews.read(await _body(request))
        except ReviewError as error:
            return _problem(400, error)
        except _BodyError as error:
            return _problem(error.status, error)
        if review.operation != "CREATE":
            return _json(200, reviews.answer(review.uid, None))
        decision, notes = await self._within(reviews.seconds_left(request.query_params.get("timeout", "")), review)
        if decision is None:
            return _json(200, reviews.answer(review.uid, None))
        job = kubernetes.read_submission(review.job, review.namespace)
        _log.info(
            "%s: %s, %s %s, %.2f s",
            ascii(f"{review.kind} {job.namespace}/{job.name}"), decision.action, decision.verdict, decision.plan_id,
            time.monotonic() - began,
        )  # fmt: skip
        bind = decision.admits and not review.dry_run
        task = BackgroundTask(self._bind, job.job_id, decision) if bind else None
        return _json(200, reviews.answer(review.uid, decision, notes), task)

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
        work = functools.partial(service_query.bind, self._policy, kubernetes.SYSTEM, job_id, decision)
        if problem := await asyncio.get_running_loop().run_in_executor(self._threads, work):
            _log.warning("%s", problem)


def decide(review: Review, policy: Policy, api: Callable[[], Api]) -> tuple[Decision | None, list[str]]:
    """What to do with the object, None for one that is not planner's business; and where it differs from its spec.

    Raises SettingError if no service is set.
    """
    submitted = kubernetes.read_submission(review.job, review.namespace)
    if not submitted.carries_spec and kubernetes.RUN in submitted.annotations:
        return service_query.ask_run(
            lambda: program_asks.of_kubernetes(
                submitted.annotations, kubernetes.RUN, submitted.command, submitted.products, submitted.name
            ),
            policy,
            kubernetes.SYSTEM,
        ), []
    if not submitted.carries_spec:
        if policy.unplanned is Answer.ADMIT or not submitted.asks_for_gpus:
            return None, []
        reason = f"the job asks for GPUs and carries no spec: annotate it with {kubernetes.BUNDLE}"
        return decide_without_verdict("unplanned", policy.unplanned, reason), []
    notes: list[str] = []

    def bundle() -> Mapping[str, Any]:
        from planner.job.bundle import bundle as bundle_of

        job = kubernetes_specs.job_of(submitted.annotations, submitted.namespace, api)
        notes.extend(kubernetes_specs.differences(submitted.pods, job, products=submitted.products))
        return bundle_of(job)

    return service_query.ask(bundle, policy, kubernetes.SYSTEM), notes


class _BodyError(PlannerError):
    """The request's body cannot be taken."""

    def __init__(self, status: int, problem: str, allowed: str) -> None:
        super().__init__(problem, allowed=allowed)
        self.status = status


async def _body(request: Request) -> bytes:
    """Not larger and not slower than the API server sends it. Raises _BodyError."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise _BodyError(415, "the body is of another type", "Content-Type: application/json")
    found = bytearray()
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for chunk in request.stream():
                found += chunk
                if len(found) > MOST_BYTES:
                    raise _BodyError(413, "the body is too large", f"at most {MOST_BYTES} bytes")
    except TimeoutError:
        raise _BodyError(408, "the body does not arrive", f"all of it within {_BODY_SECONDS:g} s") from None
    except ClientDisconnect:
        raise _BodyError(400, "the body was cut off", "all of it") from None
    return bytes(found)


async def _ok(_: Request) -> Response:
    return PlainTextResponse("ok\n")


def _json(status: int, document: Mapping[str, Any], task: BackgroundTask | None = None) -> Response:
    """In ASCII: a text of the review may hold what is no UTF-8."""
    return Response(json.dumps(document), status, media_type="application/json", background=task)


def _problem(status: int, error: PlannerError) -> Response:
    """RFC 9457."""
    said = {"type": "urn:planner:problem:review", "title": "The review cannot be read", "status": status}
    parts = {"problem": error.problem, "allowed": error.allowed, "place": error.place}
    document = {**said, "detail": specs.message_of(error), **{name: text for name, text in parts.items() if text}}
    return Response(json.dumps(document), status, media_type="application/problem+json")


def serve_webhook(*, host: str, port: int, certificate: Path, key: Path, policy_file: Path | None) -> None:
    """Serves until SIGTERM. Raises PlannerError if it is not set up to work."""
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    policy = Policy.read(os.environ, policy_file, USUAL)
    service_query.client_of(policy, kubernetes.SYSTEM)
    reloaded = Certificate(certificate, key)
    config = uvicorn.Config(
        Webhook(policy, cluster).app(), host=host, port=port, ssl_certfile=certificate,
        ssl_keyfile=key, lifespan="off", access_log=False, log_level="warning", server_header=False,
        limit_concurrency=_MOST_AT_ONCE, timeout_graceful_shutdown=10,
    )  # fmt: skip
    config.load()
    config.ssl = reloaded.context
    uvicorn.Server(config).run()


@functools.cache
def _api() -> Api:
    return Api(seconds=2)


def cluster() -> Api:
    """The API of this cluster. Raises ApiError where there is no way to it."""
    try:
        return _api()
    except PlannerError as error:
        raise ApiError(0, specs.message_of(error)) from None
