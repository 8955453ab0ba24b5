"""Children of tests: their program lies in a folder that they may read."""

from __future__ import annotations

import shutil
from pathlib import Path

import child_programs
import pytest


@pytest.fixture
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the program, which everybody may read."""
    folder = tmp_path_factory.mktemp("programs")
    folder.chmod(0o755)
    shutil.copy(child_programs.__file__, folder)
    return folder


@pytest.fixture
def at_hand(programs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As `programs`, and children of this process find it."""
    monkeypatch.setenv("PYTHONPATH", str(programs))
    return programs
