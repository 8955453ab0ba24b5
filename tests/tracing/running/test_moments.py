"""Phases and iterations that follow from what a program was seen to do."""

from __future__ import annotations

from planner.events import Phase
from planner.tracing.program.stopping import Kind, Moments

LETTERS = {"f": Kind.FORWARD, "e": Kind.EVAL, "b": Kind.BACKWARD, "a": Kind.ASIDE, "s": Kind.SAVE, "l": Kind.LOAD}


def seen(told: str) -> Moments:
    """One letter a moment, each at the next position; a digit is a step of that optimizer."""
    found = Moments()
    for position, letter in enumerate(told):
        if letter.isdigit():
            found.add(position, Kind.STEP, int(letter))
            found.add(position, Kind.STEPPED, int(letter))
        else:
            found.add(position, LETTERS[letter])
    return found


def phases(told: str) -> list[tuple[str, int]]:
    return [(phase.value, iteration) for _, phase, iteration in seen(told).phases()]


def test_a_step_ends_an_iteration() -> None:
    assert phases("fb1fb1") == [
        ("forward", 1), ("backward", 1), ("optimizer_step", 1), ("forward", 2), ("backward", 2), ("optimizer_step", 2),
    ]  # fmt: skip


def test_micro_batches_are_of_one_iteration() -> None:
    assert phases("fbfb1") == [("forward", 1), ("backward", 1)] * 2 + [("optimizer_step", 1)]


def test_two_optimizers_make_one_iteration() -> None:
    assert [iteration for _, iteration in phases("fb1fb2fb1fb2")] == [1] * 6 + [2] * 6
    assert seen("fb1fb2fb1fb2").iterations == 2


def test_an_optimizer_that_steps_more_often_than_another_counts() -> None:
    assert seen("fb1fb1fb2fb1").iterations == 3


def test_an_evaluation_belongs_to_the_iteration_before_it() -> None:
    assert phases("efb1e")[0] == ("eval", 0)
    assert phases("efb1e")[-1] == ("eval", 1)


def test_the_first_iteration_is_over_when_the_second_begins_to_step() -> None:
    assert [seen(told).iterations for told in ("fb", "fb1", "fb1fb", "fb1fb1")] == [0, 0, 0, 2]


def test_forwards_of_a_program_that_only_infers_are_its_iterations() -> None:
    found = seen("lefas")
    assert (found.trains, found.forwards) == (False, 3)

    found.infers = True

    assert [(phase.value, iteration) for _, phase, iteration in found.phases()] == [
        ("checkpoint_load", 0), ("forward", 1), ("forward", 2), ("forward", 3), ("checkpoint_save", 3),
    ]  # fmt: skip
    assert (found.evaluations(), found.moment_after(1), found.moment_after(3)) == (0, 2, None)


def test_what_follows_the_last_iteration_until_the_next_forward_belongs_to_it() -> None:
    found = seen("fb1fb1esfb1")

    assert found.log[found.moment_after(2) or 0].position == 8
    assert (found.count(Kind.EVAL, 8), found.count(Kind.SAVE, 8), found.count(Kind.SAVE, 6)) == (1, 1, 0)


def test_a_program_that_goes_no_further_has_no_end() -> None:
    assert seen("fb1").moment_after(1) is None


def test_a_checkpoint_that_is_loaded_is_a_phase() -> None:
    assert (Phase.CHECKPOINT_LOAD.value, 1) in phases("fb1lfb1")


def test_what_is_evaluated_between_two_steps_is_one_evaluation() -> None:
    assert seen("eeefb1fb1eefb1").evaluations() == 2
    assert seen("eeefb1fb1eefb1").evaluations(until=4) == 1


def test_forwards_beside_training_are_evaluations_unless_every_iteration_has_them() -> None:
    assert seen("afb1afb1afb1").evaluations() == 0
    assert seen("aafb1fb1fb1aafb1").evaluations() == 2


def test_a_checkpoint_in_parts_is_one() -> None:
    assert seen("fb1sssfb1ss").count(Kind.SAVE) == 2


def test_a_program_is_cut_where_its_forwards_begin() -> None:
    assert seen("efbfb1efb1").cuts(9) == [0, 1, 3, 6, 7]
    assert seen("b1b1").cuts(None) == [0, 2]
