"""Runs the validations of a service, a few at a time, and learns from what was measured."""

from __future__ import annotations

import base64
import dataclasses
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import UTC, datetime
from typing import Any

from planner.errors import PlannerError
from planner.records import to_plain
from planner.runtime.limits import Limits
from planner.service.errors import BusyError
from planner.service.history.errors import HistoryUnavailableError
from planner.service.history.records import NO_GPU, Validation, ValidationState
from planner.service.history.store import History
from planner.service.orders import build_order, code_isolation
from planner.service.plan_provider import CalibrationInUse
from planner.service.torch_versions import ONLY_OWN, TorchVersions
from planner.service.validation import requests, validation_run
from planner.service.validation.calibration_learning import CalibrationLearner
from planner.service.validation.measuring_workers import Node, RefusedError, StoppedError
from planner.service.validation.requests import Device, Request
from planner.service.validation.validation_run import Conditions, Result
from planner.settings import Settings

LEARN_SECONDS = 60.0
STOP_SECONDS = 5.0
_STORE_SECONDS = 120.0
"""How long a finished result is kept for a history that does not answer."""
_PAUSE_SECONDS = 2.0
_MOST_RECOVERED = 1000
_BUSY_SECONDS = 30

_log = logging.getLogger("planner.service")
Run = Callable[..., Result]
"""`planner.service.validation.validation_run.validate`, or what takes and gives the same."""


def build_conditions(settings: Settings) -> Conditions:
    return Conditions(
        isolation=code_isolation(settings),
        bare=settings.measure_factories_without_walls,
        measuring=Limits(seconds=settings.validation_seconds, memory_bytes=settings.validation_memory_bytes),
        wait_seconds=settings.validation_seconds,
    )


