"""Every operator of torch's own test database gives on paper the shapes, dtypes and strides that it gives on the host,
and of inputs that are known the values.

CI runs one sample of each operator (PLANNER_OPINFO unset); `make opinfo` runs all, in four dtypes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[2]
sys.path.insert(0, str(_HERE))

from conformance import SHARE, WHOLE, Difference  # noqa: E402
from known_differences import KNOWN  # noqa: E402

EXTENT = WHOLE if os.environ.get("PLANNER_OPINFO") == WHOLE else SHARE


def run(script: str) -> Any:
    """What a script prints, in a process of its own: the database changes torch's global flags."""
    ran = subprocess.run(
        [sys.executable, str(_HERE / script), EXTENT],
        capture_output=True,
        text=True,
        check=True,
        cwd=_ROOT,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(str(_ROOT / folder) for folder in (".", "benchmarks", "tests/fakes")),
            "OMP_NUM_THREADS": "1",
        },
    )
    return json.loads(ran.stdout[ran.stdout.index("{") :])


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, str]]:
    """The differences by operator."""
    differences: dict[str, dict[str, str]] = run("conformance.py")
    return differences


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


LEAST_KNOWN = {SHARE: 750, WHOLE: 740}
"""Of 818 operators, in place or not, those whose results are always known. Among all samples more are drawn, or have
no kernel on the host, than among two of each dtype."""


def test_what_operators_make_of_known_inputs_is_what_the_host_makes_of_them_or_unknown() -> None:
    contents = run("known_contents.py")

    assert contents["wrong"] == {}
    assert len(contents["known"]) >= LEAST_KNOWN[EXTENT]
