"""Plans as a service answers them, and services that answer as a test wants."""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from planner.spec.bundle import bundle
from planner.spec.loading import load_document
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
    }


def a_plan(*classes: dict[str, Any], calibrated: bool = True, advice: Any = ()) -> dict[str, Any]:
    order = ("fits", "tight", "exceeds")
    return {
        "schema": "planner.plan/1",
        "plan_id": PLAN_ID,
        "trace_id": "0" * 64,
        "verdict": max((each["verdict"] for each in classes), key=order.index),
        "calibrated": calibrated,
        "job": bundle(load_document(JOB)),
        "rank_classes": list(classes),
        "advice": list(advice),
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

    def says(self, status: int, document: Any, **headers: str) -> None:
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.answers.append((status, {name.replace("_", "-"): value for name, value in headers.items()}, body))

    def knows(self, plan: dict[str, Any]) -> None:
        """A check, then the plan of it."""
        self.says(200, {"plan_id": plan["plan_id"], "verdict": plan["verdict"]})
        self.says(200, plan)


@pytest.fixture
def answering() -> Iterator[Answering]:
    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            found.asked.append(Asked(self.command, self.path, dict(self.headers), body))
            found.held.wait(20)
            status, headers, answer = found.answers.pop(0) if len(found.answers) > 1 else found.answers[0]
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_POST = do_PUT = answer  # noqa: N815  names of http.server

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = Answering(f"http://127.0.0.1:{server.server_port}")
    found.held.set()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield found
    found.held.set()
    server.shutdown()
    server.server_close()


@pytest.fixture
def plans() -> dict[str, dict[str, Any]]:
    return deepcopy({"fits": FITS, "tight": TIGHT, "exceeds": EXCEEDS, "exceeds, uncalibrated": EXCEEDS_UNCALIBRATED})


@pytest.fixture
def make_plan() -> Callable[..., dict[str, Any]]:
    return a_plan


@pytest.fixture
def make_rank_class() -> Callable[..., dict[str, Any]]:
    return rank_class


@pytest.fixture
def job_document() -> dict[str, Any]:
    return deepcopy(JOB)


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The service itself over a socket, without Ray."""
    path = Path(__file__).with_name("real_service.py")
    spec = importlib.util.spec_from_file_location("real_service", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    with module.serving(tmp_path_factory.mktemp("service")) as found:
        yield found


SMALL_GPU = """\
metadata: {{name: {name}, team: nlp}}
model: {{decoder: {{layers: 4, hidden: 256, heads: 4, kv_heads: 4, ffn: 1024, vocab: 8192}}}}
train: {{micro_batch_size: 16, sequence_length: 512}}
cluster: {{nodes: 1, gpus_per_node: 1, gpu: {{total_bytes: {gpu}, arch: sm_90}}}}
"""


@pytest.fixture
def job_file(tmp_path: Path) -> Callable[..., Path]:
    """A spec of a small job on a GPU of some size, in a folder of its own."""

    def write(name: str = "small", gpu: str = "80GiB", folder: Path = tmp_path) -> Path:
        path = folder / f"{name}.yaml"
        path.write_text(SMALL_GPU.format(name=name, gpu=gpu))
        return path

    return write
