"""Jobs that take more than their GPU has whatever their plan says: refused at once, at every hook."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from planner.admission.client import Client, ExceedsByBound, UnreachableError
from planner.admission.decision import Decision, decide
from planner.admission.policy import Action, Policy
from planner.admission.service_query import ask, bind
from planner.job.bound.lower_bound import lower_bound
from planner.job.loading import bundle, load_document
from planner.report.statement import from_json
from planner.searching.axes import apply
from planner.units import GIB

JOB = load_document(
    {
        "metadata": {"name": "sft-8b"},
        "model": {"decoder": {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocab": 128256}},
        "train": {"sequence_length": 8192},
        "parallel": {"dp_replicate": 8},
        "cluster": {"gpus_per_node": 8, "gpu": "H100-SXM-80GB"},
    }
)
"""An 8B model by DistributedDataParallel with AdamW in float32: 185 GiB with what its forward saves at least."""
BUNDLE = bundle(JOB)
CAPACITY = JOB.cluster.gpu.total_bytes
LEAST = lower_bound(JOB).least_bytes
BY_BOUND = {
    "plan_id": "pl-x", "verdict": "exceeds", "basis": "lower_bound", "device_bytes": LEAST, "capacity_bytes": CAPACITY,
}  # fmt: skip
REASON = (
    "sft-8b does not fit: a rank needs at least 184.84 GiB, 79.10 GiB available (H100-SXM-80GB) "
    "(parameters, optimizer state, CUDA context, and gradients or what a forward saves)"
)

CHANGE = "train.recompute: full, parallel.dp_replicate.degree: 1, parallel.dp_shard.degree: 8 (then at least 28.31 GiB)"


def test_the_service_says_so_at_once(answering: Any) -> None:
    answering.says(200, BY_BOUND)

    found = Client(answering.url).plan(BUNDLE, 60)

    assert found == ExceedsByBound(plan_id="pl-x", least_bytes=LEAST, capacity_bytes=CAPACITY)
    assert [each.path for each in answering.asked] == ["/v1/checks"]  # no plan is asked for, nor waited for


def test_a_bound_without_its_bytes_is_no_answer(answering: Any) -> None:
    answering.says(200, {**BY_BOUND, "device_bytes": "many"})

    with pytest.raises(UnreachableError, match="a lower bound without its bytes"):
        Client(answering.url).plan(BUNDLE, 0)


@pytest.mark.parametrize(("exceeds", "action"), [(Action.REFUSE, Action.REFUSE), (Action.WARN, Action.WARN)])
@pytest.mark.parametrize("refuse_uncalibrated", [False, True])
def test_a_hopeless_job_is_refused_or_warned_of_as_the_site_has_it(
    answering: Any, exceeds: Action, action: Action, refuse_uncalibrated: bool
) -> None:
    """Whether or not anything was measured: what is counted needs no calibration."""
    answering.says(200, BY_BOUND)
    policy = Policy(server=answering.url, exceeds=exceeds, refuse_uncalibrated=refuse_uncalibrated)

    found = ask(lambda: BUNDLE, policy, "ray")

    assert found == Decision(
        action=action, reason=REASON, change=CHANGE, plan_id="pl-x", verdict="exceeds", by_bound=True
    )
    assert found.text.splitlines()[1] == f"planner: the smallest change that may fit, by its lower bound: {CHANGE}"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"train.recompute": "full"}, "parallel.dp_replicate.degree: 1, parallel.dp_shard.degree: 8"),
        (
            {"train.recompute": "full", "parallel.dp_replicate.degree": 1, "cluster.gpus_per_node": 1},
            "cluster.gpu: H20-SXM-141GB (it has ",
        ),
        (
            {
                "train.recompute": "full",
                "parallel.dp_replicate.degree": 1,
                "cluster.gpus_per_node": 1,
                "cluster.gpu": "H100-SXM-80GB:1g.10gb",
            },
            "",
        ),
    ],
)
def test_the_fewest_changes_are_named_and_else_a_gpu(changes: dict[str, Any], said: str) -> None:
    job = bundle(apply(JOB, changes))
    found = ask(lambda: job, Policy(server="http://127.0.0.1:1"), "kubernetes")

    assert (found.by_bound, found.change.startswith(said), bool(found.change)) == (True, True, bool(said))


@pytest.mark.parametrize("answer", [Action.ADMIT, Action.HOLD])
def test_a_service_that_knows_no_bounds_is_no_way_around(answering: Any, answer: Action) -> None:
    answering.says(202, {"plan_id": "pl-x", "verdict": "pending"})
    policy = Policy(server=answering.url, wait_seconds=0, pending=answer)

    found = ask(lambda: BUNDLE, policy, "ray")

    assert (found.action, found.verdict, found.reason, found.plan_id) == (Action.REFUSE, "exceeds", REASON, "pl-x")


def test_a_service_that_is_away_is_no_way_around() -> None:
    found = ask(lambda: BUNDLE, Policy(server="http://127.0.0.1:1", unreachable=Action.ADMIT), "ray")

    assert (found.action, found.verdict, found.reason, found.plan_id) == (Action.REFUSE, "exceeds", REASON, "")


def test_a_job_whose_trace_takes_too_long_is_no_way_around(answering: Any) -> None:
    """The service remembers that it cannot be planned, and tells it at once."""
    answering.says(422, {"type": "urn:planner:problem:trace-limit", "problem": "the trace takes more than 120 s"})

    found = ask(lambda: BUNDLE, Policy(server=answering.url, unplannable=Action.ADMIT), "ray")

    assert (found.action, found.verdict, found.reason) == (Action.REFUSE, "exceeds", REASON)


def test_who_is_warned_of_a_bound_is_bound_to_no_plan_yet(answering: Any) -> None:
    decision = Decision(action=Action.WARN, reason=REASON, plan_id="pl-x", verdict="exceeds", by_bound=True)

    assert bind(Policy(server=answering.url), "slurm", "1", decision) == ""
    assert answering.asked == []


def test_a_plan_of_a_hopeless_job_refuses_it_without_a_calibration_too(
    make_plan: Callable[..., Any], make_rank_class: Callable[..., Any]
) -> None:
    """Or the same job would be refused while its plan is made, and admitted when it is there."""
    uncalibrated = {**make_plan(make_rank_class(160 * GIB, "exceeds"), calibrated=False), "job": BUNDLE}
    small = {**uncalibrated, "job": bundle(dataclasses.replace(JOB, parallel=JOB.parallel.__class__()))}
    small["job"]["model"]["decoder"]["layers"] = 1

    assert decide(from_json(uncalibrated), Policy()).action is Action.REFUSE
    assert decide(from_json(small), Policy()).action is Action.WARN
    assert decide(from_json(uncalibrated), Policy(exceeds=Action.WARN)).action is Action.WARN


def test_the_real_service_refuses_an_8b_job_before_its_plan_is_made(service: Any) -> None:
    """The finding: new to the service, it was pending, and admitted unchecked."""
    service.plan_provider.slow.add("sft-8b")
    policy = Policy(server=service.url, token=service.token, wait_seconds=20)

    found = ask(lambda: BUNDLE, policy, "slurm")

    assert (found.action, found.verdict, found.reason) == (Action.REFUSE, "exceeds", REASON)
    assert service.plan_provider.asked["sft-8b"] <= 1
