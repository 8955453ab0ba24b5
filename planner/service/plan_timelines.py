"""The memory of a stored plan's rank class over time: its trace is replayed under the plan's own figures."""

from __future__ import annotations

import json
from typing import Any

from planner.allocator.rules import Rules
from planner.allocator.settled import replay_until_settled
from planner.job.loading import load_bundle
from planner.report.class_timeline import ClassTimeline, timeline_to_json
from planner.report.statement import Plan, RankClassStatement, from_json
from planner.tracing import trace_text
from planner.tracing.traced import Trace

SCHEMA = "planner.timeline/1"
POINTS = 700
"""Moments of a picture: about as many as a screen has points for it."""


def read_timeline(content: bytes, _: str = "") -> dict[str, Any]:
    """The document of a rank class: `content` is the JSON array of a plan's text, a rank and its trace's text.

    Called where it may take seconds. Raises ValueError for a trace that is damaged.
    """
    plan_text, rank, text = json.loads(content)
    plan = from_json(json.loads(plan_text))
    statement = next(each for each in plan.rank_classes if each.representative == rank)
    drawn = timeline_to_json(replayed(plan, statement, trace_text.loads(text)), POINTS)
    return {"schema": SCHEMA, "plan_id": plan.plan_id, "representative": rank, **drawn}


def replayed(plan: Plan, statement: RankClassStatement, trace: Trace) -> ClassTimeline:
    """What the statement was made from: on the capacity that it had, or without an end where that is not enough."""
    job = load_bundle(plan.job, "the plan's job")
    rules = Rules.from_conf(job.allocator.conf)
    room = max(statement.capacity_bytes - statement.outside_allocator.total_bytes, 0)
    found = replay_until_settled(trace.events, trace.repeats, rules, room, device_bytes=job.cluster.gpu.total_bytes)
    if found.timeline.out_of_memory is not None:
        found = replay_until_settled(trace.events, trace.repeats, rules)
    return ClassTimeline(statement, found.events, found.timeline)
