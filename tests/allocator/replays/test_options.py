"""Each option of PYTORCH_ALLOC_CONF: what it does to blocks and segments, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from planner.allocator.replay import replay
from planner.allocator.rules import Rules
from planner.errors import AllocatorConfError
from planner.events import Alloc, Event, Free
from planner.units import GIB, KIB, MIB


def blocks(rules: Rules, *sizes: int) -> list[int]:
    """The blocks handed out for these requests, none of them freed."""
    timeline = replay([Alloc(name, size) for name, size in enumerate(sizes)], rules)
    return [timeline.block_bytes[name] for name in range(len(sizes))]


def test_without_a_conf_the_rules_are_the_defaults() -> None:
    assert Rules.from_conf("") == Rules()


def test_white_space_and_a_last_comma_mean_nothing() -> None:
    assert Rules.from_conf(" max_split_size_mb : 40 , ") == replace(Rules(), max_split_bytes=40 * MIB)


def test_all_modelled_options_together() -> None:
    conf = (
        "expandable_segments:False,max_split_size_mb:64,max_non_split_rounding_mb:50,large_segment_size_mb:32,"
        "garbage_collection_threshold:0.8,per_process_memory_fraction:0.5,roundup_power2_divisions:4,backend:native"
    )

    assert Rules.from_conf(conf) == Rules(
        max_split_bytes=64 * MIB,
        max_non_split_rounding_bytes=50 * MIB,
        large_segment_bytes=32 * MIB,
        garbage_collection_threshold=0.8,
        per_process_memory_fraction=0.5,
        roundup_power2_divisions=(4,) * 16,
    )


def test_options_about_host_memory_are_accepted_and_named() -> None:
    rules = Rules.from_conf("pinned_use_background_threads:True,expandable_segments:True,pinned_num_register_threads:8")

    assert rules == Rules(expandable_segments=True)
    assert rules.without_effect == ("pinned_use_background_threads", "pinned_num_register_threads")


def test_roundup_divides_the_way_to_the_next_power_of_two() -> None:
    rules = Rules.from_conf("roundup_power2_divisions:4")

    assert blocks(rules, 1200 * KIB, 1280 * KIB, 1281 * KIB, 2 * MIB, 5 * MIB + 1) == [
        1280 * KIB,
        1280 * KIB,
        1536 * KIB,
        2 * MIB,
        6 * MIB,
    ]


def test_roundup_leaves_sizes_alone_that_512_bytes_divide_more_finely() -> None:
    assert blocks(Rules.from_conf("roundup_power2_divisions:4"), 1025, 2048, 2049) == [1536, 2048, 2560]


def test_roundup_takes_a_list_of_sizes_in_megabytes() -> None:
    rules = Rules.from_conf("roundup_power2_divisions:[256:1,512:2,>:4]")

    assert rules.roundup_power2_divisions == (1,) * 9 + (2,) + (4,) * 6
    assert [rules.round_size(size * MIB + 1) for size in (257, 513, 1025)] == [
        257 * MIB + 512,
        768 * MIB,
        1280 * MIB,
    ]


def test_large_segment_size_changes_the_segment_of_blocks_below_10_mib() -> None:
    timeline = replay([Alloc(0, 2 * MIB), Alloc(1, 12 * MIB)], Rules.from_conf("large_segment_size_mb:32"))

    assert list(timeline.reserved_bytes) == [32 * MIB, 32 * MIB]


def test_blocks_above_the_split_limit_are_not_cut_for_smaller_ones() -> None:
    events = [Alloc(0, 100 * MIB), Free(0), Alloc(1, 30 * MIB)]

    assert replay(events).peak_reserved_bytes == 100 * MIB
    assert replay(events, Rules.from_conf("max_split_size_mb:40")).peak_reserved_bytes == 130 * MIB


def test_blocks_above_the_split_limit_serve_requests_up_to_the_rounding() -> None:
    rules = Rules.from_conf("max_split_size_mb:40")
    near = replay([Alloc(0, 100 * MIB), Free(0), Alloc(1, 81 * MIB)], rules)
    far = replay([Alloc(0, 100 * MIB), Free(0), Alloc(1, 80 * MIB)], rules)

    assert (near.peak_reserved_bytes, near.block_bytes[1]) == (100 * MIB, 100 * MIB)
    assert (far.peak_reserved_bytes, far.block_bytes[1]) == (180 * MIB, 80 * MIB)


def test_under_pressure_uncut_blocks_go_back_first_and_only_as_many_as_are_needed() -> None:
    events: list[Event] = [Alloc(0, 60 * MIB), Alloc(1, 50 * MIB), Alloc(2, 20 * MIB), Free(0), Free(1), Free(2)]
    events.append(Alloc(3, 90 * MIB))

    limited = replay(events, Rules.from_conf("max_split_size_mb:40"), 180 * MIB)

    assert (limited.reserved_bytes[-1], limited.cache_releases) == (110 * MIB, 1)
    assert replay(events, Rules(), 180 * MIB).reserved_bytes[-1] == 90 * MIB


def test_garbage_collection_frees_what_was_not_used_for_long() -> None:
    conf = "garbage_collection_threshold:0.6,per_process_memory_fraction:0.9"
    events: list[Event] = [Alloc(0, 100 * MIB), Alloc(1, 200 * MIB), Alloc(2, 300 * MIB), Free(0)]
    events += [Free(1), Alloc(3, 200 * MIB), Free(3), Alloc(4, 250 * MIB)]

    without = replay(events, Rules.from_conf("per_process_memory_fraction:0.9"), GIB)
    collected = replay(events, Rules.from_conf(conf), GIB)

    assert without.reserved_bytes[-1] == 850 * MIB
    assert collected.reserved_bytes[-1] == 750 * MIB  # the 100 MiB were freed longer ago than the 200 MiB


def test_garbage_is_not_collected_without_a_fraction() -> None:
    events = [Alloc(0, 600 * MIB), Free(0), Alloc(1, 700 * MIB)]

    timeline = replay(events, Rules.from_conf("garbage_collection_threshold:0.5"), 2 * GIB)

    assert timeline.peak_reserved_bytes == 1300 * MIB


def test_the_fraction_limits_the_process_below_the_device() -> None:
    rules = Rules.from_conf("per_process_memory_fraction:0.25")

    timeline = replay([Alloc(0, 200 * MIB), Alloc(1, 100 * MIB)], rules, 900 * MIB, device_bytes=GIB)

    assert timeline.out_of_memory is not None
    assert timeline.out_of_memory.allowed_bytes == 256 * MIB
    assert "256.00 MiB allowed; " in timeline.out_of_memory.message()


REFUSED = {
    "max_split_size_mb:19": "max_split_size_mb: 19 is too small",
    "large_segment_size_mb:10": "large_segment_size_mb: 10 is too small",
    "large_segment_size_mb:40,max_split_size_mb:30": "max_split_size_mb: 30 is too small",
    "max_non_split_rounding_mb:5": "max_non_split_rounding_mb: 5 is too small",
    "roundup_power2_divisions:3": "roundup_power2_divisions: 3 is not a power of two",
    "roundup_power2_divisions:0": "roundup_power2_divisions: 0 is not a power of two",
    "roundup_power2_divisions:[100:2]": "roundup_power2_divisions: 100 is not a power of two",
    "roundup_power2_divisions:[256:1,512:2": "roundup_power2_divisions: the list '[256:1,512:2' does not end",
    "garbage_collection_threshold:1.0": "garbage_collection_threshold: 1.0 is not between 0 and 1",
    "garbage_collection_threshold:0": "garbage_collection_threshold: 0 is not between 0 and 1",
    "expandable_segments:true": "expandable_segments: 'true' is neither True nor False",
    "garbage_collection_threshold": "'garbage_collection_threshold' is not an option with a value",
}


@pytest.mark.parametrize(("conf", "problem"), REFUSED.items(), ids=REFUSED)
def test_what_torch_refuses_is_refused_with_the_option_named(conf: str, problem: str) -> None:
    with pytest.raises(AllocatorConfError) as refusal:
        Rules.from_conf(conf)

    assert refusal.value.problem == problem


def test_torch_itself_refuses_the_same() -> None:
    """Asks torch's own parser, in a process of its own because its settings stay."""
    torch = pytest.importorskip("torch")
    if not hasattr(torch._C, "_accelerator_setAllocatorSettings"):
        pytest.skip("this torch reads its settings once, when it starts")
    script = (
        "import sys, torch\n"
        "for conf in sys.argv[1:]:\n"
        "    try:\n"
        "        torch._C._accelerator_setAllocatorSettings('large_segment_size_mb:20')\n"
        "        torch._C._accelerator_setAllocatorSettings(conf)\n"
        "        print(conf)\n"
        "    except (ValueError, RuntimeError):\n"
        "        pass\n"
    )

    accepted = subprocess.run([sys.executable, "-c", script, *REFUSED], capture_output=True, text=True, check=True)

    assert accepted.stdout == ""


def test_the_asynchronous_backend_is_not_modelled() -> None:
    with pytest.raises(AllocatorConfError) as refusal:
        Rules.from_conf("backend:cudaMallocAsync")

    assert str(refusal.value) == (
        "PYTORCH_ALLOC_CONF: backend: 'cudaMallocAsync' is not modelled\n"
        "  allowed: native\n"
        "  change:  leave backend out; CUDA's own pool allocator follows rules that are not public"
    )


def test_an_unknown_option_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(AllocatorConfError) as refusal:
        Rules.from_conf("expandable_segment:True")

    assert refusal.value.problem == "'expandable_segment' is not an option of the allocator"
    assert refusal.value.remedy == "did you mean expandable_segments?"
