"""Settings of a spec that a real step has no trouble with are planned together."""

from __future__ import annotations

from typing import Any

import pytest

from planner.events import Mark, Phase
from planner.job.loading import load_document
from planner.planning.trace_source import USUAL_SOURCE

DECODER = {"layers": 4, "hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 128, "vocab": 256}
EAGER = {"backend": "aot_eager"}


@pytest.mark.parametrize(
    ("train", "parallel", "gpus", "phase"),
    [
        ({"activation_offload": True, "gradient_accumulation_steps": 4}, {"pp": 2}, 2, Phase.BACKWARD),
    ],
)
def test_they_are_traced(train: dict[str, Any], parallel: dict[str, Any], gpus: int, phase: Phase) -> None:
    job = load_document(
        {
            "model": {"decoder": DECODER},
            "train": {"micro_batch_size": 2, "sequence_length": 32, "optimizer": {"name": "AdamW"}, **train},
            "parallel": parallel,
            "cluster": {"nodes": 1, "gpus_per_node": gpus, "gpu": "A100-SXM-40GB"},
        }
    )

    events = USUAL_SOURCE.trace_rank(job, 0).written_out()

    assert phase in {event.phase for event in events if isinstance(event, Mark)}
