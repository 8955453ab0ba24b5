"""Plans as a service answers them, and services that answer as a test wants."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from quiet_server import QuietServer

from planner.job.loading import bundle, load_document
from planner.units import GIB

PLAN_ID = "pl-" + "a" * 26
JOB: dict[str, Any] = {
    "metadata": {"name": "sft", "team": "nlp", "queue": "h100"},
    "model": {"decoder": {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 4, "ffn": 128, "vocab": 256}},
    "train": {"micro_batch_size": 2, "sequence_length": 32},
    "cluster": {"nodes": 1, "gpus_per_node": 1, "gpu": "H100-SXM-80GB"},
}


def rank_class(needs: int, verdict: str, ranks: str = "0-7", capacity: int = 80 * GIB) -> dict[str, Any]:
    return {
        "representative": int(ranks.split("-")[0]),
        "ranks": ranks,
        "coordinates": {},
        "peak": {
            "phase": "optimizer_step",
            "iteration": 2,
            "allocated_bytes": needs - 3 * GIB,
            "reserved_bytes": needs - GIB,
            "device_bytes": needs,
            "interval_bytes": [needs - 2 * GIB, needs + 2 * GIB],
        },
        "capacity_bytes": capacity,
        "headroom_bytes": capacity - needs,
        "verdict": verdict,
        "cache_releases": 0,
        "at_peak": {},
        "phases": [],
        "outside_allocator": {"cuda_context_bytes": GIB, "nccl_bytes": 0},
        "holders": [],
    }


def a_plan(*classes: dict[str, Any], calibrated: bool = True, advice: Any = ()) -> dict[str, Any]:
    order = ("fits", "tight", "exceeds")
    return {
        "schema": "planner.plan/2",
        "plan_id": PLAN_ID,
        "trace_id": "0" * 64,
        "verdict": max((each["verdict"] for each in classes), key=order.index),
        "calibrated": calibrated,
        "job": bundle(load_document(JOB)),
        "gpu": "H100-SXM-80GB",
        "nodes": 1,
        "gpus_per_node": 8,
        "allocator_conf": "",
        "rank_classes": list(classes),
        "advice": list(advice),
        "provenance": dict.fromkeys(("planner", "torch", "allocator_rules", "catalog", "calibration"), "none"),
    }


ADVICE = [
    {"change": {"a.b": 1, "c": True}, "device_bytes": 70 * GIB, "verdict": "fits"},
    {"change": {"train.recompute": "selective"}, "device_bytes": 79 * GIB, "verdict": "tight"},
    {"change": {"train.recompute": "full"}, "device_bytes": 60 * GIB, "verdict": "fits"},
]
FITS = a_plan(rank_class(60 * GIB, "fits"))
TIGHT = a_plan(rank_class(79 * GIB, "tight"))
EXCEEDS = a_plan(rank_class(90 * GIB, "exceeds"), advice=ADVICE)
EXCEEDS_UNCALIBRATED = {**EXCEEDS, "calibrated": False}


@dataclass(frozen=True)
class Asked:
    """A request that arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class Answering:
    """A service of this test: the answers in their order, the last one for ever."""

    url: str
    answers: list[tuple[int, dict[str, str], bytes]] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    held: threading.Event = field(default_factory=threading.Event)
    """Set: requests are answered."""
    hangs_at: str = ""
    """From the first request to such a path on none is answered."""
    follows: dict[str, str] = field(default_factory=dict)
    """Paths that are answered only after a request to another one was."""

    answered: dict[str, threading.Event] = field(default_factory=lambda: defaultdict(threading.Event))
    """Set, by path, once a request was answered."""

    def says(self, status: int, document: Any, **headers: str) -> None:
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.answers.append((status, {name.replace("_", "-"): value for name, value in headers.items()}, body))

    def knows(self, plan: dict[str, Any]) -> None:
        """A check, then the plan of it."""
        self.says(200, {"plan_id": plan["plan_id"], "verdict": plan["verdict"]})
        self.says(200, plan)


@contextmanager
def answering_service() -> Iterator[Answering]:
    """One of them, over a socket."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            sent = self.rfile.read(length)
            packed = self.headers.get("Content-Type") == "application/gzip"
            body = sent if packed else json.loads(sent) if length else None
            found.asked.append(Asked(self.command, self.path, dict(self.headers), body))
            if found.hangs_at and self.path.startswith(found.hangs_at):
                found.held.clear()
            found.held.wait()
            if self.path in found.follows:
                found.answered[found.follows[self.path]].wait()
            status, headers, answer = found.answers.pop(0) if len(found.answers) > 1 else found.answers[0]
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)
            found.answered[self.path].set()

        do_GET = do_POST = do_PUT = do_PATCH = answer  # noqa: N815  names of http.server

        def log_message(self, *_: Any) -> None:
            pass

    server = QuietServer(("127.0.0.1", 0), Handler)
    found = Answering(f"http://127.0.0.1:{server.server_port}")
    found.held.set()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        found.held.set()
        server.shutdown()
        server.server_close()
