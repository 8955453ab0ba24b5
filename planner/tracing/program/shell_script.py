"""Reads a shell script for the one command in it that starts the ranks: its words, as the shell would expand them.

Nothing is run. Assignments, exports and `cd` are followed; what arithmetic, a command's output or the job's own machine
decides is marked, and refused where it is needed. Branches and loops are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from planner.errors import SpecError

UNKNOWN = re.compile("\ue000([^\ue000\ue001]*)\ue001")
"""A value that is not known here, by what would have given it; the marks are no characters of any script."""
_MARKS = str.maketrans("", "", "\ue000\ue001")
_NAME = re.compile(r"[A-Za-z_]\w*")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_BRANCHES = frozenset({
    "if", "for", "while", "until", "case", "select", "function", "then", "else", "elif", "fi", "do", "done", "esac",
    "{", "}", "[", "[[", "test", "eval", "((",
})  # fmt: skip
_DECLARATIONS = ("export", "declare", "typeset", "readonly", "local")
_MOST_CHARACTERS, _MOST_EXPANDED = 1 << 20, 8 << 20
"""Characters of a script, and of all of its words: a variable of 64 KiB may be named on each line."""
_MOST_COMMANDS, _MOST_WORDS, _MOST_VARIABLES = 10_000, 4096, 1000
_LONGEST_WORD = 1 << 16
"""Characters, after expansion: half of what Linux starts a program with (execve(2), MAX_ARG_STRLEN)."""
_PLAIN = re.compile(r"[^\\'\"$`#\s<>&;|()]+")


@dataclass(slots=True)
class Shell:
    """What a script knows while it is read."""

    place: str
    variables: dict[str, str] = field(default_factory=dict)
    exported: dict[str, str] = field(default_factory=dict)
    """Of the variables those that a command inherits."""
    positional: list[str] = field(default_factory=list)
    folder: str = ""
    """Where a `cd` of the script led; relative to where it began."""
    expanded: int = 0
    """Parts of words so far, and their characters."""


@dataclass(frozen=True, slots=True)
class Statement:
    """One command, and what its shell knew when it came to it."""

    words: tuple[str, ...]
    exported: Mapping[str, str]
    folder: str


def commands_of(text: str, shell: Shell) -> list[Statement]:
    """The commands of a script, in order, besides those of the shell itself. Raises SpecError for what is not read."""
    if len(text) > _MOST_CHARACTERS:
        raise _refused(f"the script has {len(text)} characters", shell, f"up to {_MOST_CHARACTERS}")
    commands: list[Statement] = []
    for words in _Reader(text.translate(_MARKS), shell).statements():
        if (statement := _follow(words, shell)) is not None:
            commands.append(statement)
        if len(commands) > _MOST_COMMANDS or len(shell.variables) > _MOST_VARIABLES:
            raise _refused("the script has too many commands or variables", shell, f"up to {_MOST_COMMANDS} commands")
    return commands


def _follow(words: list[str], shell: Shell) -> Statement | None:
    """Does what the shell itself does; a command of its own comes back."""
    first = words[0]
    if first in _BRANCHES or first.endswith("()"):
        raise _refused(f"the script has `{first[:40]}`, which is not followed", shell, "commands one after the other")
    if first in _DECLARATIONS or all(_ASSIGNMENT.fullmatch(word) for word in words):
        for word in words:
            match = _ASSIGNMENT.fullmatch(word)
            if match:
                shell.variables[match[1]] = match[2]
            name = match[1] if match else word
            is_exported = first in ("export", "declare", "typeset") or name in shell.exported
            if is_exported and name in shell.variables:
                shell.exported[name] = shell.variables[name]
        return None
    match first, words[1:]:
        case "cd" | "pushd", [folder]:
            if UNKNOWN.search(folder):
                raise _refused(f"cd leads to a folder that {source_of(folder)} decides", shell, "a folder by its path")
            shell.folder = folder if folder.startswith("/") else f"{shell.folder}/{folder}".lstrip("/")
        case "set", ["--", *given]:
            shell.positional[:] = given
        case "shift", _:
            del shell.positional[: int(words[1]) if re.fullmatch("[0-9]{1,6}", "".join(words[1:2])) else 1]
        case "unset", names:
            for name in names:
                shell.variables.pop(name, None)
                shell.exported.pop(name, None)
        case _:
            return Statement(tuple(words), dict(shell.exported), shell.folder)
    return None


class _Reader:
    """Words of a text, expanded as they come."""

    def __init__(self, text: str, shell: Shell) -> None:
        self._text, self._at, self._shell = text.replace("\r\n", "\n"), 0, shell
        self._words: list[str] = []
        self._word: list[str] | None = None
        """The parts of one, until it ends."""
        self._length = 0
        self._drops_next = False

    def statements(self) -> Iterator[list[str]]:
        """One command after the other; what a failure or a pipe would lead to is left out."""
        is_left_out = False
        while self._at < len(self._text):
            ended_by = self._statement()
            words, self._words = self._words, []
            if words and not is_left_out:
                yield words
            is_left_out = ended_by in ("|", "||")

    def _statement(self) -> str:
        while self._at < len(self._text):
            character = self._take()
            if character == "\\":
                following = self._take()
                if following != "\n":
                    self._add(following)
            elif character == "'":
                self._add(self._until("'"))
            elif character == '"':
                self._quoted()
            elif character == "$":
                self._expand(is_quoted=False)
            elif character == "`":
                self._add(_unknown(f"`{self._until('`')[:40]}`"))
            elif character == "#" and self._word is None:
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
            elif character in " \t":
                self._end_word()
            elif character in "<>" or (character == "&" and self._peek() == ">"):
                self._redirection(character)
            elif character in "\n;|&":
                self._end_word()
                doubled = character in "|&" and self._peek() == character
                self._at += doubled
                return character * (2 if doubled else 1)
            elif character in "()":
                raise _refused("the script has a subshell, a function or a list", self._shell, "plain commands")
            else:
                self._add(character + self._plain())
        self._end_word()
        return "\n"

    def _redirection(self, character: str) -> None:
        if self._word is not None and "".join(self._word).isdigit():
            self._word = None
        self._end_word()
        written = character
        while self._peek() in "<>&|" and self._peek():
            written += self._take()
        if written.startswith("<<"):
            raise _refused("the script has a here-document", self._shell, "plain commands")
        self._drops_next = True

    def _quoted(self) -> None:
        self._add("")
        while (character := self._take()) != '"':
            if character == "\\":
                following = self._take()
                self._add(following if following in '$`"\\' else "" if following == "\n" else f"\\{following}")
            elif character == "$":
                self._expand(is_quoted=True)
            elif character == "`":
                self._add(_unknown(f"`{self._until('`')[:40]}`"))
            else:
                self._add(character + self._plain())

    def _expand(self, *, is_quoted: bool) -> None:
        if self._text.startswith("@", self._at) or (self._text.startswith("*", self._at) and not is_quoted):
            self._at += 1
            self._add_words(self._shell.positional)
            if is_quoted and not self._shell.positional and self._word == [""]:
                self._word = None
            return
        value = self._value()
        self._add_words([value] if is_quoted or UNKNOWN.search(value) else value.split())

    def _add_words(self, words: Sequence[str]) -> None:
        for number, word in enumerate(words):
            if number:
                self._end_word()
            self._add(word)

    def _value(self) -> str:
        if self._text.startswith("(", self._at):
            return _unknown(f"$({self._nested()[:40]})")
        if self._text.startswith("{", self._at):
            self._at += 1
            return self._braced(self._until("}"))
        if match := re.compile(r"[A-Za-z_]\w*|[0-9#?$!*]").match(self._text, self._at):
            self._at = match.end()
            return self._variable(match[0])
        return "$"

    def _braced(self, written: str) -> str:
        name, default = written, None
        if match := re.fullmatch(r"(\w+):?-(.*)", written, re.DOTALL):
            name, default = match[1], match[2]
        if not re.fullmatch(r"\w+", name):
            return _unknown(f"${{{written[:40]}}}")
        value = self._variable(name)
        is_set = bool(value) and not (UNKNOWN.fullmatch(value) and name not in self._shell.variables)
        if default is None or is_set:
            return value
        if "$" in default or "`" in default:
            inner = _Reader(f'"{default}"', self._shell)
            return next(iter(inner.statements()), [""])[0]
        return default.strip("\"'")

    def _variable(self, name: str) -> str:
        if name == "#":
            return str(len(self._shell.positional))
        if name == "*":
            return " ".join(self._shell.positional)
        if name.isdigit() and name != "0":
            given = self._shell.positional
            return given[int(name) - 1] if int(name) <= len(given) else ""
        return self._shell.variables.get(name, _unknown(f"${name}"))

    def _nested(self) -> str:
        start, depth = self._at, 0
        while self._at < len(self._text):
            depth += {"(": 1, ")": -1}.get(self._take(), 0)
            if not depth:
                return self._text[start + 1 : self._at - 1]
        raise self._open(")")

    def _until(self, closing: str) -> str:
        end = self._text.find(closing, self._at)
        if end < 0:
            raise self._open(closing)
        text, self._at = self._text[self._at : end], end + len(closing)
        return text

    def _open(self, closing: str) -> SpecError:
        return _refused(f"a {closing} is missing", self._shell, "quotes and brackets that are closed")

    def _take(self) -> str:
        if self._at >= len(self._text):
            raise self._open("quote, or what follows a backslash,")
        self._at += 1
        return self._text[self._at - 1]

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _plain(self) -> str:
        """What follows and means nothing but itself."""
        match = _PLAIN.match(self._text, self._at)
        self._at += len(match[0]) if match else 0
        return match[0] if match else ""

    def _add(self, text: str) -> None:
        self._length += len(text)
        self._shell.expanded += 1 + len(text)
        if self._shell.expanded > _MOST_EXPANDED:
            raise _refused(
                f"the words of the script have more than {_MOST_EXPANDED} characters", self._shell, "a shorter script"
            )
        if self._length > _LONGEST_WORD or len(self._words) > _MOST_WORDS:
            raise _refused("the script has a word or a command that is too long", self._shell, "what can be started")
        if self._word is None:
            self._word = []
        self._word.append(text)

    def _end_word(self) -> None:
        if self._word is not None:
            if not self._drops_next:
                self._words.append("".join(self._word))
            self._drops_next = False
        self._word, self._length = None, 0


def source_of(text: str) -> str:
    """What would have given the first unknown value of a text."""
    match = UNKNOWN.search(text)
    return match[1] if match else text


def _unknown(source: str) -> str:
    return f"\ue000{source}\ue001"


def _refused(problem: str, shell: Shell, allowed: str) -> SpecError:
    return SpecError(
        problem, allowed=allowed, remedy="write the launch line that the script comes to", place=shell.place
    )
