"""Steps of two folders side by side: a device beside paper, or one torch beside another."""

from __future__ import annotations

from gpu_truth.step_differences import StepDifference, compare_steps, render_steps
from planner.events import Phase
from planner.truth.measuring.measurement_lines import DeviceFacts, Levels, MeasuredPhase, Measurement


def step(case: str, *, allocated: int, reserved: int, error: str = "") -> Measurement:
    """Of two phases with the same peak."""
    peak = Levels(allocated_bytes=allocated, reserved_bytes=reserved)
    return Measurement(
        case=case,
        job={"schema": "planner.bundle/1"},
        device=DeviceFacts(kind="cuda"),
        software={"torch": "2.13.0"},
        date="2026-01-02T03:04:05+00:00",
        phases=tuple(
            MeasuredPhase(phase=phase, iteration=number, peak=peak, end=peak)
            for number, phase in enumerate((Phase.LOAD, Phase.FORWARD))
        ),
        error=error,
    )


def test_the_figures_that_both_have_are_compared_by_case() -> None:
    here = [
        step("gpt2", allocated=100, reserved=200),
        step("only-here", allocated=1, reserved=1),
    ]
    there = [
        step("gpt2", allocated=110, reserved=200),
        step("gpt2-2", allocated=1, reserved=1),
    ]

    assert compare_steps(here, there) == (
        StepDifference(case="gpt2", figure="allocated", here=100, there=110),
        StepDifference(case="gpt2", figure="reserved", here=200, there=200),
    )


def test_what_failed_is_not_compared() -> None:
    here = [step("gpt2", allocated=100, reserved=200)]

    assert compare_steps(here, [step("gpt2", allocated=1, reserved=1, error="no kernel")]) == ()


def test_each_figure_has_its_median_and_worst_and_steps_that_differ_are_named() -> None:
    here = [step(name, allocated=1000, reserved=2000) for name in ("bert", "gpt2", "vit")]
    there = [
        step("bert", allocated=1000, reserved=2000),
        step("gpt2", allocated=1010, reserved=2000),
        step("vit", allocated=900, reserved=2000),
    ]

    assert render_steps(compare_steps(here, there)).splitlines() == [
        "allocated bytes of 3 steps: median 1.00% apart, worst 10.00% (vit), 1 the same",
        "reserved bytes of 3 steps: median 0.00% apart, worst 0.00% (vit), 3 the same",
        "  vit: allocated 1,000 and 900 B, -10.00%",
        "  gpt2: allocated 1,000 and 1,010 B, +1.00%",
    ]
    assert render_steps(()) == ""
