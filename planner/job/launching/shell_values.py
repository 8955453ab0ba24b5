"""What a shell knows, and the values of its words: expansions, arithmetic and tests, as bash 5.2 has them (bash(1)).

What only the job's machines know is marked in the words, by what would have given it.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from planner.errors import SpecError
from planner.job.launching.shell_syntax import end_of_part

UNKNOWN = re.compile("\ue000([^\ue000\ue001]*)\ue001")
"""A value that is not known here, by what would have given it; the marks are no characters of any script."""
MARKS = str.maketrans("", "", "\ue000\ue001")
MOST_EXPANDED = 8 << 20
"""Characters of all words of a script: a variable of 64 KiB may be named on each line."""
MOST_WORDS = 4096
LONGEST_WORD = 1 << 16
"""Characters, after expansion: half of what Linux starts a program with (execve(2), MAX_ARG_STRLEN)."""
_PARTS = re.compile(f"(?:{UNKNOWN.pattern}|\\S)+".replace("([^", "(?:[^"))
"""What a value is split into; a mark is part of one word."""
_MOST_NESTED = 20
_PARAMETER = re.compile(r"([A-Za-z_]\w*|[0-9]+|[#?$!*@])(?:\[(.*?)\])?(.*)", re.DOTALL)
_PLAIN_NAME = re.compile(r"[A-Za-z_]\w*|[0-9#?$!*@]")
_JOB_NAMES = re.compile(
    r"\$(SLURM\w*|OMPI_\w*|PMI\w*|PBS\w*|LSB_\w*|LOCAL_RANK|RANK|NODE_RANK|WORLD_SIZE|MASTER_\w*|TMPDIR|HOSTNAME"
    r"|CUDA_VISIBLE_DEVICES|UID|EUID|OSTYPE|BASH\w*|SECONDS|LINENO|[?!])"
)
"""Variables that the job's machines or the shell itself set: not being set here says nothing of them."""
Output = Callable[[str], str]


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
    arrays: dict[str, dict[str, str]] = field(default_factory=dict)
    """By the names of variables their elements, by index."""
    gpus: int = 0
    """Of a node; 0: nobody has said."""
    text_of: Callable[[str], str] | None = None
    exists: Callable[[str], bool] | None = None
    """Whether a file is there; None where nobody may look."""
    expanded: int = 0
    """Parts of words so far, and their characters."""
    command_output: Output = field(default=lambda text: unknown(f"$({text})"))
    """The output of commands."""
    nested: int = 0

    def path_of(self, written: str) -> str:
        """Of a file that a command names, seen from where the script began."""
        return written if written.startswith("/") or not self.folder else f"{self.folder}/{written}"

    def read(self, written: str) -> str | None:
        """The text of a file that is here."""
        if self.text_of is None:
            return None
        try:
            return self.text_of(self.path_of(written))
        except SpecError:
            return None

    def assign(self, name: str, value: str, *, is_exported: bool = False) -> None:
        self.arrays.pop(name, None)
        self.variables[name] = value
        if is_exported or name in self.exported:
            self.exported[name] = value

    def assign_array(self, name: str, elements: dict[str, str]) -> None:
        self.arrays[name] = elements
        self.variables[name] = elements.get("0", "")

    def array(self, name: str) -> dict[str, str]:
        if name in ("@", "*"):
            return {str(number): value for number, value in enumerate(self.positional)}
        if name in self.arrays:
            return self.arrays[name]
        return {"0": self.variables[name]} if name in self.variables else {}


def unknown(source: str) -> str:
    """The mark of what is not known."""
    source = source.translate(MARKS)
    return f"\ue000{source if len(source) <= 60 else f'{source[:57]}...'}\ue001"


def unknown_source(text: str) -> str:
    """What would have given the first unknown value of a text."""
    match = UNKNOWN.search(text)
    return match[1] if match else text


def refused(problem: str, shell: Shell, allowed: str, line: int = 0) -> SpecError:
    place = f"{shell.place}:{line}" if line else shell.place
    return SpecError(problem, allowed=allowed, remedy="write the launch line that the script comes to", place=place)


def settled(text: str) -> str | None:
    """A text in which variables that nobody has set are empty, as they are for a shell; None if it is not known."""
    text = UNKNOWN.sub(
        lambda match: "" if re.fullmatch(r"\$\w+", match[1]) and not _JOB_NAMES.fullmatch(match[1]) else match[0],
        text,
    )
    return None if UNKNOWN.search(text) else text


