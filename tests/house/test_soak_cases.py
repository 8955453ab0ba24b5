"""tests/soak_cases.txt: every line of it is a test, and takes that test alone out of CI."""

from __future__ import annotations

from typing import Any

import pytest
import soak

HERE = "tests/house/test_soak_cases.py"


class Test:
    """As pytest has collected it."""

    __test__ = False

    def __init__(self, name: str) -> None:
        self.nodeid, self.marks = f"{HERE}::{name}", list[str]()

    def add_marker(self, name: str) -> None:
        self.marks.append(name)


def marked(listed: str, *, of_whole_files: bool = True) -> list[str]:
    tests: Any = [Test(name) for name in ("test_a", "test_ab", "test_b[x-1]", "test_b[x-2]", "test_b[y]")]
    soak.mark_soak_cases(tests, listed, of_whole_files=of_whole_files)
    return [test.nodeid.removeprefix(f"{HERE}::") for test in tests if test.marks == ["soak"]]


def test_a_line_takes_a_test_with_all_its_cases_and_but_leaves_some() -> None:
    assert marked(f"# why\n\n{HERE}::test_a") == ["test_a"]
    assert marked(f"{HERE}::test_b[x-*]") == ["test_b[x-1]", "test_b[x-2]"]
    assert marked(f"{HERE}::test_b\nbut {HERE}::test_b[x-1]") == ["test_b[x-2]", "test_b[y]"]
    assert len(marked(HERE)) == 5


@pytest.mark.parametrize("id_", [f"{HERE}::test_c", f"{HERE}::test_b[z]", "tests/house/test_gone.py"])
def test_a_line_without_a_test_is_an_error_that_names_it(id_: str) -> None:
    with pytest.raises(pytest.UsageError, match="line 2: no test is"):
        marked(f"# why\n{id_}")


def test_what_was_not_collected_may_still_be_there() -> None:
    assert marked(f"{HERE}::test_c\ntests/house/test_words.py::test_a", of_whole_files=False) == []
