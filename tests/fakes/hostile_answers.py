"""Answers of a program's process that planner's own side of it does not write."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

from planner.events import Alloc, Free, Mark, Origin, Phase, Role
from planner.events import Category as Kind
from planner.runtime.messages import FAULT, MEMORY, PROBLEM, Answer
from planner.tracing import rank_trace
from planner.tracing.program import rank_orders
from planner.tracing.program.assumptions import About, Assumption, Branch
from planner.tracing.program.rank_orders import RankRun
from planner.tracing.rank_trace import Trace

ORIGIN = Origin("aten.mm", "model.layers.0", (4, 4), "float32")
HONEST = RankRun(
    rank=0,
    trace=Trace(
        (Mark(Phase.FORWARD, 1), Alloc(0, 512, 0, ORIGIN), Role(0, Kind.ACTIVATION, "x"), Free(0)), seconds=1.5
    ),
    ending="ended after 3 iterations",
    iterations=3,
    seen={"eval": 1, "save": 0, "load": 0},
    counted={"max_allocated_bytes": 512, "max_reserved_bytes": 2 << 20, "resets": 0},
    assumptions=(Assumption(About.HOST, "a sentence", "t.py:1", 2),),
    communicators=(8,),
    talkers=((0, 4),),
    branches=(Branch("t.py:2", True),),
    memory_fraction=0.5,
    told={"stage 1": "[]", "broadcast [[0, 1], 0, 0]": "[-5, 7]"},
)
PARTS = {
    rank_orders.TRACE: rank_trace.dumps(HONEST.trace).encode(),
    rank_orders.ABOUT: rank_orders.write_report(HONEST),
}
_PIECES = (
    "null", "true", "-1", "1e999", "1e308", "NaN", "-Infinity", "9" * 5000, "2" * 25, '""', '"\\ud800"', '"\\u0000"',
    '"' + "x" * 300_000 + '"', "[]", "{}", "[" * 3000, "[" * 3000 + "]" * 3000, '{"a":' * 500 + "1" + "}" * 500,
    "[" + "1," * 20_000 + "1]", '"fits"', "0", "1.5", '{"rank": 0, "rank": 1}', '["x", 1]', "[[[]]]", '{"x": 1}',
)  # fmt: skip


def hostile_answers(count: int, seed: int = 0) -> Iterator[Answer]:
    """So many, the same for a seed."""
    chosen = random.Random(seed)
    known = list(_found_before())
    yield from known
    for _ in range(count - len(known)):
        yield chosen.choice((_with_piece, _with_piece, _with_bytes, _of_other_parts))(chosen)


def _found_before() -> Iterator[Answer]:
    about = json.loads(PARTS[rank_orders.ABOUT])
    for name, value in (
        ("ending", "x" * 20_000_000), ("iterations", 10**400), ("seen", {"eval": "many"}), ("rank", 3),
        ("memory_fraction", 1e9), ("memory_fraction", 0), ("allocator_conf", ["x"]), ("branches", [{"place": 1}]),
    ):  # fmt: skip
        yield Answer(parts={**PARTS, rank_orders.ABOUT: json.dumps({**about, name: value}).encode()})
    endless = PARTS[rank_orders.ABOUT].replace(b'"iterations": 3', b'"iterations": 1e999')
    yield Answer(parts={**PARTS, rank_orders.ABOUT: endless})
    yield Answer(parts={rank_orders.CRASH: json.dumps({"said": "x" * 10**7, "text": "y" * 10**7}).encode()})
    yield Answer(parts={rank_orders.CRASH: b"[" * 10**6})
    yield Answer(parts={FAULT: b"\xff" * 10**6}, exit_code=1)


def _with_piece(chosen: random.Random) -> Answer:
    """Something else in the place of a value."""
    part = chosen.choice((rank_orders.ABOUT, rank_orders.ABOUT, rank_orders.TRACE))
    text = PARTS[part].decode()
    places = [at for at, letter in enumerate(text) if letter in ":,["]
    at = chosen.choice(places) + 1
    end = min((found for mark in ",]}" if (found := text.find(mark, at)) >= 0), default=len(text))
    return Answer(parts={**PARTS, part: (text[:at] + chosen.choice(_PIECES) + text[end:]).encode()})


def _with_bytes(chosen: random.Random) -> Answer:
    part = chosen.choice(list(PARTS))
    content = bytearray(PARTS[part])
    for _ in range(chosen.randint(1, 5)):
        at = chosen.randrange(len(content) or 1)
        content[at : at + chosen.randint(0, 4)] = chosen.choice((b"", b"\xff", b"\0", b'"', b"[", b"1e9", b"\n"))
    return Answer(parts={**PARTS, part: bytes(content)})


def _of_other_parts(chosen: random.Random) -> Answer:
    kind = chosen.choice(
        ("planner.errors:TraceError", "planner.service.http.problems:RequestError", "x:y", "\ud800", "")
    )
    said = {"problem": chosen.choice(("x" * 10**5, "\ud800", "")), "allowed": "", "remedy": "", "place": ""}
    problem = {"kinds": [kind, "planner.errors:PlannerError"], "fields": {**said, "status": 599, "headers": {}}}
    others = {
        PROBLEM: json.dumps(problem).encode(), FAULT: b"Traceback\nKeyError: 1", MEMORY: b"",
        rank_orders.CRASH: chosen.choice((b"{}", b"null", b"\xff", json.dumps({"said": "\ud800", "text": 1}).encode())),
    }  # fmt: skip
    kept = {name: content for name, content in PARTS.items() if chosen.random() < 0.5}
    added = {name: content for name, content in others.items() if chosen.random() < 0.3}
    return Answer(
        parts={**kept, **added}, whole=chosen.random() < 0.8,
        exit_code=chosen.choice((0, 0, 1, -9)), last_lines=chosen.choice(((), ("\x1b[31m",), ("x" * 300,))),
    )  # fmt: skip
