"""Every operator of torch's own test database gives on paper the shapes, dtypes and strides that it gives on the host.

CI runs one sample of each operator (PLANNER_OPINFO unset); `make opinfo` runs all, in four dtypes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

_HERE = Path(__file__).parent
sys.path.insert(0, str(_HERE))

from conformance import SHARE, WHOLE, Difference  # noqa: E402
from known_differences import KNOWN  # noqa: E402

EXTENT = WHOLE if os.environ.get("PLANNER_OPINFO") == WHOLE else SHARE


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, str]]:
    """The differences by operator, from a process of their own: the database changes torch's global flags."""
    ran = subprocess.run(
        [sys.executable, str(_HERE / "conformance.py"), EXTENT],
        capture_output=True,
        text=True,
        check=True,
        cwd=_HERE.parents[2],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, (_HERE.parents[2], _HERE.parents[2] / "benchmarks"))),
            "OMP_NUM_THREADS": "1",
        },
    )
    answer: dict[str, dict[str, str]] = json.loads(ran.stdout[ran.stdout.index("{") :])
    return answer


def test_operators_do_on_paper_what_they_do_on_the_host(found: dict[str, dict[str, str]]) -> None:
    """But for those in the list, each with its reason."""
    unknown = {
        (operator, difference): example
        for operator, by_difference in found.items()
        for difference, example in by_difference.items()
        if operator not in KNOWN or Difference(difference) not in KNOWN[operator][0]
    }

    assert unknown == {}


def test_nothing_is_in_the_list_that_does_not_differ(found: dict[str, dict[str, str]]) -> None:
    """Of the share, what is refused whatever the sample."""
    always = {"sparse.mm.reduce", "linalg.lstsq", "svd_lowrank"}
    expected = {
        operator: differences for operator, (differences, _) in KNOWN.items() if EXTENT == WHOLE or operator in always
    }

    assert {operator: frozenset(found.get(operator, {})) for operator in expected} == expected
