"""An empty folder to put files into, and the specs that are to come out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from importing_folder import Folder


@pytest.fixture(autouse=True)
def _environment_as_before() -> Iterator[None]:
    """TrainingArguments writes variables for accelerate into the process."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """An empty one."""
    return Folder(tmp_path)


@pytest.fixture
def golden() -> Callable[[str], str]:
    """The text of a file in tests/golden/imported."""
    return lambda name: (Path(__file__).parents[2] / "golden" / "imported" / name).read_text(encoding="utf-8")
