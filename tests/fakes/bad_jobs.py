"""Faulty jobs from a table: what is changed of a small job, or its whole text, and the message that it ends in."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

TABLES = Path(__file__).parents[1] / "job" / "bad_specs"
_POSITION = re.compile(r"^[\w./-]+?(:\d+:\d+)?: ")


@dataclass(frozen=True)
class BadJob:
    """A job with a fault. `says` has the file and the position only where `text` is the whole file."""

    name: str
    says: str
    change: Mapping[str, Any]
    text: str | None
    suffix: str

    def write(self, folder: Path) -> Path:
        """The file of the job in a folder, beside the files that it names."""
        shutil.copytree(TABLES / "files", folder, dirs_exist_ok=True)
        path = folder / f"{self.name}{self.suffix}"
        path.write_text(yaml.safe_dump(_changed(self.change), sort_keys=False) if self.text is None else self.text)
        return path

    def shown(self, message: str, folder: Path) -> str:
        """A message as `says` has it."""
        local = message.replace(f"{folder}/", "")
        return local if self.text is not None else _POSITION.sub("", local, count=1)


def read_bad_jobs(table: str) -> dict[str, BadJob]:
    """The jobs of a table by their names."""
    rows = yaml.safe_load((TABLES / table).read_text(encoding="utf-8"))
    return {
        name: BadJob(name, row["says"].rstrip("\n"), row.get("change", {}), row.get("text"), row.get("suffix", ".yaml"))
        for name, row in rows.items()
    }


def _changed(change: Mapping[str, Any]) -> dict[str, Any]:
    """A small job with other values at dotted keys; a key whose value is `_` is not there."""
    job: dict[str, Any] = {
        "model": {"decoder": {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 128, "vocab": 1000}},
        "train": {"sequence_length": 128},
        "cluster": {"gpu": "H100-SXM-80GB"},
    }
    for dotted, value in change.items():
        *sections, key = dotted.split(".")
        section = job
        for name in sections:
            section = section.setdefault(name, {})
        if value == "_":
            del section[key]
        else:
            section[key] = value
    return job
