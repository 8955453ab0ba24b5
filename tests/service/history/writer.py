"""A process of its own that opens a history and writes what others write at the same moment.

Run: python writer.py URL NAME START; PLAN (JSON) on stdin. It begins when the clock says START (seconds).
"""

from __future__ import annotations

import json
import sys
import time

from planner.report.statement import from_json
from planner.service.history.job_table import JobChange, MeasuredRank
from planner.service.history.store import History
from planner.tracing import rank_trace
from planner.tracing.rank_trace import Trace


def main(url: str, name: str, start: float) -> None:
    plan = from_json(json.load(sys.stdin))
    time.sleep(max(start - time.time(), 0))
    with History.open(url) as history:
        for turn in range(10):
            history.plans.put(plan)
            history.traces.put(plan.trace_id, dict.fromkeys((0, 1), rank_trace.dumps(Trace(events=()))))
            measured = (MeasuredRank(rank=int(name), device_bytes=turn + 1),)
            history.jobs.bind(
                "ray", "shared", JobChange(plan_id=plan.plan_id, hosts=(f"node-{name}",), measured=measured)
            )
            history.calibrations.put("same", {})


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
