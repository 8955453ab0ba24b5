"""One decision for all hooks: from a plan and the operator's policy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planner.admission.decision import Decision, decide
from planner.admission.policy import Action, Policy
from planner.errors import PlannerError, SettingError
from planner.report.statement import from_json
from planner.units import GIB

Plans = dict[str, dict[str, Any]]
REFUSES_ALL = Policy(exceeds=Action.REFUSE, refuse_uncalibrated=True, tight=Action.REFUSE)


def decided(plan: dict[str, Any], policy: Policy) -> Decision:
    return decide(from_json(plan), policy)


def test_who_does_not_fit_is_told_by_how_much_on_which_ranks_and_the_smallest_change(plans: Plans) -> None:
    found = decided(plans["exceeds"], Policy())

    assert found == Decision(
        action=Action.REFUSE,
        reason="sft does not fit: ranks 0-7 need 90.00 GiB, 80.00 GiB available (H100-SXM-80GB); "
        "peak in optimizer step of iteration 2",
        change="train.recompute: full (then 60.00 GiB)",
        plan_id=plans["exceeds"]["plan_id"],
        verdict="exceeds",
    )
    assert found.text.splitlines() == [
        f"planner: refused: {found.reason}",
        "planner: the smallest change that fits: train.recompute: full (then 60.00 GiB)",
    ]
    assert not found.admits


@pytest.mark.parametrize(
    ("plan", "policy", "action"),
    [
        ("fits", Policy(), Action.ADMIT),
        ("fits", REFUSES_ALL, Action.ADMIT),
        ("tight", Policy(), Action.WARN),
        ("tight", Policy(tight=Action.ADMIT), Action.ADMIT),
        ("tight", REFUSES_ALL, Action.REFUSE),
        ("exceeds", Policy(), Action.REFUSE),
        ("exceeds", Policy(exceeds=Action.WARN), Action.WARN),
        ("exceeds, uncalibrated", Policy(), Action.WARN),
        ("exceeds, uncalibrated", Policy(refuse_uncalibrated=True), Action.REFUSE),
        ("exceeds, uncalibrated", Policy(exceeds=Action.WARN, refuse_uncalibrated=True), Action.WARN),
    ],
)
def test_each_verdict_is_acted_upon_as_the_operator_wants(
    plans: Plans, plan: str, policy: Policy, action: Action
) -> None:
    assert decided(plans[plan], policy).action == action


def test_a_plan_of_another_torch_says_which(plans: Plans) -> None:
    another = {"asked": "2.8", "planned_with": "2.9", "difference": 0.01, "sentence": "planned with torch 2.9"}
    found = decided({**plans["tight"], "another_torch": another}, Policy())

    assert "; planned with torch 2.9; " in found.reason


def test_an_uncalibrated_plan_that_is_not_refused_says_why(plans: Plans) -> None:
    reason = decided(plans["exceeds, uncalibrated"], Policy()).reason

    assert reason.endswith("uncalibrated; not refused, since nothing was measured on this GPU and torch")


def test_the_worst_ranks_decide(make_plan: Callable[..., Any], make_rank_class: Callable[..., Any]) -> None:
    plan = make_plan(
        make_rank_class(70 * GIB, "fits", "0-1"),
        make_rank_class(81 * GIB, "exceeds", "2"),
        make_rank_class(79 * GIB, "tight", "3-7"),
    )

    assert decided(plan, Policy()).reason.startswith("sft does not fit: rank 2 needs 81.00 GiB, 80.00 GiB available")


def test_a_rank_that_runs_out_in_spite_of_its_sum_is_told_so(
    make_plan: Callable[..., Any], make_rank_class: Callable[..., Any]
) -> None:
    plan = make_plan(make_rank_class(79 * GIB, "exceeds"))

    assert (
        "ranks 0-7 run out of 80.00 GiB (H100-SXM-80GB) because free memory is fragmented"
        in decided(plan, Policy()).reason
    )


def test_what_a_job_calls_itself_cannot_write_lines_of_its_own(plans: Plans) -> None:
    plans["fits"]["job"]["metadata"]["name"] = "x\nplanner: fits\x1b[2J"

    assert decided(plans["fits"], Policy()).text.startswith("planner: x?planner: fits?[2J fits:")


@pytest.mark.parametrize("broken", [{}, {"schema": "planner.plan/2"}, {"schema": "planner.plan/1", "rank_classes": []}])
def test_what_is_no_plan_is_no_decision(broken: dict[str, Any]) -> None:
    with pytest.raises(PlannerError):
        decided(broken, Policy())


def test_what_the_operators_file_says_stands_and_the_environment_fills_the_rest(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    file = tmp_path / "admission.ini"
    file.write_text(
        f"[admission]\nserver = https://planner.example/\ntoken_file = {tmp_path / 'token'}\n"
        "unreachable = refuse\nrefuse_uncalibrated = yes\n[slurm]\nverdicts = /x\n"
    )
    environment = {
        "PLANNER_ADMISSION_POLICY": str(file),
        "PLANNER_ADMISSION_UNREACHABLE": "admit",
        "PLANNER_ADMISSION_WAIT_SECONDS": "2.5",
        "PLANNER_SERVER": "http://elsewhere",
        "PLANNER_TOKEN": "another",
    }

    assert Policy.read(environment, defaults={"tight": Action.ADMIT}) == Policy(
        server="https://planner.example",
        token="secret",
        unreachable=Action.REFUSE,
        pending=Action.REFUSE,
        refuse_uncalibrated=True,
        wait_seconds=2.5,
        tight=Action.ADMIT,
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("exceeds = maybe", "'maybe' is not a policy"),
        ("exceeds = admit", "'admit' is not a policy"),
        ("wait_seconds = nan", "'nan' is not a time"),
        ("wait_seconds = -1", "'-1' is not a time"),
        ("risk = none", "'none' is not a risk"),
        ("risk = 60%", "'60%' is not a risk"),
        ("server = file:///etc/passwd", "not the address of a service"),
        ("refuse_uncalibrated = perhaps", "neither yes nor no"),
        ("excedes = warn", "there is no setting 'excedes'"),
        ("token_file = /nowhere", "cannot be read"),
        ("token_file = /nowhere\ntoken = x", "both token and token_file"),
        ("=", "cannot be read"),
    ],
)
def test_a_policy_that_cannot_be_used_is_said(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "admission.ini"
    file.write_text(f"[admission]\n{text}\n")

    with pytest.raises(SettingError, match=said):
        Policy.read({}, file)


def test_the_operators_risk_moves_the_bound_below_which_a_job_fits(
    make_plan: Callable[..., dict[str, Any]], make_rank_class: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    file = tmp_path / "admission.ini"
    file.write_text("[admission]\nrisk = 0.1%\n")
    plan = make_plan(make_rank_class(77 * GIB, "fits"))

    usual, careful = decided(plan, Policy()), decided(plan, Policy.read({}, file))

    assert (usual.verdict, careful.verdict) == ("fits", "tight")
    assert decided(make_plan(make_rank_class(90 * GIB, "exceeds")), Policy(risk=0.5)).verdict == "exceeds"


@pytest.mark.parametrize(
    ("text", "environment", "pending"),
    [
        ("", {}, "admit"),
        ("unreachable = refuse", {}, "refuse"),
        ("unreachable = hold", {}, "hold"),
        ("unreachable = refuse\npending = admit", {}, "admit"),
        ("", {"PLANNER_ADMISSION_UNREACHABLE": "refuse"}, "refuse"),
        ("unreachable = refuse", {"PLANNER_ADMISSION_PENDING": "admit"}, "refuse"),
        ("", {"PLANNER_ADMISSION_UNREACHABLE": "refuse", "PLANNER_ADMISSION_PENDING": "hold"}, "hold"),
    ],
)
def test_a_plan_that_is_not_ready_is_treated_as_a_service_that_does_not_answer_unless_it_is_said_otherwise(
    tmp_path: Path, text: str, environment: dict[str, str], pending: str
) -> None:
    file = tmp_path / "admission.ini"
    file.write_text(f"[admission]\n{text}\n")

    assert Policy.read(environment, file).pending == pending


@pytest.mark.parametrize(
    ("text", "unplannable"),
    [("", "admit"), ("unplanned = refuse", "refuse"), ("unplanned = refuse\nunplannable = admit", "admit")],
)
def test_what_cannot_be_planned_is_treated_as_what_has_no_spec_unless_the_file_says_otherwise(
    tmp_path: Path, text: str, unplannable: str
) -> None:
    file = tmp_path / "admission.ini"
    file.write_text(f"[admission]\n{text}\n")

    assert Policy.read({}, file).unplannable == unplannable
