"""planner's folder for what it has made: where the user says, or where it can be."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from planner.runtime import user_cache as module
from planner.runtime.user_cache import kept_folders, user_cache


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    module._temporary_cache.cache_clear()
    yield folder
    module._temporary_cache.cache_clear()


@pytest.fixture
def unwritable(tmp_path: Path) -> Path:
    """No folder can be made there, by root neither."""
    path = tmp_path / "file"
    path.write_text("")
    return path / "cache"


def test_it_lies_where_the_user_says_though_nothing_is_there_yet(tmp_path: Path) -> None:
    assert user_cache({"XDG_CACHE_HOME": str(tmp_path / "scratch/x")}) == tmp_path / "scratch/x/planner"


def test_it_lies_among_temporary_files_where_that_cannot_be_written(unwritable: Path, temporary: Path) -> None:
    found = user_cache({"XDG_CACHE_HOME": str(unwritable)})

    assert found == temporary / f"planner-{os.getuid()}/planner"
    assert found.parent.stat().st_mode & 0o777 == 0o700


def test_it_lies_among_temporary_files_of_a_user_without_a_home(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", unknown)

    assert user_cache({}) == temporary / f"planner-{os.getuid()}/planner"


def test_a_folder_that_others_may_write_is_not_taken(unwritable: Path, temporary: Path) -> None:
    (temporary / f"planner-{os.getuid()}").mkdir()
    (temporary / f"planner-{os.getuid()}").chmod(0o777)

    found = user_cache({"XDG_CACHE_HOME": str(unwritable)})

    assert (found.parent.parent, found.parent.name != f"planner-{os.getuid()}") == (temporary, True)


def test_one_that_cannot_be_written_is_good_for_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "image/planner/paper-0123").mkdir(parents=True)
    monkeypatch.setattr(os, "access", lambda *_: False)

    assert user_cache({"XDG_CACHE_HOME": str(tmp_path / "image")}) == tmp_path / "image/planner"


def test_what_a_child_leaves_there_has_its_folders_before_it_starts(tmp_path: Path) -> None:
    kept = kept_folders({"XDG_CACHE_HOME": str(tmp_path / "x"), "PLANNER_CACHE": str(tmp_path / "traces")})

    assert kept == (tmp_path / "x/planner", tmp_path / "traces/inductor")
    assert [each.is_dir() for each in kept] == [True, True]
