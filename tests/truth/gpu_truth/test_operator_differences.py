"""Operators on a device beside the same on paper: alike, different by how much it could matter, or not comparable."""

from __future__ import annotations

from typing import Any

from gpu_truth.operator_differences import OperatorDifference, compare_operators, render
from planner.truth.measuring.measurement_lines import DeviceFacts, Measurement


def measured(name: str, **sample: Any) -> Measurement:
    whole = {"dtype": "float32", "number": 0, "inputs": [[[8], "float32"]], **sample}
    operator = {"name": name, "samples": [whole]}
    return Measurement(
        case=f"opinfo-{name}", job={}, device=DeviceFacts(kind="cuda"), software={}, date="", operator=operator
    )


def test_sizes_that_round_to_the_same_blocks_are_alike() -> None:
    found = compare_operators([measured("abs", forward=[32, 0])], [measured("abs", forward=[500])])

    assert (found.alike, found.differences) == (("abs",), ())


def test_the_largest_share_of_what_a_sample_takes_comes_first() -> None:
    device = [
        measured("small", forward=[4096], backward=[512, -512]),
        measured("large", forward=[1024, 1024, -1024]),
    ]
    paper = [measured("small", forward=[4096], backward=[]), measured("large", forward=[1024])]
    found = compare_operators(device, paper)

    assert found.differences == (
        OperatorDifference(
            operator="large", dtype="float32", sample=0, part="forward",
            device=(1024, 1024, -1024), paper=(1024,), bytes=1024, share=0.5,
        ),
        OperatorDifference(
            operator="small", dtype="float32", sample=0, part="backward",
            device=(512, -512), paper=(), bytes=512, share=512 / (4096 + 512),
        ),
    )  # fmt: skip
    assert render(found).splitlines()[1] == (
        "  large (float32, sample 0, forward): 1024 B, 50% of its tensors; device [+1024 +1024 -1024], paper [+1024]"
    )


def test_the_same_blocks_in_another_order_differ_by_nothing() -> None:
    (found,) = compare_operators(
        [measured("mul", forward=[512, 1024])], [measured("mul", forward=[1024, 512])]
    ).differences

    assert (found.bytes, found.share) == (0, 0.0)


def test_what_runs_on_one_side_only_is_named_with_its_error() -> None:
    found = compare_operators([measured("lu", forward=[512])], [measured("lu", error="TraceError: a value")])

    assert (found.refused, found.alike) == ({"lu": "paper: TraceError: a value"}, ())


def test_other_inputs_and_operators_of_one_side_are_not_compared() -> None:
    device = [measured("abs", forward=[512]), measured("new", forward=[512])]
    paper = [measured("abs", inputs=[[[9], "float32"]], forward=[512])]

    assert compare_operators(device, paper).not_compared == ("abs", "new")


def test_of_an_operator_that_was_measured_twice_the_last_counts() -> None:
    device = [measured("abs", forward=[512]), measured("abs", forward=[1024])]

    assert compare_operators(device, [measured("abs", forward=[1024])]).alike == ("abs",)
