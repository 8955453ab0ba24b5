"""What a child writes behind an overlay is gone with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
CHILD = """
import os, sys
sys.path.append(sys.argv[1])
from pathlib import Path
from planner.runtime.overlay import OverlayError, discard_writes
folder, kept = Path(sys.argv[2]), Path(sys.argv[3])
os.chdir(folder)
try:
    discard_writes(64 << 20, kept=(kept,))
except OverlayError as error:
    print(error)
    raise SystemExit(9)
Path("old.txt").write_text("changed")
Path("new.txt").write_text("new")
(kept / "kept.txt").write_text("kept")
os.truncate("new.txt", 1 << 40)
assert Path("old.txt").read_text() == "changed" and os.getcwd() == str(folder)
try:
    Path("full.bin").write_bytes(bytes(65 << 20))
except OSError as error:
    print(error.strerror)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    made.mkdir()
    (made / "old.txt").write_text("old")
    return made


def test_files_are_as_before(folder: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()

    ended = subprocess.run(
        [sys.executable, "-c", CHILD, str(REPOSITORY), str(folder), str(kept)],
        capture_output=True,
        text=True,
        check=False,
    )

    if ended.returncode == 9:
        pytest.skip(f"no overlay here: {ended.stdout}")
    assert (ended.returncode, ended.stdout.strip()) == (0, os.strerror(28)), ended.stderr
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"old.txt": "old"}
    assert (kept / "kept.txt").read_text() == "kept"
