"""The syntax of shell scripts: text to commands, whose words are left as they were written.

Of POSIX.1-2024 (Shell Command Language, 2.10) and of bash 5.2 (bash(1)): arrays, `[[ ]]`, `(( ))`, `function`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from planner.errors import SpecError

_MOST_NESTED = 40
"""Compound commands and substitutions in each other."""
_MOST_WRITTEN = 50_000
"""Commands of a text, run or not: what is far beyond any script is not read to its end."""
_OPERATOR = re.compile(r"&&|\|\||;;&|;;|;&|\|&|[;&|\n()]")
_REDIRECTION = re.compile(r"[0-9]*(?:<<<|<<-|<<|<>|<&|>>|>&|>\||[<>])|&>>?")
_CLOSING = {"(": ")", "{": "}"}
_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=\($")
_ENDS = frozenset({"then", "elif", "else", "fi", "do", "done", "esac", "}"})


@dataclass(frozen=True, slots=True)
class Simple:
    """A command with its words; `[[` and `((` are commands too. `given`: what a here-document or `<<<` gives it."""

    words: tuple[str, ...]
    line: int
    given: str | None = None
    writes: bool = False
    """Whether its output goes into a file."""


@dataclass(frozen=True, slots=True)
class Block:
    """`{ }`, or `( )`, whose changes end with it."""

    body: Commands
    is_subshell: bool


@dataclass(frozen=True, slots=True)
class If:
    tests: tuple[tuple[Commands, Commands], ...]
    otherwise: Commands | None


@dataclass(frozen=True, slots=True)
class Loop:
    """`while` and `until`, or with a `name` `for` over `words`."""

    body: Commands
    line: int
    test: Commands | None = None
    until: bool = False
    name: str = ""
    words: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Case:
    word: str
    line: int
    branches: tuple[tuple[tuple[str, ...], Commands], ...]


@dataclass(frozen=True, slots=True)
class Function:
    name: str
    body: Command


Command = Simple | Block | If | Loop | Case | Function


@dataclass(frozen=True, slots=True)
class Pipeline:
    """What follows `joint` (`&&`, `||`; empty: whatever came before)."""

    joint: str
    is_negated: bool
    commands: tuple[Command, ...]


Commands = tuple[Pipeline, ...]


def parse_commands(text: str, place: str) -> Commands:
    """Raises SpecError for what is not a shell script."""
    parser = _Parser(text, place)
    commands = parser.list_until(frozenset())
    if parser.token is not None:
        raise parser.error(f"`{parser.token[:20]}` has nothing to close")
    return commands


def end_of_word(text: str, at: int, place: str = "") -> int:
    """Where the word that begins here ends."""
    start = at
    while at < len(text) and text[at] not in " \t\n;&|<>":
        if text[at] == "(":
            if not _ARRAY.search(text, start, at + 1) and at != start:
                break
            at = end_of_nested(text, at, place)
        elif text[at] == ")":
            break
        else:
            at = end_of_part(text, at, place)
    return at


def end_of_part(text: str, at: int, place: str = "", depth: int = 0) -> int:
    """Behind a quoted text, an expansion, or one character."""
    match text[at]:
        case "\\":
            return min(at + 2, len(text))
        case "'":
            return _find(text, "'", at + 1, place) + 1
        case '"':
            at += 1
            while at < len(text) and text[at] != '"':
                at = at + 1 if text[at] == "'" else end_of_part(text, at, place, depth + 1)
            return _find(text, '"', at, place) + 1
        case "`":
            at += 1
            while at < len(text) and text[at] != "`":
                at += 2 if text[at] == "\\" else 1
            return _find(text, "`", at, place) + 1
        case "$" if text[at + 1 : at + 2] in ("(", "{"):
            return end_of_nested(text, at + 1, place, depth + 1)
    return at + 1


def end_of_nested(text: str, at: int, place: str = "", depth: int = 0) -> int:
    """Behind the bracket that closes the one here."""
    opening, start = text[at], at
    closing = _CLOSING[opening]
    if depth > _MOST_NESTED:
        raise syntax_error("brackets are nested too deep", place, text, start)
    at += 1
    while at < len(text) and text[at] != closing:
        if text[at] == opening:
            at = end_of_nested(text, at, place, depth + 1)
        elif text[at] == "#" and opening == "(" and text[at - 1].isspace():
            at = _end_of_line(text, at)
        else:
            at = end_of_part(text, at, place, depth + 1)
    return _find(text, closing, at, place, start) + 1


def syntax_error(
    problem: str, place: str, text: str = "", at: int = 0, allowed: str = "a script that bash reads"
) -> SpecError:
    return SpecError(
        problem,
        allowed=allowed,
        remedy="write the launch line that the script comes to",
        place=f"{place}:{text.count(chr(10), 0, at) + 1}" if text else place,
    )


def _find(text: str, closing: str, at: int, place: str, start: int | None = None) -> int:
    found = text.find(closing, at)
    if found < 0:
        raise syntax_error(f"a {closing} is missing", place, text, at if start is None else start)
    return found


def _end_of_line(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


@dataclass(slots=True)
class _Parser:
    """`token` is the word or the operator that comes next; None at the end."""

    text: str
    place: str
    at: int = 0
    token: str | None = None
    is_operator: bool = False
    line: int = 1
    _depth: int = 0
    _begins: int = 0
    _counted: int = 0
    _written: int = 0
    _documents: list[tuple[str, bool]] = field(default_factory=list)
    """Here-documents whose lines are still to come, by what ends them."""
    _given: str | None = None

    def __post_init__(self) -> None:
        self.text = self.text.replace("\r\n", "\n")
        self.advance()

    def error(self, problem: str, **stated: str) -> SpecError:
        return syntax_error(problem, self.place, self.text, self._begins, **stated)

    def advance(self) -> None:
        text = self.text
        while self.at < len(text):
            if text[self.at] in " \t":
                self.at += 1
            elif text.startswith("\\\n", self.at):
                self.at += 2
            elif text[self.at] == "#":
                self.at = _end_of_line(text, self.at)
            else:
                break
        self.line += text.count("\n", self._counted, self.at)
        self._counted = self._begins = self.at
        if self.at >= len(text):
            self.token, self.is_operator = None, True
            return
        is_word = text.startswith(("((", "<(", ">("), self.at)
        operator = None if is_word else _REDIRECTION.match(text, self.at) or _OPERATOR.match(text, self.at)
        if operator is not None:
            self.token, self.is_operator, self.at = operator[0], True, operator.end()
            if self.token == "\n" and self._documents:
                self._read_documents()
            return
        if is_word:  # <( ) is one: a file with the output of a command
            self.at = end_of_nested(text, self.at + (text[self.at] != "("), self.place)
        else:
            self.at = end_of_word(text, self.at, self.place)
        self.token, self.is_operator = text[self._begins : self.at], False

    def list_until(self, ends: frozenset[str]) -> Commands:
        """Up to a word of `ends`, a bracket or `;;`, which is left."""
        self._depth += 1
        if self._depth > _MOST_NESTED:
            raise self.error("commands are nested too deep")
        pipelines: list[Pipeline] = []
        joint = ""
        while self.token is not None:
            if self.is_operator and self.token in ("\n", ";", "&"):
                joint = joint if self.token == "\n" else ""
                self.advance()
                continue
            if (self.is_operator and self.token in (")", ";;", ";&", ";;&")) or self.token in ends:
                break
            if not self.is_operator and self.token in _ENDS:
                raise self.error(f"`{self.token}` has nothing before it that it belongs to")
            pipelines.append(self._pipeline(joint))
            joint = ""
            if self.is_operator and self.token in ("&&", "||"):
                joint = self.token
                self.advance()
            elif not (self.token is None or self.token in ("\n", ";", "&", ")", ";;", ";&", ";;&")):
                raise self.error(f"`{self.token[:20]}` cannot stand here")
        self._depth -= 1
        return tuple(pipelines)

    def _pipeline(self, joint: str) -> Pipeline:
        is_negated = False
        while self.token == "!":
            is_negated = not is_negated
            self.advance()
        commands = [self._command()]
        while self.is_operator and self.token in ("|", "|&"):
            self.advance()
            self._skip_lines()
            commands.append(self._command())
        return Pipeline(joint, is_negated, tuple(commands))

    def _command(self) -> Command:
        self._written += 1
        if self._written > _MOST_WRITTEN:
            raise self.error("the script has too many commands", allowed=f"up to {_MOST_WRITTEN:,} commands")
        command = self._compound()
        if command is None:
            return self._simple()
        self._words(more=False)  # redirections
        return command

    def _compound(self) -> Command | None:
        word, line = self.token, self.line
        if self.is_operator and word == "(":
            self.advance()
            body = self.list_until(frozenset())
            self._expect(")")
            return Block(body, is_subshell=True)
        match None if self.is_operator else word:
            case "{":
                self.advance()
                body = self.list_until(frozenset({"}"}))
                self._expect("}")
                return Block(body, is_subshell=False)
            case "if":
                return self._if()
            case "while" | "until":
                self.advance()
                test = self.list_until(frozenset({"do"}))
                return Loop(self._body(), line, test=test, until=word == "until")
            case "for" | "select":
                return self._for()
            case "case":
                return self._case()
            case "function":
                self.advance()
                name = self._take_word()
                if self.token == "(":
                    self.advance()
                    self._expect(")")
                self._skip_lines()
                return Function(name, self._command())
        return None

    def _if(self) -> If:
        tests, otherwise = [], None
        while self.token in ("if", "elif"):
            self.advance()
            test = self.list_until(frozenset({"then"}))
            self._expect("then")
            tests.append((test, self.list_until(frozenset({"elif", "else", "fi"}))))
        if self.token == "else":
            self.advance()
            otherwise = self.list_until(frozenset({"fi"}))
        self._expect("fi")
        return If(tuple(tests), otherwise)

    def _for(self) -> Loop:
        line = self.line
        self.advance()
        name, words = self._take_word(), None
        if name.startswith("(("):
            return Loop(self._body(), line, name="_", words=(f"${name}",))  # how often is not computed
        self._skip_lines()
        if self.token == "in":
            self.advance()
            words = tuple(self._words()[0])
        return Loop(self._body(), line, name=name, words=words)

    def _body(self) -> Commands:
        while self.is_operator and self.token in (";", "\n"):
            self.advance()
        self._expect("do")
        body = self.list_until(frozenset({"done"}))
        self._expect("done")
        return body

    def _case(self) -> Case:
        line = self.line
        self.advance()
        word = self._take_word()
        self._skip_lines()
        self._expect("in")
        branches = []
        self._skip_lines()
        while self.token != "esac":
            if self.token == "(":
                self.advance()
            patterns = [self._take_word()]
            while self.token == "|":
                self.advance()
                patterns.append(self._take_word())
            self._expect(")")
            branches.append((tuple(patterns), self.list_until(frozenset({"esac"}))))
            if self.is_operator and self.token in (";;", ";&", ";;&"):
                self.advance()
            self._skip_lines()
        self.advance()
        return Case(word, line, tuple(branches))

    def _simple(self) -> Command:
        line = self.line
        if self.token == "[[":
            return Simple(tuple(self._test()), line)
        words, given, writes = self._words()
        if len(words) == 1 and self.token == "(" and re.fullmatch(r"[\w:.-]+", words[0]):
            self.advance()
            self._expect(")")
            self._skip_lines()
            return Function(words[0], self._command())
        if not words and given is None and not writes:
            raise self.error(f"`{(self.token or 'the end')[:20]}` cannot stand here")
        return Simple(tuple(words), line, given, writes)

    def _test(self) -> list[str]:
        """The words of `[[ ]]`, in which operators are words."""
        words = []
        while self.token is not None and self.token != "]]":
            if self.token != "\n":
                words.append(self.token)
            if self.token == "=~":  # what follows is a pattern, brackets and all, up to a space
                while self.text[self.at : self.at + 1] == " ":
                    self.at += 1
                end = self.at
                while end < len(self.text) and not self.text[end].isspace():
                    end = end_of_part(self.text, end, self.place)
                words.append(self.text[self.at : end])
                self.at = end
            self.advance()
        self._expect("]]")
        return [*words, "]]"]

    def _words(self, *, more: bool = True) -> tuple[list[str], str | None, bool]:
        """Words up to an operator (without `more` none), what they are given, and whether they write a file."""
        words: list[str] = []
        given, writes = None, False
        self._given = None
        while self.token is not None:
            if self.is_operator:
                if not _REDIRECTION.fullmatch(self.token):
                    break
                operator = self.token.lstrip("0123456789")
                number = self.token[: -len(operator)]
                self.advance()
                if operator in ("<<", "<<-") and self.token is not None:  # its lines come after the end of this line
                    self._documents.append((self.token, operator == "<<-"))
                target = self._take_word()
                if operator == "<<<":
                    given = target
                elif operator in (">", ">>", ">|") and number in ("", "1") and not target.startswith("/dev/"):
                    writes = True
            elif more:
                words.append(self.token)
                self.advance()
            else:
                break
        return words, self._given if given is None else given, writes

    def _read_documents(self) -> None:
        """The lines of here-documents; bodies as they stand, in double quotes where they are expanded."""
        for ending, strips in self._documents:
            plain = ending.strip("'\"").replace("\\", "")
            lines = []
            while self.at < len(self.text):
                end = _end_of_line(self.text, self.at)
                line = self.text[self.at : end].lstrip("\t") if strips else self.text[self.at : end]
                self.at = min(end + 1, len(self.text))
                if line == plain:
                    break
                lines.append(line)
            else:
                raise self.error(f"the here-document has no line {plain[:40]}")
            body = "\n".join(lines)
            quoted = body.replace("'", "'\\''") if plain != ending else re.sub(r'(?<!\\)"', r"\\" + '"', body)
            self._given = f"'{quoted}'" if plain != ending else f'"{quoted}"'
        self._documents.clear()

    def _take_word(self) -> str:
        if self.token is None or self.is_operator:
            raise self.error("a word is missing")
        word = self.token
        self.advance()
        return word

    def _skip_lines(self) -> None:
        while self.token == "\n":
            self.advance()

    def _expect(self, token: str) -> None:
        if self.token != token:
            seen = "the script ends" if self.token is None else f"there is `{self.token[:20].strip()}`"
            raise self.error(f"a {token} is missing: {seen}")
        self.advance()
