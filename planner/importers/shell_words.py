"""Splits a command line without a shell: what only a shell could resolve is refused by name."""

from __future__ import annotations

import shlex

from planner.errors import SpecError

_MOST_CHARACTERS = 100_000
_OPERATORS = {
    ";": "several commands", "|": "a pipe", "&": "several commands", "<": "a redirection", ">": "a redirection",
    "(": "a subshell", ")": "a subshell", "\n": "several commands", "*": "a pattern of file names",
}  # fmt: skip


def words_of(line: str, place: str) -> list[str]:
    """The words of one command. Raises SpecError for variables, substitutions and everything but one command."""
    if len(line) > _MOST_CHARACTERS:
        raise SpecError(
            f"the line has {len(line)} characters",
            allowed=f"up to {_MOST_CHARACTERS}",
            remedy="give the command that launches the job",
            place=place,
        )
    line = line.replace("\r\n", "\n").replace("\\\n", " ").strip()
    _check(line, place)
    try:
        return shlex.split(line)
    except ValueError as error:
        raise SpecError(
            f"the line cannot be read: {error}", allowed="one command", remedy="close what is open", place=place
        ) from None


def _check(line: str, place: str) -> None:
    quote, escaped = "", False
    for index, character in enumerate(line):
        if escaped:
            escaped = False
        elif quote == "'":
            quote = "" if character == "'" else quote
        elif character == "\\":
            escaped = True
        elif character in "$`":
            raise _needs_a_shell(line, index, "a variable" if character == "$" else "a command", place)
        elif quote == '"':
            quote = "" if character == '"' else quote
        elif character in "'\"":
            quote = character
        elif character in _OPERATORS:
            raise _needs_a_shell(line, index, _OPERATORS[character], place)


def _needs_a_shell(line: str, index: int, what: str, place: str) -> SpecError:
    return SpecError(
        f"{line[index : index + 30]!a} is {what}, and no shell is run",
        allowed="one command, with values as they are",
        remedy="write what the shell would put there",
        place=f"{place}:{index + 1}",
    )
