"""The folder of the campaign: few files of limited size, whole after every case, whatever ends the run.

`measurements.jsonl` (then `measurements-2.jsonl`, ...) has a line a case or operator, `snapshots.tar` the most useful
histories. Nothing else is ever put there: what is at work lies elsewhere.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from planner.units import MIB

MEASUREMENTS, SNAPSHOTS = "measurements", "snapshots.tar"
FILE_BYTES = 16 * MIB
"""A machine that is lent gives back files up to this size."""
MOST_FILES = 8
_SNAPSHOT_BYTES = 6 * MIB
"""So much of them is kept, smallest first: they go into the repository."""
_SPARE_BYTES = MIB // 2


class Results:
    """What was measured so far. Appending is for several threads."""

    def __init__(self, folder: Path, *, file_bytes: int = FILE_BYTES) -> None:
        self.folder, self._file_bytes = folder, file_bytes
        self._lock = threading.Lock()
        self.dropped = 0
        """Lines for which no file had room."""
        folder.mkdir(parents=True, exist_ok=True)
        _beside(folder / SNAPSHOTS).unlink(missing_ok=True)
        for path in self.files():
            _cut_broken_end(path)

    def files(self) -> list[Path]:
        """The files of measurements, in order."""
        return measurement_files(self.folder)

    def documents(self) -> Iterator[Mapping[str, Any]]:
        """Every line of them."""
        for path in self.files():
            for line in path.read_text(encoding="utf-8").splitlines():
                if line.strip():
                    yield json.loads(line)

    def finished(self) -> set[str]:
        """Cases with an answer."""
        return {str(each["case"]) for each in self.documents() if not each["error"]}

    def append(self, lines: str) -> None:
        """The lines of a case."""
        with self._lock:
            for line in lines.splitlines(keepends=True):
                self._append_line(line)

    def keep_snapshots(self, loose: Path) -> None:
        """Takes histories (`*.pickle.xz`) into the archive; of all the smallest, until it is large enough."""
        with self._lock:
            found = {path.name: path.read_bytes() for path in sorted(loose.glob("*.pickle.xz"))}
            if found:
                _write_archive(self.folder / SNAPSHOTS, {**read_snapshots(self.folder), **found})

    def _append_line(self, line: str) -> None:
        size = len(line.encode())
        room = self._file_bytes - _SPARE_BYTES
        for number in range(1, MOST_FILES):  # the histories have a file of their own
            path = _file(self.folder, number)
            if (path.stat().st_size if path.exists() else 0) + size <= room:
                with path.open("a", encoding="utf-8") as file:
                    file.write(line)
                return
        self.dropped += 1


def measurement_files(folder: Path) -> list[Path]:
    """The files of measurements in a folder, in order."""
    numbers = range(1, MOST_FILES + 1)
    return [path for number in numbers if (path := _file(folder, number)).exists()]


def read_snapshots(folder: Path) -> dict[str, bytes]:
    """The histories of the archive by the names of their files; none where it is not there."""
    path = folder / SNAPSHOTS
    if not path.exists():
        return {}
    with tarfile.open(path) as archive:
        members = ((each.name, archive.extractfile(each)) for each in archive)
        return {name: content.read() for name, content in members if content is not None and Path(name).name == name}


def _write_archive(path: Path, histories: Mapping[str, bytes]) -> None:
    """Beside its place first, so that it is whole at any moment."""
    fresh, total = _beside(path), 0
    with tarfile.open(fresh, "w") as archive:
        for name, content in sorted(histories.items(), key=lambda each: len(each[1])):
            total += len(content)
            if total > _SNAPSHOT_BYTES:
                break
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    fresh.replace(path)


def _beside(path: Path) -> Path:
    return path.with_suffix(".part")


def _file(folder: Path, number: int) -> Path:
    return folder / (f"{MEASUREMENTS}.jsonl" if number == 1 else f"{MEASUREMENTS}-{number}.jsonl")


def _cut_broken_end(path: Path) -> None:
    """A line that was being written when the run before was cut off."""
    if not path.exists():
        return
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)
