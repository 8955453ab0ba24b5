"""Attribution: the peak taken apart to the byte."""

from __future__ import annotations

from planner.allocator.replay import replay
from planner.events import Category, Origin, Phase, Role
from planner.report.attribution import attribute, state_phases
from planner.report.statement import Holder, PhaseStatement


def _only(**sizes: int) -> dict[Category, int]:
    return {category: sizes.get(category.value, 0) for category in Category}


def test_every_byte_of_the_peak_has_a_category_slack_included(training) -> None:
    timeline = replay(training)

    found = attribute(training, timeline)

    # The second forward: two parameters, two states, one saved activation, the next with its scratch.
    assert (found.phase, found.iteration) == (Phase.FORWARD, 2)
    assert found.at_peak == _only(parameter=2048, optimizer_state=2048, activation=4096, temporary=3072)
    assert sum(found.at_peak.values()) == max(timeline.allocated_bytes)


def test_holders_are_grouped_and_the_largest_comes_first(training) -> None:
    found = attribute(training, replay(training))

    def holder(size: int, category: Category, module: str, op: str, shape: tuple[int, ...]) -> Holder:
        return Holder(bytes=size, category=category, module=module, op=op, shape=shape, dtype="float32")

    assert found.holders == (
        holder(3072, Category.TEMPORARY, "layers.1", "aten.mul", (750,)),
        holder(2048, Category.ACTIVATION, "layers.0", "aten.mm", (500,)),
        holder(2048, Category.ACTIVATION, "layers.1", "aten.mm", (500,)),
        holder(1024, Category.OPTIMIZER_STATE, "layers.0.weight", "aten.zeros_like", (250,)),
        holder(1024, Category.OPTIMIZER_STATE, "layers.1.weight", "aten.zeros_like", (250,)),
        holder(1024, Category.PARAMETER, "layers.0", "aten.empty", (250,)),
        holder(1024, Category.PARAMETER, "layers.1", "aten.empty", (250,)),
    )


def test_two_blocks_of_one_kind_are_one_holder_with_a_count(script) -> None:
    for _ in range(3):
        script.alloc(700, Origin("aten.mm", "head", (175,), "float32"))

    (holder,) = attribute(script.events, replay(script.events)).holders

    assert (holder.bytes, holder.count) == (3 * 1024, 3)


def test_the_latest_role_up_to_the_peak_wins(script) -> None:
    gradient = script.alloc(512)
    script.role(gradient, Category.GRADIENT)
    script.role(gradient, Category.BUCKET)
    peak = script.alloc(4096)
    script.free(peak)
    script.role(gradient, Category.OTHER)

    assert attribute(script.events, replay(script.events)).at_peak == _only(bucket=512, temporary=4096)


def test_a_role_placed_right_after_the_birth_counts_from_birth(script) -> None:
    script.alloc(512)
    workspace = script.alloc(4096)
    script.role(workspace, Category.WORKSPACE)
    script.free(workspace)

    assert attribute(script.events, replay(script.events)).at_peak == _only(temporary=512, workspace=4096)


def test_what_is_born_in_forward_and_outlives_it_is_an_activation_everything_else_temporary(script) -> None:
    script.phase(Phase.LOAD)
    script.alloc(512)
    script.phase(Phase.FORWARD, 1)
    saved, scratch = script.alloc(1024), script.alloc(2048)
    script.free(scratch)
    script.phase(Phase.BACKWARD, 1)
    script.alloc(8192)
    script.free(saved)

    assert attribute(script.events, replay(script.events)).at_peak == _only(activation=1024, temporary=512 + 8192)


def test_roles_of_blocks_that_never_were_are_ignored(script) -> None:
    script.events.append(Role(99, Category.PARAMETER))
    script.alloc(512)

    assert attribute(script.events, replay(script.events)).at_peak == _only(temporary=512)


def test_no_events_hold_nothing() -> None:
    found = attribute([], replay([]))

    assert (found.phase, found.iteration, found.at_peak, found.holders) == (Phase.LOAD, 0, _only(), ())


def test_phases_of_an_iteration_are_merged_over_its_micro_batches(script) -> None:
    script.phase(Phase.LOAD)
    script.alloc(512)
    script.phase(Phase.FORWARD, 1)
    first = script.alloc(1024)
    script.phase(Phase.BACKWARD, 1)
    script.free(first)
    script.phase(Phase.FORWARD, 1)
    second = script.alloc(4096)
    script.phase(Phase.BACKWARD, 1)
    last = script.alloc(512)
    script.free(second, last)

    reserved = 2 * 2**20
    assert state_phases(script.events, replay(script.events)) == (
        PhaseStatement(
            phase=Phase.LOAD, iteration=0,
            peak_allocated_bytes=512, peak_reserved_bytes=reserved, end_allocated_bytes=512,
        ),
        PhaseStatement(
            phase=Phase.FORWARD, iteration=1,
            peak_allocated_bytes=4608, peak_reserved_bytes=reserved, end_allocated_bytes=4608,
        ),
        PhaseStatement(
            phase=Phase.BACKWARD, iteration=1,
            peak_allocated_bytes=5120, peak_reserved_bytes=reserved, end_allocated_bytes=512,
        ),
    )  # fmt: skip


def test_events_before_the_first_mark_belong_to_the_loading(script) -> None:
    script.alloc(512)
    script.phase(Phase.FORWARD, 1)

    assert [(each.phase, each.iteration) for each in state_phases(script.events, replay(script.events))] == [
        (Phase.LOAD, 0),
        (Phase.FORWARD, 1),
    ]