def expand(word: str, shell: Shell) -> list[str]:
    """The words that one word becomes."""
    if match := re.fullmatch(r"(.*?)\{(-?\d{1,4})\.\.(-?\d{1,4})\}(.*)", word, re.DOTALL):
        first, last = int(match[2]), int(match[3])
        numbers = range(first, last + 1) if first <= last else range(first, last - 1, -1)
        return [f"{match[1]}{number}{match[4]}" for number in numbers]
    return _Words(shell).collect(word)


def expand_one(word: str, shell: Shell) -> str:
    """The value of a word that is not split, as in an assignment."""
    return " ".join(_Words(shell).collect(word, splits=False))


class _Words:
    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._words: list[str] = []
        self._word: list[str] | None = None
        """The parts of one, until it ends."""
        self._length = 0

    def collect(self, text: str, *, splits: bool = True, in_quotes: bool = False) -> list[str]:
        shell = self._shell
        shell.nested += 1
        if shell.nested > _MOST_NESTED:
            raise refused("expansions are nested too deep", shell, f"up to {_MOST_NESTED}")
        at = 0
        while at < len(text):
            character = text[at]
            end = at + 1 if in_quotes and character == "'" else end_of_part(text, at, shell.place)
            part = text[at:end]
            if character == "\\":
                if part != "\\\n":
                    self._add(part[1:] if not in_quotes or part[1:] in '$`"\\' else part)
            elif character == "'" and not in_quotes:
                self._add(part[1:-1])
            elif character == '"' and not in_quotes:
                self._quoted(part[1:-1])
            elif character == "`":
                self._add_value(shell.command_output(part[1:-1]).rstrip("\n"), splits and not in_quotes)
            elif character == "$" and text[at + 1 : at + 2] == "'" and not in_quotes:
                end = end_of_part(text, at + 1, shell.place)
                self._add(text[at + 2 : end - 1].replace("\\n", "\n").replace("\\t", "\t"))
            elif character == "$" and len(part) == 1 and (name := _PLAIN_NAME.match(text, at + 1)):
                end = name.end()
                self._parameter(name[0], splits=splits, in_quotes=in_quotes)
            elif part.startswith("$(("):
                value = arithmetic(part[3:-2], shell)
                self._add(unknown(part) if value is None else str(value))
            elif part.startswith("$("):
                self._add_value(shell.command_output(part[2:-1]).rstrip("\n"), splits and not in_quotes)
            elif part.startswith("${"):
                self._parameter(part[2:-1], splits=splits, in_quotes=in_quotes)
            elif character == "<" and text[at + 1 : at + 2] == "(":
                end = len(text)
                self._add(unknown(text[at:]))
            else:
                self._add(part)
            at = end
        self._end_word()
        shell.nested -= 1
        return self._words

    def _quoted(self, text: str) -> None:
        words = _Words(self._shell).collect(text, splits=False, in_quotes=True)
        if words:
            self._add_all(words)
        elif not re.fullmatch(r"\$@|\$\{\w+\[@\][^}]*\}|\$\{@[^}]*\}", text):
            self._add("")

    def _parameter(self, written: str, *, splits: bool, in_quotes: bool) -> None:
        values = _parameter(written, self._shell)
        if isinstance(values, str):
            self._add_value(values, splits and not in_quotes)
        elif re.match(r"@|\w+\[@\]", written) or (splits and not in_quotes):
            self._add_all([word for value in values for word in ([value] if in_quotes else _PARTS.findall(value))])
        else:
            self._add(" ".join(values))

    def _add_value(self, value: str, splits: bool) -> None:
        if not splits:
            self._add(value)
            return
        if value[:1].isspace():
            self._end_word()
        self._add_all(_PARTS.findall(value))
        if value[-1:].isspace():
            self._end_word()

    def _add_all(self, words: Sequence[str]) -> None:
        for number, word in enumerate(words):
            if number:
                self._end_word()
            self._add(word)

    def _add(self, text: str) -> None:
        shell = self._shell
        self._length += len(text)
        shell.expanded += 1 + len(text)
        if shell.expanded > MOST_EXPANDED:
            allowed = "a shorter script"
            raise refused(f"the words of the script have more than {MOST_EXPANDED} characters", shell, allowed)
        if self._length > LONGEST_WORD or len(self._words) > MOST_WORDS:
            raise refused("the script has a word or a command that is too long", shell, "what can be started")
        if self._word is None:
            self._word = []
        self._word.append(text)

    def _end_word(self) -> None:
        if self._word is not None:
            self._words.append("".join(self._word))
        self._word, self._length = None, 0


