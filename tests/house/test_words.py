"""Words that readers had to decode, and that do not come back: what to write is in CONTRIBUTING.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLAIN = {
    r"\bcomes? again\b": "retry",
    r"\btold of\b": "reported, or the noun",
    r"\btaken for\b": "assumed to be",
    r"\bgives? up\b": "frees, or stops",
    r"\bwhoever\b": "the noun: caller, user, supervisor",
    r"\bof whom\b": "whose",
    r"(?<![Tt]here )(?<!where )\bis no (?!longer|more|larger|less|later|part|use|such|other)": "is not a",
}


@pytest.mark.parametrize("words", PLAIN, ids=PLAIN.values())
def test_code_and_pages_say_it_in_plain_words(words: str) -> None:
    files = [*ROOT.glob("planner/**/*.py"), *ROOT.glob("docs/**/*.md"), ROOT / "README.md"]
    lines = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()}"
        for file in files
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(words, line)
    ]

    assert lines == []
