"""Every faulty spec in tests/bad_specs says exactly what its .txt says: all of the message, nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.errors import SpecError
from planner.job.loading import load_job

FOLDER = Path(__file__).parent.parent / "bad_specs"
MESSAGES = {path.stem: path for path in sorted(FOLDER.glob("*.txt"))}
SPECS = {path.stem: path for path in sorted(FOLDER.iterdir()) if path.suffix in (".yaml", ".json")}


def message_of(spec: Path) -> str:
    """The message with the folder's path taken out of it."""
    with pytest.raises(SpecError) as caught:
        load_job(spec)
    return str(caught.value).replace(f"{FOLDER}/", "")


@pytest.mark.parametrize("name", SPECS)
def test_the_message_is_exactly(name: str) -> None:
    assert message_of(SPECS[name]) == MESSAGES[name].read_text(encoding="utf-8").rstrip("\n")


def test_each_faulty_spec_has_its_message_and_each_message_its_spec() -> None:
    assert list(SPECS) == list(MESSAGES)
    assert len(SPECS) >= 25