def _parameter(written: str, shell: Shell) -> str | list[str]:
    """The value behind `$` or in `${ }`; of an array's `[@]` its values."""
    if re.fullmatch(r"![A-Za-z_]\w*", written):
        name = settled(_value(written[1:], shell))
        return _value(name, shell) if name and re.fullmatch(r"\w+", name) else unknown(f"${{{written}}}")
    counted = re.fullmatch(r"#([A-Za-z_@*]\w*)(?:\[(.*)\])?", written)
    match = None if counted else _PARAMETER.fullmatch(written)
    if counted is not None:
        if counted[2] in ("@", "*") or counted[1] in ("@", "*"):
            return str(len(shell.array(counted[1])))
        value = _value(counted[1], shell)
        return unknown(f"${{{written}}}") if UNKNOWN.search(value) else str(len(value))
    if match is None:
        return unknown(f"${{{written}}}")
    name, index, rest = match[1], match[2], match[3]
    if name in ("@", "*") or index in ("@", "*"):
        values = [*shell.array(name).values()]
        if slices := re.fullmatch(r":\s*(\w+)(?::\s*(\w+))?", rest):
            start, count = (None if part is None else arithmetic(part, shell) for part in slices.groups())
            values = values[max((start or 0) - (name in ("@", "*")), 0) :][: count if slices[2] else None]
        elif rest.startswith((":-", "-", ":+", "+")):
            joined = _operated(" ".join(values), bool(values), rest, shell, name)
            return values if rest.lstrip(":").startswith("-") and values else joined.split()
        elif rest:
            values = [_operated(value, True, rest, shell, name) for value in values]
        return values
    if index is not None:
        key = arithmetic(index, shell) if name not in shell.arrays or "0" in shell.arrays[name] else None
        wanted = str(key) if key is not None else expand_one(index, shell)
        elements = shell.array(name)
        if wanted.startswith("-") and wanted[1:].isdigit() and elements:
            wanted = [*elements][-min(int(wanted[1:]), len(elements))]
        mark = next((mark for value in elements.values() if (mark := UNKNOWN.search(value))), None)
        # One unknown word may stand for several.
        value = elements.get(wanted, mark[0] if mark else unknown(f"${{{name}[{index}]}}"))
    else:
        value = _value(name, shell)
    return _operated(value, settled(value) == value, rest, shell, name) if rest else value


def _value(name: str, shell: Shell) -> str:
    if name == "#":
        return str(len(shell.positional))
    if name in ("$", "RANDOM") and name not in shell.variables:
        return "1"  # any number is right
    if name.isdigit() and name != "0":
        return shell.positional[int(name) - 1] if 0 < int(name[:6]) <= len(shell.positional) else ""
    return shell.variables.get(name, unknown(f"${name}"))


def _operated(value: str, is_set: bool, rest: str, shell: Shell, name: str) -> str:
    """`${name:-default}` and its kind."""
    match = re.match(r":?[-=+?]|:|%%?|##?|//?|\^\^?|,,?", rest)
    sign = match[0] if match else ""
    written, kind = rest[len(sign) :], sign.lstrip(":")
    text = settled(value)
    if kind in ("-", "=", "?", "+") and sign:
        has = bool(text) if sign.startswith(":") else is_set
        if text is None and name not in shell.variables and _JOB_NAMES.fullmatch(unknown_source(value)):
            has = False  # what nobody here sets: a default says what the job has without it
        elif text is None:
            has = True
        if kind == "+":
            return expand_one(written, shell) if has else ""
        if has:
            return value
        if kind == "?":
            said = expand_one(written, shell) or "it is not set"
            raise SpecError(
                f"the script ends, for ${name} is not set: {said[:200]}", allowed=f"a value of {name}",
                remedy=f"set it before the command ({name}=value ...), or give what the script asks for",
                place=shell.place,
            )  # fmt: skip
        default = expand_one(written, shell)
        if kind == "=":
            shell.assign(name, default)
        return default
    if text is None or not sign:
        return unknown(f"${{{name}{rest}}}")
    if sign == ":":
        start, _, count = written.partition(":")
        first, size = arithmetic(start, shell), arithmetic(count, shell) if count else None
        return unknown(f"${{{name}{rest}}}") if first is None else text[first:][:size]
    if sign in ("/", "//"):
        pattern, _, new = written.partition("/")
        pattern, new = expand_one(pattern, shell), expand_one(new, shell)
        if re.search(r"[*?\[]", pattern) or not pattern:
            return unknown(f"${{{name}{rest}}}")
        return text.replace(pattern, new, 1 if sign == "/" else -1)
    if sign[0] in "^,":
        change = str.upper if sign[0] == "^" else str.lower
        return change(text) if len(sign) > 1 else change(text[:1]) + text[1:]
    pattern = expand_one(written, shell)
    ends = range(len(text) + 1)
    if sign.startswith("#"):
        cut = [end for end in ends if fnmatchcase(text[:end], pattern)]
        return text[(cut[-1] if sign == "##" else cut[0]) :] if cut else text
    cut = [start for start in ends if fnmatchcase(text[start:], pattern)]
    return text[: (cut[0] if sign == "%%" else cut[-1])] if cut else text


