"""What hinges on the architecture and on the torch of the job."""

from __future__ import annotations

import pytest

from planner.paper.targets import target_of
from planner.units import MIB


@pytest.mark.parametrize(
    ("arch", "torch", "workspace_bytes"),
    [
        ("sm_80", "", 8_519_680),
        ("sm_90", "2.6", 32 * MIB),
        ("sm_100", "2.10", 8_519_680),  # published runs on B200: docs/results/accuracy.md
        ("sm_100", "2.13", 32 * MIB),
        ("sm_100", "", 32 * MIB),
        ("sm_103", "2.13", 32 * MIB),
        ("sm_60", "2.13", 8_519_680),
        ("gfx90a", "", 32 * MIB),
        ("gfx942", "", 128 * MIB),
    ],
)
def test_the_workspace_of_cublas(arch: str, torch: str, workspace_bytes: int) -> None:
    assert target_of(arch, torch).workspace_bytes == workspace_bytes


@pytest.mark.parametrize(
    ("arch", "cuda", "torch", "prefers"),
    [
        ("sm_90", "12.8", "2.8", False),
        ("sm_90", "12.8", "2.9", True),
        ("sm_90", "12.8", "2.10", False),  # its cuDNN is too old
        ("sm_90", "13.0", "2.10", True),
        ("sm_100", "13.0", "2.13", True),
        ("sm_103", "13.0", "2.9", False),
        ("sm_103", "13.0", "2.13", True),
        ("gfx90a", "", "2.13", False),
        ("sm_80", "13.0", "2.13", False),
        ("sm_120", "13.0", "2.13", False),
    ],
)
def test_whose_attention_comes_first(arch: str, cuda: str, torch: str, prefers: bool) -> None:
    assert target_of(arch, torch).prefers_cudnn_attention(cuda, torch) is prefers
