"""Services for the hooks to ask: one that answers as a test wants, and the real one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from answering import EXCEEDS, EXCEEDS_UNCALIBRATED, FITS, JOB, TIGHT, Answering, a_plan, answering_service, rank_class
from real_service import RealService, serving


@pytest.fixture
def answering() -> Iterator[Answering]:
    with answering_service() as found:
        yield found


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
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealService]:
    """The service itself over a socket, without Ray."""
    with serving(tmp_path_factory.mktemp("service")) as found:
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
