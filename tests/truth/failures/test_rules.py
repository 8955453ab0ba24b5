"""Rules find what their regular expressions find, of no more of a log than what stands around their words."""

from __future__ import annotations

import random
from pathlib import Path

import log_speed
import pytest
import yaml
from torch_messages import FORMS

from planner.truth.failures import gpu_messages, host_messages
from planner.truth.failures.gpu_messages import find_messages
from planner.truth.failures.log_text import LogText
from planner.truth.failures.rules import Lines, Rule, Searched, Words

RULES: tuple[Rule, ...] = (*gpu_messages.RULES, *host_messages.RULES)
DATA = Path(__file__).parents[2] / "data"
HEALTHY = ("digits", "digit_lines", "long_lines", "brackets", "training", "json_lines", "progress", "short_lines")


def posted() -> str:
    """Every posted message, with healthy lines between."""
    texts = [FORMS[each["form"]](each["facts"]) for each in read("out_of_memory_messages.yaml")]
    texts += [each["text"] for each in read("failures_in_other_words.yaml")]
    random.Random(1).shuffle(texts)
    return log_speed.text_of("training", 3000).join(texts)


def read(name: str) -> list[dict[str, str]]:
    read_back: list[dict[str, str]] = yaml.safe_load((DATA / name).read_text("utf-8"))
    return read_back


def searched_by(rule: Rule, log: LogText) -> Searched:
    return log.written if isinstance(rule.words, Lines) else log.sentences


def given(text: str) -> int:
    """How many characters of a text the regular expressions of all rules are given."""
    log = LogText(text)
    return sum(end - begin for rule in RULES for begin, end in rule.words.windows(searched_by(rule, log)))


def test_every_rule_has_words_and_a_longest_match() -> None:
    assert [rule.words.pattern.pattern for rule in RULES if not rule.words.clauses] == []
    assert [rule.words.pattern.pattern for rule in RULES if rule.words.longest > 2000] == []


def test_rules_find_what_their_regular_expressions_find_in_the_whole_text() -> None:
    log = LogText(posted())

    for rule in RULES:
        searched = searched_by(rule, log)
        found = [match.span() for match in rule.words.find(searched)]
        assert found == [match.span() for match in rule.words.pattern.finditer(searched.text)], rule.words.pattern


@pytest.mark.parametrize("shape", HEALTHY)
def test_of_a_healthy_log_next_to_nothing_is_given_to_regular_expressions(shape: str) -> None:
    text = log_speed.text_of(shape, 200_000)

    assert given(text) < 4 * len(text)  # one rule of 25 would be given all of it


@pytest.mark.parametrize("shape", log_speed.SHAPES)
def test_what_regular_expressions_are_given_grows_with_the_text(shape: str) -> None:
    small, large = (given(log_speed.text_of(shape, size)) for size in (50_000, 200_000))

    assert large <= 4.4 * small + 5000


def test_of_many_messages_no_more_are_read_than_are_told() -> None:
    assert len(find_messages(log_speed.text_of("failures", 1_000_000))) == gpu_messages.MOST_MESSAGES


@pytest.mark.parametrize(
    ("words", "text", "found"),
    [
        (Words("out of (?:the)? memory"), "x" * 500 + "OUTOFTHEMEMORY" + "y" * 500, ["OUTOFTHEMEMORY"]),
        (Words("tried @size of memory"), "tried2.50GiBofmemory" * 3, ["tried2.50GiBofmemory"] * 3),
        (Lines(r"^Killed$"), "step\nKilled\n" + "Killed later\n" * 100, ["Killed"]),
        (Lines(r"(?i)\boom\b"), "\u0130" * 100 + " OOM " + "room " * 100, ["OOM"]),
    ],
    ids=["an optional word", "a size", "a line", "a letter that is two in lower case"],
)
def test_words_are_found_wherever_they_stand(words: Words, text: str, found: list[str]) -> None:
    assert [match[0] for match in words.find(Searched(text))] == found
