"""Workspaces read off a device's allocations beside the same operator on paper, where their places are known."""

from __future__ import annotations

from typing import Any

from gpu_truth.workspace_facts import FoundFacts, find_facts
from planner.truth.measuring.measurement_lines import DeviceFacts, Measurement

GPU = "H200-SXM-141GB"
KIB = 1024


def ask(part: str, index: int, *, taken: int = 0, kernel: str = "cuDNN convolution, forward") -> dict[str, Any]:
    return {
        "part": part, "index": index, "taken": taken, "kernel": kernel, "dtype": "float32",
        "shapes": [[2, 8], [8, 8]], "options": "",
    }  # fmt: skip


def line(
    case: str = "operator-conv", *, kind: str = "cuda", first: Any = None, error: str = "", **run: Any
) -> Measurement:
    operator = {**run, "first_run": run if first is None else first}
    software = {"torch": "2.11.0+cu130", "driver": "580.1", "cuda": "13.0", "cudnn": "91900", "python": "3.12"}
    return Measurement(
        case=case, job={}, device=DeviceFacts(kind=kind), software=software, date="2026-11-20", operator=operator,
        error=error,
    )  # fmt: skip


def found(device: Measurement, paper: Measurement) -> FoundFacts:
    return find_facts([device], [paper], gpu=GPU, command="planner gpu-truth")


def sizes(device: Measurement, paper: Measurement) -> dict[str, tuple[int, int]] | None:
    """By kernel, its workspace and that of the first call; None where nothing is concluded."""
    facts = found(device, paper)
    return None if facts.unexplained else {each.request.kernel: (each.bytes, each.first_bytes) for each in facts.facts}


def test_what_the_device_has_allocated_at_a_known_place_is_the_workspace() -> None:
    device = line(forward=[4 * KIB, 64 * KIB, -64 * KIB])
    paper = line(kind="paper", forward=[4 * KIB], workspaces=[ask("forward", 1)])

    (fact,) = found(device, paper).facts
    assert (fact.bytes, fact.first_bytes, fact.gpu, fact.torch) == (64 * KIB, 64 * KIB, GPU, "2.11.0+cu130")
    assert (fact.driver, fact.date, fact.software) == ("580.1", "2026-11-20", {"cuda": "13.0", "cudnn": "91900"})


def test_none_is_known_too() -> None:
    paper = line(kind="paper", forward=[4 * KIB], workspaces=[ask("forward", 1)])

    assert sizes(line(forward=[4 * KIB]), paper) == {"cuDNN convolution, forward": (0, 0)}


def test_the_first_call_may_take_more() -> None:
    device = line(forward=[4 * KIB, 8 * KIB, -8 * KIB], first={"forward": [4 * KIB, 80 * KIB, -80 * KIB]})
    paper = line(kind="paper", forward=[4 * KIB], workspaces=[ask("forward", 1)])

    assert sizes(device, paper) == {"cuDNN convolution, forward": (8 * KIB, 80 * KIB)}


def test_several_in_one_part_each_have_their_place() -> None:
    device = line(backward=[2 * KIB, 9 * KIB, -9 * KIB, 3 * KIB, 7 * KIB, -7 * KIB])
    asked = [ask("backward", 1, kernel="of input"), ask("backward", 2, kernel="of weight")]
    paper = line(kind="paper", backward=[2 * KIB, 3 * KIB], workspaces=asked)

    assert sizes(device, paper) == {"of input": (9 * KIB, 9 * KIB), "of weight": (7 * KIB, 7 * KIB)}


def test_it_may_be_given_back_after_something_else_was_taken() -> None:
    device = line(forward=[4 * KIB, 64 * KIB, 2 * KIB, -64 * KIB, -2 * KIB])
    paper = line(kind="paper", forward=[4 * KIB, 2 * KIB, -2 * KIB], workspaces=[ask("forward", 1)])

    assert sizes(device, paper) == {"cuDNN convolution, forward": (64 * KIB, 64 * KIB)}


def test_an_estimate_gives_way_to_what_was_taken_in_its_place() -> None:
    asked = ask("backward", 1, taken=4 * KIB, kernel="attention")
    paper = line(kind="paper", backward=[2 * KIB, 4 * KIB, -4 * KIB], workspaces=[asked])

    assert sizes(line(backward=[2 * KIB, 6 * KIB, -6 * KIB]), paper) == {"attention": (6 * KIB, 6 * KIB)}


def test_what_is_kept_for_the_backward_is_read_off_as_well() -> None:
    paper = line(
        kind="paper", forward=[2 * KIB, 5 * KIB], backward=[KIB, -5 * KIB],
        workspaces=[ask("forward", 1, taken=5 * KIB, kernel="reserve")],
    )  # fmt: skip

    device = line(forward=[2 * KIB, 9 * KIB], backward=[KIB, -9 * KIB])
    assert sizes(device, paper) == {"reserve": (9 * KIB, 9 * KIB)}


def test_sequences_that_differ_otherwise_teach_nothing_and_are_named() -> None:
    paper = line(kind="paper", forward=[4 * KIB], workspaces=[ask("forward", 1)])
    other = line(forward=[4 * KIB, 64 * KIB, -64 * KIB, 2 * KIB])

    assert found(other, paper) == FoundFacts(facts=(), unexplained=("operator-conv",))


def test_what_failed_and_what_asks_for_nothing_is_left_out() -> None:
    asks = line(kind="paper", forward=[KIB], workspaces=[ask("forward", 1)])

    assert found(line(forward=[], error="no kernel"), asks) == FoundFacts(facts=(), unexplained=())
    assert found(line(forward=[KIB, KIB]), line(kind="paper", forward=[KIB])) == FoundFacts(facts=(), unexplained=())