_OPERATIONS: Mapping[type, Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    ast.Mod: lambda a, b: abs(a) % abs(b) * (1 if a >= 0 else -1),
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip
_LONGEST_ARITHMETIC = 400
_CHANGE = re.compile(r"\s*([A-Za-z_]\w*)\s*(?:\+\+|--|[-+*/%]?=(?!=))")


def arithmetic(written: str, shell: Shell) -> int | None:
    """The value of `$(( ))` with + - * / % and comparisons; None if it is not known, as variables that it changes are
    not afterwards."""
    if (change := _CHANGE.match(written)) is not None:
        shell.assign(change[1], unknown(f"(({written}))"))
        return None
    text = expand_one(written, shell).strip() or "0"
    if len(text) > _LONGEST_ARITHMETIC or not re.fullmatch(r"[\w\s+\-*/%()<>=!]+", text):
        return None
    text = re.sub(r"(?<!\w)0+(?=\d)", "", text.replace("\n", " ")).replace("/", "//")
    with suppress(SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError, KeyError):
        return _evaluate(ast.parse(text, mode="eval").body, shell)
    return None


def _evaluate(node: ast.expr, shell: Shell) -> int:
    """Raises ValueError or KeyError for what is not known."""
    match node:
        case ast.Constant(int(number)):
            return number
        case ast.Name(name) if (known := _number(_value(name, shell), shell)) is not None:
            return known
        case ast.UnaryOp(ast.USub(), inner):
            return -_evaluate(inner, shell)
        case ast.BinOp(left, kind, right) | ast.Compare(left, [kind], [right]):
            result = int(_OPERATIONS[type(kind)](_evaluate(left, shell), _evaluate(right, shell)))
            if abs(result) < 1 << 63:
                return result
    raise ValueError(node)


def _number(text: str, shell: Shell) -> int | None:
    text = (settled(text) or "").strip() if settled(text) is not None else "?"
    if not text:
        return 0
    if re.fullmatch(r"-?[0-9]{1,18}", text):
        return int(text)
    return arithmetic(text, shell) if text.isidentifier() and text in shell.variables and shell.nested < 5 else None


_COMPARED = {
    "-eq": operator.eq, "-ne": operator.ne, "-lt": operator.lt, "-le": operator.le, "-gt": operator.gt,
    "-ge": operator.ge,
}  # fmt: skip


def is_true(words: Sequence[str], shell: Shell, *, matches: bool = False) -> bool | None:
    """Of a test's words, expanded (`matches`: of `[[ ]]`, whose words are patterns); None if it is not known."""
    words = [*words]
    for joint, settle in (("||", False), ("-o", False), ("&&", True), ("-a", True)):
        if joint in words[1:-1]:
            at = words.index(joint, 1)
            sides = [is_true(part, shell, matches=matches) for part in (words[:at], words[at + 1 :])]
            if (not settle) in sides:
                return not settle
            return None if None in sides else settle
    if words[:1] == ["!"]:
        inner = is_true(words[1:], shell, matches=matches)
        return None if inner is None else not inner
    if words[:1] == ["("] and words[-1:] == [")"]:
        return is_true(words[1:-1], shell, matches=matches)
    values = [settled(word) for word in words]
    match words:
        case []:
            return False
        case ["-v", name]:
            return name in shell.variables
        case ["-e" | "-f" | "-d" | "-s" as sign, _] if shell.exists is not None and values[1]:
            return shell.exists(shell.path_of(values[1]))
        case ["-z" | "-n" as sign, _]:
            return None if values[1] is None else (values[1] == "") == (sign == "-z")
        case [_]:
            return None if values[0] is None else values[0] != ""
        case [_, "=" | "==" | "!=" as sign, _]:
            left, right = values[0], values[2]
            if left is None or right is None:
                return None
            return (fnmatchcase(left, right) if matches else left == right) == (sign != "!=")
        case [_, "=~", _]:
            pattern, text = values[2], values[0]
            if text is None or pattern is None or not re.fullmatch(r"\^?[\w\[\]+/.:-]*\$?", pattern) or len(text) > 200:
                return None
            with suppress(re.error):
                return re.search(pattern, text) is not None
        case [left, sign, right] if sign in _COMPARED:
            first, second = _number(left, shell), _number(right, shell)
            if first is not None and second is not None:
                return bool(_COMPARED[sign](first, second))
        case [left, "<" | ">" as sign, right] if values[0] is not None and values[2] is not None:
            return values[0] < values[2] if sign == "<" else values[0] > values[2]
    return None
