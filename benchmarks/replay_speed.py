"""Events a second of a replay with ten thousand free blocks around, and whether it is linear in the events.

Run: python benchmarks/replay_speed.py
"""

from __future__ import annotations

import gc
import random
import time

from planner.allocator.replay import Replay
from planner.allocator.rules import Rules
from planner.events import Alloc, Event, Free
from planner.units import MIB

FREE_BLOCKS = 10_000
COUNTS = (100_000, 200_000, 400_000)


def surroundings(generator: random.Random) -> list[Event]:
    """Blocks of which every second one is given up: free blocks that cannot join; more, as some rests fill up again."""
    count = 27 * FREE_BLOCKS // 10
    events: list[Event] = [Alloc(-1 - name, generator.randrange(512, 8 * MIB)) for name in range(count)]
    return events + [Free(-1 - name) for name in range(0, count, 2)]


def churn(generator: random.Random, count: int) -> list[Event]:
    """Allocations of a training step's few dozen sizes, about a thousand of them alive at a time."""
    sizes = [generator.randrange(512, 8 * MIB) for _ in range(60)]
    events: list[Event] = []
    live: list[int] = []
    name = 0
    while len(events) < count:
        if len(live) < 1000:
            events.append(Alloc(name, generator.choice(sizes)))
            live.append(name)
            name += 1
        else:
            events.append(Free(live.pop(generator.randrange(len(live)))))
    return events


def measure(count: int, rules: Rules) -> tuple[float, int]:
    """Processor seconds for `count` events, and the free blocks around before them."""
    generator = random.Random(7)
    run = Replay(rules)
    run.feed(surroundings(generator))
    free = sum(block.free for block in run.allocator.blocks())
    events = churn(generator, count)
    gc.collect()
    start = time.process_time()
    run.feed(events)
    return time.process_time() - start, free


def main() -> None:
    for name, rules in (("default rules", Rules()), ("expandable segments", Rules(expandable_segments=True))):
        print(f"{name}:")
        first = 0.0
        for count in COUNTS:
            seconds, free = min(measure(count, rules) for _ in range(3))
            first = first or seconds / count
            print(
                f"  {count:>7} events, {free} free blocks around: {count / seconds:>9,.0f} events/s, "
                f"time per event {seconds / count / first:.2f} of the first row's"
            )


if __name__ == "__main__":
    main()
