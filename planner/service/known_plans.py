"""Caches plans in a replica, and gives them out with the metadata of whoever asks."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from planner.errors import PlannerError
from planner.history.columns import compact_json
from planner.job.schema import Metadata
from planner.report.statement import SCHEMA


@dataclass(frozen=True, slots=True)
class KnownPlan:
    """The JSON text of a plan, on both sides of its metadata."""

    head: str
    tail: str

    @classmethod
    def read(cls, text: str, plan_id: str) -> KnownPlan:
        """Raises PlannerError if the text is not that of this plan."""
        try:
            document = json.loads(text)
            metadata = compact_json(document["job"]["metadata"])
            right = document["schema"] == SCHEMA and document["plan_id"] == plan_id and bool(document["rank_classes"])
        except (ValueError, KeyError, TypeError) as error:
            raise PlannerError(f"the document of plan {plan_id} is damaged: {error}") from error
        # The first of that name is the job's: what stands before it are words of ours.
        head, key, tail = text.partition('"metadata":')
        if not right or not tail.startswith(metadata):
            raise PlannerError(f"the document of plan {plan_id} is not that of the plan")
        return cls(head + key, tail[len(metadata) :])

    def text(self, metadata: Metadata) -> str:
        """The plan of a job with these metadata; byte for byte what was stored if that job had the same."""
        return self.head + compact_json(dataclasses.asdict(metadata)) + self.tail


class KnownPlans:
    """The plans used last, for a while and up to a number of characters. Shared by the threads of a replica."""

    def __init__(
        self, *, seconds: float = 60.0, characters: int = 64 * 2**20, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds, self._most, self._now = seconds, characters, now
        self._lock = threading.Lock()
        self._plans: OrderedDict[str, tuple[KnownPlan, float]] = OrderedDict()
        self._characters = 0

    def get(self, plan_id: str) -> KnownPlan | None:
        """After its time a plan is looked up in the store again, which notes its use, or has forgotten it."""
        with self._lock:
            plan, until = self._plans.get(plan_id, (None, 0.0))
            if plan is None:
                return None
            if self._now() >= until:
                self._drop(plan_id)
                return None
            self._plans.move_to_end(plan_id)
            return plan

    def put(self, plan_id: str, plan: KnownPlan) -> None:
        with self._lock:
            self._drop(plan_id)
            self._plans[plan_id] = plan, self._now() + self._seconds
            self._characters += _size(plan)
            while self._characters > self._most:
                self._drop(next(iter(self._plans)))

    def _drop(self, plan_id: str) -> None:
        plan, _ = self._plans.pop(plan_id, (None, 0.0))
        self._characters -= 0 if plan is None else _size(plan)


def _size(plan: KnownPlan) -> int:
    return len(plan.head) + len(plan.tail)
