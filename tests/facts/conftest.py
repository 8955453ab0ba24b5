"""Facts of a GPU that nobody has, small enough to write down."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planner.hardware.workspaces import WorkspaceFact, WorkspaceRequest, to_json

GPU = "H200-SXM-141GB"


@pytest.fixture
def fact() -> Callable[..., WorkspaceFact]:
    """A forward convolution of a batch of images took `size` bytes; `request` changes what was asked."""

    def build(
        size: int, *, batch: int = 32, first: int | None = None, request: Any = None, **changes: Any
    ) -> WorkspaceFact:
        given: dict[str, Any] = {
            "kernel": "cuDNN convolution, forward",
            "dtype": "bfloat16",
            "shapes": ((batch, 64, 56, 56), (64, 64, 3, 3)),
            "options": "padding=[1, 1]",
        }
        about: dict[str, Any] = {
            "gpu": GPU,
            "torch": "2.13.0+cu130",
            "driver": "580.1",
            "date": "2026-11-20T10:00:00+00:00",
            "command": "planner gpu-truth",
            "software": {"cudnn": "91900"},
        }
        return WorkspaceFact(
            request=WorkspaceRequest(**{**given, **(request or {})}),
            bytes=size,
            first_bytes=size if first is None else first,
            **{**about, **changes},
        )

    return build


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Puts a folder of facts in place: of workspaces, and lines of observations."""

    def put_in_place(*facts: WorkspaceFact, observations: list[dict[str, Any]] | None = None) -> Path:
        folder = tmp_path / "facts"
        folder.mkdir(exist_ok=True)
        (folder / "workspaces-h200.jsonl").write_text("".join(f"{json.dumps(to_json(each))}\n" for each in facts))
        lines = "".join(f"{json.dumps(each)}\n" for each in observations or ())
        (folder / "observations-h200.jsonl").write_text(lines)
        monkeypatch.setenv("PLANNER_FACTS", str(folder))
        return folder

    return put_in_place
