"""The report on a terminal, as people see it. `UPDATE_GOLDEN=1` writes the golden files anew."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from planner.events import Phase
from planner.report.plan_text import render
from planner.report.statement import NamedMoment, Plan, Verdict
from planner.report.style import Style, size, style_of
from planner.report.verdict_text import verdict_sentences
from planner.units import GIB, KIB

GOLDEN = Path(__file__).parents[1] / "golden"
NOTES = ("CUDA context of H100, measured with torch 2.8 to 2.10: published.json nvidia_smi_overhead-0 to -42.",)


@pytest.mark.parametrize(
    ("name", "verdict", "style"),
    [
        ("report_fits", Verdict.FITS, Style(width=100)),
        ("report_tight_narrow", Verdict.TIGHT, Style(width=72)),
        ("report_exceeds_ascii", Verdict.EXCEEDS, Style(width=80, unicode=False)),
        ("report_exceeds_color", Verdict.EXCEEDS, Style(width=100, color=True)),
    ],
)
def test_the_report_reads_as_the_golden_file(
    plan: Callable[..., Plan], name: str, verdict: Verdict, style: Style
) -> None:
    text = render(replace(plan(verdict), notes=NOTES), style)

    golden = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


@pytest.mark.parametrize("width", [72, 80, 100, 120])
@pytest.mark.parametrize("unicode", [True, False])
@pytest.mark.parametrize("verdict", list(Verdict))
def test_no_line_is_wider_than_the_terminal(
    plan: Callable[..., Plan], width: int, unicode: bool, verdict: Verdict
) -> None:
    text = render(replace(plan(verdict), notes=NOTES), Style(width=width, unicode=unicode))

    assert max(map(len, text.splitlines())) <= width


def test_colours_change_nothing_but_colours(plan: Callable[..., Plan]) -> None:
    plain, colored = (render(plan(Verdict.TIGHT), Style(color=color)) for color in (False, True))

    assert re.sub(r"\x1b\[[\d;]*m", "", colored) == plain


def test_an_uncalibrated_plan_says_so_and_a_calibrated_one_names_its_calibration(plan: Callable[..., Plan]) -> None:
    uncalibrated = plan()
    calibrated = replace(
        uncalibrated, calibrated=True, provenance=replace(uncalibrated.provenance, calibration="h100-2025-11")
    )

    assert "Uncalibrated: nothing was measured" in render(uncalibrated, Style())
    assert "uncalibrated" not in render(calibrated, Style()).lower()
    assert "calibration h100-2025-11" in render(calibrated, Style())


def test_a_holder_without_a_module_is_called_by_its_operator_once(plan: Callable[..., Plan]) -> None:
    first = plan().rank_classes[0]
    holder = replace(first.holders[0], module="", op="aten._foreach_sqrt")

    text = render(replace(plan(), rank_classes=(replace(first, holders=(holder,)),)), Style())

    assert text.count("aten._foreach_sqrt") == 1


@pytest.mark.parametrize("step", [2, 100_000])
@pytest.mark.parametrize("heads", ["phase", "moments when jobs die"])
def test_figures_stand_below_their_heads_at_any_step(plan: Callable[..., Plan], step: int, heads: str) -> None:
    whole = plan()
    (first,) = whole.rank_classes
    late = tuple(replace(each, iteration=each.iteration and each.iteration + step - 2) for each in first.phases)
    moment = NamedMoment(
        name="a save of full_state_dict", phase=Phase.OPTIMIZER_STEP, iteration=step, allocated_bytes=GIB,
        reserved_bytes=GIB, device_bytes=GIB, sentence="Said.",
    )  # fmt: skip
    text = render(replace(whole, rank_classes=(replace(first, phases=late, moments=(moment,)),)), Style())

    head, *rows = text[text.index(f"  {heads} ") :].split("\n\n")[0].splitlines()
    figures = [[found.end() for found in re.finditer("GiB", row)] for row in rows if "GiB" in row]
    names = [found.end() for found in re.finditer(r"allocated|reserved|at its end|device", head)]
    assert figures == [names] * len(figures)


def _worded(plan: Plan, **changes: object) -> list[str]:
    return verdict_sentences(replace(plan, rank_classes=(replace(plan.rank_classes[0], **changes),)))


def test_the_verdict_is_said_in_words(plan: Callable[..., Plan]) -> None:
    fits, tight, exceeds = plan(), plan(Verdict.TIGHT), plan(Verdict.EXCEEDS)

    assert _worded(fits) == ["Fits: ranks 0-7 need 66.58 GiB, 79.10 GiB available (H100-SXM-80GB)."]
    assert _worded(tight) == [
        "Fits narrowly: ranks 0-7 need 66.58 GiB, 70.00 GiB available (H100-SXM-80GB), but 71.58 GiB may be needed."
    ]
    assert _worded(tight, cache_releases=3) == [
        "Fits narrowly: ranks 0-7 need 66.58 GiB, 70.00 GiB available (H100-SXM-80GB), only if the allocator frees its"
        " cache 3 times, which slows training."
    ]
    assert _worded(exceeds) == ["Does not fit: ranks 0-7 need 66.58 GiB, 39.38 GiB available (H100-SXM-80GB)."]
    assert _worded(exceeds, capacity_bytes=67 * GIB, ranks="3") == [
        "Does not fit: rank 3 runs out of 67.00 GiB (H100-SXM-80GB) because free memory is fragmented."
    ]


def test_the_report_begins_with_the_verdict_the_smallest_change_and_how_sure_it_is(plan: Callable[..., Plan]) -> None:
    exceeds = plan(Verdict.EXCEEDS)

    assert render(exceeds, Style(width=120)).splitlines()[:3] == [
        *verdict_sentences(exceeds),
        "Smallest change: parallel.dp_replicate.gradient_as_bucket_view: true → 36.00 GiB.",
        "Uncalibrated: nothing was measured on this GPU and torch; 19 of 20 jobs of this kind stayed below 71.58 GiB.",
    ]


def test_only_a_verbose_report_says_where_its_figures_come_from(plan: Callable[..., Plan]) -> None:
    noted = replace(plan(), notes=("Not counted: cuFFT.",), sources=("CUDA context: measured.",))
    short, long = (render(noted, Style(), verbose=verbose) for verbose in (False, True))

    assert "Not counted: cuFFT." in short
    assert set(long.splitlines()) - set(short.splitlines()) == {"CUDA context: measured."}


class _Terminal(io.StringIO):
    encoding = "UTF-8"

    def isatty(self) -> bool:
        return True


def test_colours_are_for_terminals_without_no_color() -> None:
    assert style_of(_Terminal(), {"TERM": "xterm"}, 90) == Style(width=90, unicode=True, color=True)
    assert style_of(_Terminal(), {"NO_COLOR": "1"}, 500) == Style(width=120, unicode=True, color=False)
    assert style_of(_Terminal(), {"TERM": "dumb"}, 20) == Style(width=72, unicode=True, color=False)
    assert style_of(io.TextIOWrapper(io.BytesIO(), encoding="ascii"), {}, 80) == Style(width=80, unicode=False)


def test_sizes_are_gib_until_gib_would_show_nothing() -> None:
    assert [size(count) for count in (0, 512, 200 * KIB, GIB // 50, 3 * GIB)] == [
        "0.00 GiB", "512 B", "200.00 KiB", "0.02 GiB", "3.00 GiB",
    ]  # fmt: skip


def test_iterations_that_are_alike_are_shown_once(plan: Callable[..., Plan]) -> None:
    whole = plan()
    (first,) = whole.rank_classes
    second = [each for each in first.phases if each.iteration == 2]
    more = [replace(each, iteration=number) for number in (3, 4, 40) for each in second]
    other = [replace(each, iteration=41, end_allocated_bytes=1) for each in second]

    text = render(replace(whole, rank_classes=(replace(first, phases=(*first.phases, *more, *other)),)), Style())

    assert "and so until iteration 40" in text
    assert [number for number in range(1, 42) if f"iteration {number} " in text] == [1, 2, 41]


def test_of_many_iterations_the_first_the_last_and_that_of_the_peak_are_shown(plan: Callable[..., Plan]) -> None:
    whole = plan()
    (first,) = whole.rank_classes
    loaded = [each for each in first.phases if not each.iteration]
    like = next(each for each in first.phases if each.iteration == 2)
    many = [replace(like, iteration=number, end_allocated_bytes=number) for number in range(1, 31)]
    grown = replace(first, phases=(*loaded, *many), peak=replace(first.peak, iteration=20))

    lines = render(replace(whole, rank_classes=(grown,)), Style()).splitlines()

    shown = [
        line.split()[1] if "iteration " in line[:12] else line.strip() for line in lines if "iteration" in line[:35]
    ]
    assert shown == ["1", "2", "3", "16 iterations between", "20", "8 iterations between", "29", "30"]


def test_of_many_rank_classes_the_one_that_decides_is_shown_and_a_line_of_each_other(plan: Callable[..., Plan]) -> None:
    whole = plan()
    (first,) = whole.rank_classes
    lower = replace(first.peak, device_bytes=first.peak.device_bytes - GIB)
    stages = [
        replace(first, representative=8 * stage, ranks=f"{8 * stage}-{8 * stage + 7}", peak=lower) for stage in range(8)
    ]
    stages[5] = replace(stages[5], peak=first.peak, verdict=Verdict.TIGHT)
    several = replace(whole, rank_classes=tuple(stages))

    short, whole_text = (render(several, Style(width=100), verbose=verbose) for verbose in (False, True))

    titles = [line for line in short.splitlines() if ", like rank " in line]
    assert [title.partition(",")[0] for title in titles] == ["ranks 40-47"]
    rows = [line for line in short.splitlines() if line.startswith("  ranks ")]
    assert [row.split() for row in rows] == [
        ["ranks", each.ranks, *size(lower.allocated_bytes).split(), *size(lower.reserved_bytes).split(),
         *size(lower.device_bytes).split()]
        for each in stages if each is not stages[5]
    ]  # fmt: skip
    assert len(short.splitlines()) < len(render(whole, Style(width=100)).splitlines()) + 12
    assert whole_text.count(", like rank ") == 8
