"""Says which plans a history has, one a line; fails if one of them is not whole.

A program of its own: the history may lie on a disk that only those see who are in a namespace with it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from stored import get_traces

from planner.job.layout import Mesh, rank_classes
from planner.job.loading import load_bundle
from planner.report.statement import from_json
from planner.service.history.store import History


def whole_plans(url: str) -> Iterator[str]:
    """Their ids. All rank classes are there, and either all traces or none."""
    with History.open(url) as history:
        for summary in history.plans.newest(1000):
            document = history.plans.document(summary.plan_id)
            assert document is not None, f"{summary.plan_id} has no document"
            plan = from_json(document)
            mesh = Mesh.of(load_bundle(plan.job, "the stored plan").parallel)
            expected = [each.representative for each in rank_classes(mesh)]
            assert [each.representative for each in plan.rank_classes] == expected
            assert [each.representative for each in history.plans.rank_classes(plan.plan_id)] == expected
            assert sorted(get_traces(history, plan.trace_id)) in ([], expected)
            yield plan.plan_id


if __name__ == "__main__":
    print("\n".join(whole_plans(sys.argv[1])))
