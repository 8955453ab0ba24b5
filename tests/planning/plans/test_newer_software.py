"""README's install brings the newest torch and transformers: a plan says once that they are newer than the tested."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from planner.job.named_jobs import GivenJob, read
from planner.job.shorthand import Shorthand
from planner.planning import identity
from planner.planning.notes import newer_software_notes
from planner.planning.plan import plan_job
from planner.upstream import checking
from planner.versions import TESTED, newer_than_tested

CONSTRAINTS = Path(__file__).parents[3] / "constraints.txt"
INSTALL = "`pip install --constraint constraints.txt '.[plan]'` in a checkout installs what is tested."


@pytest.fixture
def newer_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In front of the installed one: what its distribution says of itself."""
    folder = tmp_path / "transformers-5.24.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: transformers\nVersion: 5.24.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for cached in (identity.software, identity.every_version):
        cached.cache_clear()
    yield
    monkeypatch.undo()
    for cached in (identity.software, identity.every_version):
        cached.cache_clear()


def notes_of_a_plan() -> list[str]:
    given = GivenJob(
        named="HuggingFaceTB/SmolLM2-135M", words=Shorthand(gpus="H100", seq="64", batch=1),
        settings=["model.hf_config.num_hidden_layers=1", "train.iterations=1"],
    )  # fmt: skip
    return [note for note in plan_job(read(given, Path()).job).plan.notes if note.startswith("Planned with")]


def test_what_is_tested_is_what_is_pinned() -> None:
    pinned = dict(re.findall(r"^(\w+)==(\d+\.\d+)", CONSTRAINTS.read_text(encoding="utf-8"), re.MULTILINE))

    assert {name: pinned[name] for name in TESTED} == TESTED


def test_of_what_is_tested_nothing_is_said() -> None:
    assert newer_than_tested({"torch": "2.13.0+cu130", "transformers": "5.23.0"}) == {}
    assert newer_software_notes({"torch": "2.6.0", "transformers": "none"}) == []
    assert notes_of_a_plan() == []


@pytest.mark.usefixtures("newer_transformers")
def test_a_plan_says_it() -> None:
    assert notes_of_a_plan() == [
        "Planned with transformers 5.24; planner is tested with transformers 5.23, and no recording of what is newer"
        f" was compared. {INSTALL}"
    ]


@pytest.mark.usefixtures("newer_transformers")
def test_nothing_else_says_it(caplog: pytest.LogCaptureFixture) -> None:
    checking.enforce.cache_clear()
    checking.enforce()

    assert [record.getMessage() for record in caplog.records] == []


def test_of_a_newer_torch_it_says_how_far_plans_were_seen_to_differ() -> None:
    said = newer_software_notes({"torch": "2.15.0+cu130", "transformers": "5.24.0"}, frozenset({"pp"}))

    assert said == [
        "Planned with torch 2.15 and transformers 5.24; planner is tested with torch 2.13 and transformers 5.23, and no"
        " recording of what is newer was compared. Plans of torch 2.13 and 2.15 were seen to differ by up to 3.8%."
        f" {INSTALL}"
    ]
