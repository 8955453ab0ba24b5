"""What others than torch's allocator say is explained rightly, or not read: never with a wrong cause."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.errors import PlannerError
from planner.truth.failures.explanation import explain
from planner.units import GIB

POSTED: list[dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parents[2] / "data" / "failures_in_other_words.yaml").read_text("utf-8")
)
READ = [each for each in POSTED if "says" in each]
NOT_READ = [each for each in POSTED if "says" not in each]


@pytest.mark.parametrize("posted", READ, ids=lambda each: each["source"])
def test_other_words_are_explained_rightly(posted: dict[str, Any]) -> None:
    found = explain(posted["text"])
    messages = [(failure.form.value, failure.caught) for failure, _ in found.messages]
    hosts = [failure.said_by for failure in found.host]

    said = (posted["says"], posted.get("caught", False))
    assert (messages, hosts) in (([said], []), ([], [posted["says"]] * posted.get("hosts", 1)))
    assert found.cause.value == posted["cause"]
    if "tried" in posted:
        assert found.messages[0][0].tried_bytes == posted["tried"] * GIB


@pytest.mark.parametrize("posted", NOT_READ, ids=lambda each: each["source"])
def test_what_only_sounds_so_is_not_read(posted: dict[str, Any]) -> None:
    with pytest.raises(PlannerError, match="nothing in it says that memory ran out"):
        explain(posted["text"])
