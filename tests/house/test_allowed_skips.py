"""A skip that nobody has allowed fails CI: tests/allowed_skips.txt has those that are, with their reasons."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from allowed_skips import LIST, AllowedSkips, new_skips, read_allowed

ROOT = Path(__file__).parents[2]
ALLOWED = [AllowedSkips("tests/a/test_a.py", "no (gpu|disk) here", 2)]


def test_each_line_is_of_a_file_that_there_is() -> None:
    allowed = read_allowed(LIST.read_text(encoding="utf-8"))

    assert [line.file for line in allowed if not (ROOT / line.file).is_file()] == []
    assert len(set(allowed)) == len(allowed) > 0


@pytest.mark.parametrize(
    ("skipped", "found"),
    [
        ([("tests/a/test_a.py::test_1", "no gpu here"), ("tests/a/test_a.py::test_2[x]", "no disk here")], []),
        ([("tests/a/test_a.py::test_1", "no gpu here")] * 5, []),
        ([("tests/a/test_a.py::test_1", "no time")], ["tests/a/test_a.py::test_1 is skipped: no time"]),
        ([("tests/b/test_a.py", "no gpu here")], ["tests/b/test_a.py is skipped: no gpu here"]),
        (
            [(f"tests/a/test_a.py::test_{number}", "no gpu here") for number in range(3)],
            ["tests/a/test_a.py: 3 tests are skipped for `no (gpu|disk) here`, and 2 may be"],
        ),
    ],
    ids=["allowed", "the same again", "another reason", "another file", "too many"],
)
def test_what_is_skipped_besides_is_said(skipped: list[tuple[str, str]], found: list[str]) -> None:
    assert new_skips(skipped, ALLOWED) == found


@pytest.mark.parametrize(("in_ci", "code"), [(True, 1), (False, 0)])
def test_a_new_skip_fails_ci_and_nothing_else(in_ci: bool, code: int, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text(encoding="utf-8"))
    (tmp_path / "test_new.py").write_text("import pytest\n\ndef test_new():\n    pytest.skip('nobody knows why')\n")
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    environment |= {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'fakes'}"} | ({"CI": "true"} if in_ci else {})

    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:kmock", "-c", os.devnull, "--rootdir", tmp_path, tmp_path],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip

    assert (ended.returncode, "test_new.py::test_new is skipped: nobody knows why" in ended.stdout) == (code, in_ci)
