"""Native records of which stretches repeat, written once."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import pytest
import torch

import planner.paper as paper
from planner.allocator.replay import replay, replay_until_settled
from planner.events import Alloc, Event, Free, Repeat, write_out_repeats
from planner.paper.native_records import ALLOC, FREE, RECORD, Fold, Records, find_folds


def told(text: str) -> list[Event]:
    """`a5` allocates a block a of 5 KiB, `-a` gives up the latest block of this name, `|` is a cut."""
    events: list[Event] = []
    names: dict[str, int] = {}
    for word in text.split():
        if word.startswith("-"):
            events.append(Free(names[word[1:]]))
        elif word != "|":
            names[word[0]] = len(names) + 100 * len(events)
            events.append(Alloc(names[word[0]], int(word[1:]) << 10))
    return events


def folds(text: str) -> list[Fold]:
    rows = b""
    for event in told(text):
        if isinstance(event, Alloc):
            rows += RECORD.pack(ALLOC, 0, 0, 0, event.block, event.requested_bytes, -1, -1, 0)
        elif isinstance(event, Free):
            rows += RECORD.pack(FREE, 0, 0, 0, event.block, 0, -1, -1, 0)
    cuts, at = [], 0
    for word in text.split():
        cuts += [at] if word == "|" else []
        at += word != "|"
    return find_folds(Records(rows, []), cuts)


def spans(text: str) -> list[tuple[int, int, int, int]]:
    return [(each.first, each.after, each.end, each.times) for each in folds(text)]


def test_iterations_that_leave_nothing() -> None:
    assert spans("p9 | a1 b2 -a -b | a1 b2 -a -b | a1 b2 -a -b | c3") == [(1, 5, 13, 2)]


def test_what_one_leaves_the_next_gives_up() -> None:
    (fold,) = folds("| a1 b2 -b | c1 -a b2 -b | a1 -c b2 -b | c1 -a b2 -b")

    assert (fold.first, fold.after, fold.times) == (3, 7, 2)
    assert fold.heirs == ((0, 302),)


def test_what_is_given_up_two_iterations_later() -> None:
    assert [each.times for each in folds("| a1 | b1 | c1 -a | a1 -b | b1 -c | c1 -a | -b")] == [3]


def test_several_stretches_that_repeat_together() -> None:
    assert spans("a1 -a | b2 -b | a1 -a | b2 -b | a1 -a | b2 -b") == [(0, 4, 12, 2)]


@pytest.mark.parametrize(
    "text",
    [
        "| a1 | b1 | c1 | d1",  # every iteration leaves more
        "| a1 b2 -a -b | a1 b3 -a -b | a1 b2 -b -a a1 -a",  # sizes, and how many
        "a1 b1 c1 | -a | -b | -c",  # gives up what nobody takes again
    ],
)
def test_what_is_no_repetition(text: str) -> None:
    assert folds(text) == []


def test_frees_in_a_row_come_in_any_order() -> None:
    assert spans("a1 b2 -a -b | a1 b2 -b -a | a1 b2 -a -b") == [(0, 4, 12, 2)]


def test_heirs_are_passed_on_when_it_is_written_out() -> None:
    events = (Alloc(0, 512), Alloc(1, 512), Free(0), Alloc(2, 512), Free(2), Free(1))
    repeat = Repeat(1, 5, 2, heirs=((0, 1),))

    assert list(write_out_repeats(events, [repeat])) == [
        *events[:5],
        Alloc(3, 512), Free(1), Alloc(4, 512), Free(4),
        Alloc(5, 512), Free(3), Alloc(6, 512), Free(6),
        Free(5),
    ]  # fmt: skip


def written(events: Sequence[Event], repeats: Sequence[Repeat]) -> list[Event]:
    return list(write_out_repeats(events, repeats))


@pytest.mark.parametrize("times", [5, 6, 1001])
def test_two_states_in_turn_are_replayed_once(times: int) -> None:
    """An iteration takes its own before it gives up what the last has left: two places in turn."""
    events = (Alloc(0, 30 << 20), Alloc(1, 30 << 20), Free(0), Alloc(2, 5 << 20), Free(2), Alloc(9, 20 << 20), Free(1))
    repeats = [Repeat(1, 5, times, heirs=((0, 1),))]

    settled, whole = replay_until_settled(events, repeats), replay(written(events, repeats))

    assert len(settled.events) <= len(events) + 5 * 4
    assert settled.timeline.peak_reserved_bytes == whole.peak_reserved_bytes
    assert settled.timeline.reserved_bytes[-1] == whole.reserved_bytes[-1]
    assert settled.timeline.allocated_bytes[-1] == whole.allocated_bytes[-1]
    assert len(written(settled.events, settled.repeats)) == len(written(events, repeats))


@pytest.mark.parametrize("window", [1, 2, 4])
def test_what_lasts_for_longer_than_the_repetitions(window: int) -> None:
    """A running mean over the last few losses: each iteration gives up the oldest, and the others move up."""
    with paper.gpu("sm_90") as gpu:
        cuts, kept = [], deque[torch.Tensor]()
        for iteration in range(window + 2):
            cuts.append(gpu.recorder.now())
            kept.append(torch.empty(1000 + iteration // (window + 2), device="cuda"))
            if len(kept) > window:
                kept.popleft()
        last = gpu.recorder.now()
        events, repeats = gpu.recorder.repeating_events(last, cuts, cuts[1:])
        plain = [each for each in gpu.recorder.events(last) if isinstance(each, Alloc | Free)]

    assert [repeat.times for repeat in repeats] == [1]
    assert [each for each in written(events, repeats) if isinstance(each, Alloc | Free)] == plain