class ValidationRunner:
    """The validations of one service, each in a thread while it runs. There is one of these at a time.

    The state in the history is the truth: PENDING is run again by the next process, RUNNING has failed if
    this one has died.
    """

    def __init__(
        self,
        history: History,
        settings: Settings,
        conditions: Conditions,
        run: Run = validation_run.validate,
        nodes: Callable[[], Sequence[Node]] = validation_run.nodes,
        torches: TorchVersions = ONLY_OWN,
    ) -> None:
        self._torches = torches
        self._history, self._settings, self._conditions = history, settings, conditions
        self._run, self._nodes = run, nodes
        self._calibration = CalibrationInUse(history)
        self._learning, self._learn = CalibrationLearner(history), threading.Event()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._turns: list[Future[None]] = []
        self._pool = ThreadPoolExecutor(max(1, settings.validations_at_once), "validation")
        self._learner = threading.Thread(target=self._learn_on, name="learning", daemon=True)

    def begin(self) -> None:
        """Settle what a predecessor left, and start to learn. Raises HistoryError if the history cannot be used."""
        stored = self._history.validations
        for left in stored.newest(_MOST_RECOVERED, state=ValidationState.RUNNING):
            problem = "the process that ran it ended before it was done; ask again"
            stored.put(_over(left, ValidationState.FAILED, problem))
        for left in reversed(stored.newest(_MOST_RECOVERED, state=ValidationState.PENDING)):
            try:
                request = requests.from_json(left.result.get(requests.ASKED, {}))
            except (PlannerError, KeyError) as error:
                problem = f"what was asked cannot be read any more ({error}); ask again"
                stored.put(_over(left, ValidationState.FAILED, problem))
                continue
            self._turns.append(self._pool.submit(self._validate, left, request))
        self._learner.start()

    def start(self, request: Request) -> Validation:
        """Store it, and run it when its turn comes; one that this cluster cannot run is stored as refused.

        Raises BusyError if too many wait, HistoryError if it cannot be stored.
        """
        order = build_order(request.job, self._calibration.current(), self._history.id_key, self._torches)
        request = dataclasses.replace(request, plan_id=request.plan_id or order.plan_id)
        gpu = request.job.cluster.gpu
        validation = Validation(
            validation_id="va-" + base64.b32encode(os.urandom(17)).decode().lower()[:26],
            plan_id=request.plan_id,
            state=ValidationState.PENDING,
            asked_at=datetime.now(UTC),
            mode=request.mode.value,
            gpu=NO_GPU if request.device is Device.CPU else gpu.name or gpu.arch,
            result={requests.ASKED: to_plain(request)},
        )
        with self._lock:
            self._turns = [turn for turn in self._turns if not turn.done()]
            if len(self._turns) >= self._settings.validation_queue + self._settings.validations_at_once:
                raise BusyError(
                    f"{len(self._turns)} validations wait already",
                    remedy="ask again when some of them are done",
                    retry_after_seconds=_BUSY_SECONDS,
                )
            try:
                validation_run.choose_setting(request, self._nodes())
            except RefusedError as error:
                validation = _over(validation, ValidationState.REFUSED, str(error))
            self._history.validations.put(validation)
            if validation.state is ValidationState.PENDING:
                self._turns.append(self._pool.submit(self._validate, validation, request))
        return validation

    def close(self) -> None:
        self._stop.set()
        self._learn.set()
        self._pool.shutdown(wait=False, cancel_futures=True)
        wait(self._turns, STOP_SECONDS)

    def _validate(self, validation: Validation, request: Request) -> None:
        began = time.monotonic()
        ended = self._outcome(validation, request)
        try:
            self._keep(ended)
        except Exception as error:  # what was measured cannot be stored; that it failed can
            ended = _failed(validation, error)
            self._keep(ended)
        _log.info(
            "validation %s of %s: %s after %.1f s%s",
            ended.validation_id, ended.plan_id, ended.state.value, time.monotonic() - began,
            f": {ended.problem}" if ended.problem else "",
            extra={"plan_id": ended.plan_id, "validation_id": ended.validation_id},
        )  # fmt: skip
        if ended.state is ValidationState.DONE:
            self._learn.set()

    def _outcome(self, validation: Validation, request: Request) -> Validation:

        def running() -> None:
            self._history.validations.put(dataclasses.replace(validation, state=ValidationState.RUNNING))

        if self._stop.is_set():
            return validation
        try:
            result = self._run(request, self._conditions, running=running, stop=self._stop)
            measured = dataclasses.replace(
                validation,
                mode=result.document["mode"],
                gpu=NO_GPU if result.document["device"]["kind"] == "cpu" else validation.gpu,
                torch=result.torch,
                out_of_memory=result.out_of_memory,
                error_percent=result.error_percent,
            )
            state = ValidationState.FAILED if result.problem else ValidationState.DONE
            return _over(measured, state, result.problem, result.document)
        except StoppedError:
            return validation
        except RefusedError as error:
            return _over(validation, ValidationState.REFUSED, str(error))
        except PlannerError as error:
            return _over(validation, ValidationState.FAILED, str(error))
        except Exception as error:
            return _failed(validation, error)

    def _keep(self, validation: Validation) -> None:
        """Store how it ended; while the history does not answer, again and again for some time."""
        until = time.monotonic() + _STORE_SECONDS
        while True:
            try:
                self._history.validations.put(validation)
                return
            except HistoryUnavailableError as error:
                if time.monotonic() > until or self._stop.is_set():
                    _log.error("validation %s is lost: %s", validation.validation_id, error)
                    return
            time.sleep(_PAUSE_SECONDS)

    def _learn_on(self) -> None:
        while not self._stop.is_set():
            self._learn.clear()
            try:
                calibration = self._learning.refresh()
            except PlannerError as error:
                _log.warning("nothing is learnt now: %s", error)
            except Exception:
                _log.exception("learning: a fault of planner itself")
            else:
                if calibration is not None:
                    _log.info("calibration %s: %d corrections", calibration.id, len(calibration.corrections))
            self._learn.wait(LEARN_SECONDS)


def _failed(validation: Validation, fault: Exception) -> Validation:
    _log.error("validation %s: a fault of planner itself", validation.validation_id, exc_info=fault)
    return _over(validation, ValidationState.FAILED, f"a fault of planner itself: {fault!r:.300}")


def _over(
    validation: Validation, state: ValidationState, problem: str, document: Mapping[str, Any] | None = None
) -> Validation:
    """What is kept for good: without the job, which its plan has."""
    asked = {key: value for key, value in validation.result.get(requests.ASKED, {}).items() if key != "job"}
    return dataclasses.replace(
        validation,
        state=state,
        finished_at=datetime.now(UTC),
        problem=problem,
        result={requests.ASKED: asked, **(document or {})},
    )
