"""Which case of the campaign is begun next: the most valuable one that can end in time."""

from __future__ import annotations

import pytest

from gpu_truth.campaign import choose_next
from gpu_truth.matrix import COMPILED, GROUP_SECONDS, STEPS, Case

COSTLY = Case(name="costly", group=COMPILED)
ALONE = Case(name="alone", group=STEPS, alone=True)
FIRST, SECOND = (Case(name=name, group=STEPS) for name in ("first", "second"))
LONG, SHORT = GROUP_SECONDS[COMPILED], GROUP_SECONDS[STEPS]


@pytest.mark.parametrize(
    ("waiting", "running", "seconds", "chosen"),
    [
        ([FIRST, SECOND], [], SHORT, FIRST),
        ([FIRST, SECOND], [COSTLY], SHORT, FIRST),
        ([FIRST], [COSTLY, SECOND], SHORT, None),  # both slots are taken
        ([COSTLY, FIRST], [], LONG, COSTLY),
        ([COSTLY, FIRST], [], LONG - 1, FIRST),  # the shorter one takes its place
        ([COSTLY, FIRST], [], SHORT - 1, None),
        ([ALONE, FIRST], [], SHORT, ALONE),
        ([ALONE, FIRST], [SECOND], SHORT, None),  # who is worth less waits behind it
        ([ALONE, FIRST], [SECOND], SHORT - 1, None),
        ([FIRST], [ALONE], SHORT, None),
        ([], [], LONG, None),
    ],
)
def test_the_most_valuable_that_ends_in_time_is_begun(
    waiting: list[Case], running: list[Case], seconds: float, chosen: Case | None
) -> None:
    assert choose_next(waiting, running, 2, seconds) == chosen
