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
        ("sm_100", "2.10", 8_519_680),  # published runs on B200: docs/accuracy.md
        ("sm_100", "2.13", 32 * MIB),
        ("sm_100", "", 32 * MIB),
    ],
)
def test_the_workspace_of_cublas(arch: str, torch: str, workspace_bytes: int) -> None:
    assert target_of(arch, torch).workspace_bytes == workspace_bytes
