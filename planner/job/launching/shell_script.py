"""Follows a shell script to the commands in it that programs run by: their words, as the shell would expand them.

Nothing is run. Assignments, branches, loops, functions and `cd` are followed as far as what decides them is known. What
only the job's machines know marks the commands and values that depend on it, which are refused where they are needed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from planner.errors import SpecError
from planner.job.launching.shell_outputs import command_output
from planner.job.launching.shell_syntax import (
    Block,
    Case,
    Command,
    Commands,
    Function,
    If,
    Loop,
    Pipeline,
    Simple,
    parse_commands,
)
from planner.job.launching.shell_values import (
    MARKS,
    UNKNOWN,
    Shell,
    arithmetic,
    expand,
    expand_one,
    is_true,
    refused,
    settled,
    unknown,
    unknown_source,
)

MOST_CHARACTERS = 1 << 20
MOST_COMMANDS, _MOST_VARIABLES = 10_000, 1000
_MOST_CALLS = 20
"""Functions and scripts in each other."""
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[(.*?)\])?(\+?)=(.*)", re.DOTALL)
_DECLARATIONS = ("export", "declare", "typeset", "readonly", "local")


@dataclass(frozen=True, slots=True)
class Statement:
    """One command, and what its shell knew when it came to it."""

    words: tuple[str, ...]
    exported: Mapping[str, str]
    folder: str
    perhaps: str = ""
    """What decides whether it is run, where that is not known."""


@dataclass(frozen=True, slots=True)
class Ending:
    """Where the script ends before its last line, and what it said last."""

    line: int
    said: str


def follow_script(text: str, shell: Shell) -> tuple[list[Statement], Ending | None]:
    """The commands of a script, in order, besides those of the shell itself; the end that it comes to, if that is not
    its last line. Raises SpecError for what is not read."""
    if len(text) > MOST_CHARACTERS:
        raise refused(f"the script has {len(text)} characters", shell, f"up to {MOST_CHARACTERS}")
    run = _Run(shell)
    ending = None
    try:
        run.run_text(text, shell.place)
    except _Leave as leave:
        ending = Ending(leave.line, run.said) if leave.kind == "exit" else None
    return run.statements, ending


class _Leave(Exception):  # noqa: N818 it is not an error
    """`break`, `continue`, `return`, `exit`."""

    def __init__(self, kind: str, line: int) -> None:
        super().__init__(kind)
        self.kind, self.line = kind, line


class _Run:
    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        shell.command_output = self._output
        self.statements: list[Statement] = []
        self.said = ""
        self._functions: dict[str, Command] = {}
        self._perhaps = self._tested = ""
        """What decides whether this is run, where that is not known; the last test, as it is written."""
        self._is_assumed = False
        """Whether the last status is one of a command that was not run."""
        self._printed: list[str] | None = None
        """What is written, where that is a value; None marks what is not known."""
        self._given: str | None = None
        self._commands = self._calls = 0

    def run_text(self, text: str, place: str) -> bool | None:
        """What is not known in a text is a variable each."""

        def named(mark: re.Match[str]) -> str:
            name = f"_unknown_{len(self._shell.variables)}"
            self._shell.variables[name] = mark[0]
            return f"${{{name}}}"

        return self.run_commands(parse_commands(UNKNOWN.sub(named, text).translate(MARKS), place))

    def run_commands(self, commands: Commands) -> bool | None:
        status: bool | None = True
        for pipeline in commands:
            if pipeline.joint and status is None:
                # A test whose result is not known: what depends on it may be run, or not.
                self._either([(pipeline,)], self._tested)
            elif not pipeline.joint or status is (pipeline.joint == "&&"):
                status = self._pipeline(pipeline)
        return status

    def _pipeline(self, pipeline: Pipeline) -> bool | None:
        first, *others = pipeline.commands
        if others and self._printed is not None:
            return self._piped(pipeline.commands)
        if others and isinstance(first, Simple) and first.words[:1] in (("echo",), ("printf",), ("yes",), ("cat",)):
            first = others[-1]
        status = self._one(first)
        return status if not pipeline.is_negated or status is None else not status

    def _piped(self, commands: Sequence[Command]) -> bool:
        text: str | None = None
        for command in commands:
            text = self._capture((Pipeline("", False, (command,)),), text)
        self._print(text or "")
        return True

    def _one(self, command: Command) -> bool | None:
        match command:
            case Simple():
                return self._simple(command)
            case Block(body, is_subshell):
                if not is_subshell:
                    return self.run_commands(body)
                with self._apart():
                    return self.run_commands(body)
            case If():
                return self._if(command)
            case Loop():
                return self._loop(command)
            case Case():
                return self._case(command)
            case Function(name, body):
                self._functions[name] = body
        return True

    @contextmanager
    def _apart(self) -> Iterator[None]:
        """What a subshell changes ends with it, and so do its `exit` and `return`."""
        kept = self._state()
        try:
            yield
        except _Leave as leave:
            if leave.kind not in ("exit", "return"):
                raise
        finally:
            self._restore(kept)

    def _state(self) -> tuple[dict[str, str], dict[str, str], dict[str, dict[str, str]], list[str], str]:
        shell = self._shell
        arrays = {name: dict(elements) for name, elements in shell.arrays.items()}
        return dict(shell.variables), dict(shell.exported), arrays, [*shell.positional], shell.folder

    def _restore(self, state: tuple[dict[str, str], dict[str, str], dict[str, dict[str, str]], list[str], str]) -> None:
        shell = self._shell
        shell.variables, shell.exported, shell.arrays, shell.positional, shell.folder = state

    def _either(self, bodies: Sequence[Commands], condition: str, *, or_none: bool = True) -> None:
        """One of these is run, or with `or_none` none: what they change differently is not known."""
        before, around = self._state(), self._perhaps
        ends, left = [before] if or_none else [], None
        self._perhaps = around or condition
        for body in bodies:
            self._count(1)
            self._restore(before)
            before = self._state()
            try:
                self.run_commands(body)
                ends.append(self._state())
            except _Leave as leave:
                left = leave
        self._perhaps = around
        if not ends:
            assert left is not None
            raise left
        self._restore(ends[0])
        mark = unknown(condition)
        self._shell.variables = _merged([end[0] for end in ends], mark)
        self._shell.exported = _merged([end[1] for end in ends], mark)
        for name in {name for end in ends for name in end[2]}:
            if any(end[2].get(name) != ends[0][2].get(name) for end in ends):
                self._shell.arrays[name] = {"0": mark}

    def _condition(self, commands: Commands) -> tuple[bool | None, str]:
        """Whether a test holds, and how it is written."""
        self._is_assumed, self._tested = False, ""
        status = self.run_commands(commands)
        return None if self._is_assumed else status, self._tested or "a command"

    def _if(self, command: If) -> bool | None:
        for number, (test, body) in enumerate(command.tests):
            holds, written = self._condition(test)
            if holds:
                return self.run_commands(body)
            if holds is None:
                rest = command.tests[number + 1 :]
                otherwise = (Pipeline("", False, (If(rest, command.otherwise),)),) if rest else command.otherwise or ()
                self._either([body, otherwise], f"if {written}", or_none=False)
                return True
        return self.run_commands(command.otherwise) if command.otherwise is not None else True

    def _loop(self, loop: Loop) -> bool | None:
        if loop.test is not None:
            return self._while(loop, loop.test)
        written = loop.words if loop.words is not None else ('"$@"',)
        for value in [value for word in written for value in expand(word, self._shell)]:
            self._shell.assign(loop.name, value)
            if UNKNOWN.search(value):
                self._either([loop.body], f"for {loop.name} in {unknown_source(value)}")
            elif not self._turn(loop):
                break
        return True

    def _while(self, loop: Loop, test: Commands) -> bool:
        while True:
            holds, written = self._condition(test)
            if holds is None or written in ("true", ":"):
                self._either([loop.body], f"while {written}")
                return True
            if holds is loop.until or not self._turn(loop):
                return True

    def _turn(self, loop: Loop) -> bool:
        self._count(loop.line)
        try:
            self.run_commands(loop.body)
        except _Leave as leave:
            if leave.kind not in ("break", "continue"):
                raise
            return leave.kind == "continue"
        return True

    def _case(self, command: Case) -> bool | None:
        word = expand_one(command.word, self._shell)
        value = settled(word)
        if value is None:
            self._either([body for _, body in command.branches], f"case {unknown_source(word)}")
            return True
        for patterns, body in command.branches:
            if any(fnmatchcase(value, expand_one(pattern, self._shell)) for pattern in patterns):
                return self.run_commands(body)
        return True

    def _count(self, line: int) -> None:
        self._commands += 1
        if self._commands > MOST_COMMANDS or len(self._shell.variables) > _MOST_VARIABLES:
            allowed = f"up to {MOST_COMMANDS} commands, the turns of loops included, and {_MOST_VARIABLES} variables"
            raise refused("the script has too many commands or variables", self._shell, allowed, line)

    def _simple(self, command: Simple) -> bool | None:
        shell = self._shell
        self._count(command.line)
        words = command.words
        if words[:1] == ("[[",):
            return self._test([word for part in words[1:-1] for word in _one_word(part, shell)], words, matches=True)
        if words and words[0].startswith("(("):
            value = arithmetic(words[0][2:-2], shell)
            self._is_assumed, self._tested = False, words[0]
            return None if value is None else value != 0
        given = command.given if command.given is None else expand_one(command.given, shell)
        assigned, at = {}, 0
        while at < len(words) and _ASSIGNMENT.fullmatch(words[at]):
            at += 1
        if at == len(words):
            for word in words:
                self._assign(word)
            return True
        for word in words[:at]:
            name, _, written = word.partition("=")
            assigned[name] = expand_one(written, shell)
        if words[at] in _DECLARATIONS:
            self._declare(words[at:])
            return True
        expanded = [each for word in words[at:] for each in expand(word, shell)]
        if not expanded:
            return True
        return self._run(expanded, assigned, command.line, given, writes=command.writes)

    def _assign(self, word: str, *, is_exported: bool = False) -> None:
        match = _ASSIGNMENT.fullmatch(word)
        assert match is not None
        shell, (name, index, adds, value) = self._shell, match.groups()
        if value.startswith("(") and value.endswith(")"):
            elements = dict(shell.array(name)) if adds else {}
            number = len(elements)
            for listed in parse_commands(value[1:-1], shell.place):
                for part in listed.commands[0].words if isinstance(listed.commands[0], Simple) else ():
                    if keyed := re.fullmatch(r"\[(.*?)\]=(.*)", part, re.DOTALL):
                        elements[expand_one(keyed[1], shell)] = expand_one(keyed[2], shell)
                        continue
                    for element in expand(part, shell):
                        elements[str(number)] = element
                        number += 1
            shell.assign_array(name, elements)
        elif index is not None:
            elements, key = dict(shell.array(name)), arithmetic(index, shell)
            key_text = str(key) if key is not None else expand_one(index, shell)
            elements[key_text] = (elements.get(key_text, "") if adds else "") + expand_one(value, shell)
            shell.assign_array(name, elements)
        else:
            before = shell.variables.get(name, "") if adds else ""
            text = expand_one(value, shell)
            if name not in shell.variables:  # X="$X more": it was empty
                text = text.replace(unknown(f"${name}"), "")
            shell.assign(name, before + text, is_exported=is_exported)

    def _declare(self, words: Sequence[str]) -> None:
        shell = self._shell
        is_exported = words[0] == "export" or any(re.fullmatch(r"-\w*x\w*", word) for word in words[1:])
        for word in words[1:]:
            if _ASSIGNMENT.fullmatch(word):
                self._assign(word, is_exported=is_exported)
            elif re.fullmatch(r"-\w*A\w*", word):
                continue
            elif is_exported:
                shell.exported |= {
                    name: shell.variables[name] for name in expand(word, shell) if name in shell.variables
                }

    def _run(
        self, words: list[str], assigned: Mapping[str, str], line: int, given: str | None, *, writes: bool
    ) -> bool | None:
        """A command of these words: the shell's own, a function, or one that is not run."""
        shell, name = self._shell, words[0]
        match name, words[1:]:
            case (("[" | "test"), _):
                inner = words[1:-1] if name == "[" else words[1:]
                return self._test(inner, words)
            case (("true" | ":" | "false"), _):
                self._is_assumed, self._tested = False, name
                return name != "false"
            case (("exit" | "return" | "break" | "continue"), _):
                raise _Leave(name, line)
            case (("cd" | "pushd"), [folder]):
                if UNKNOWN.search(folder):
                    raise SpecError(
                        f"cd leads to a folder that {unknown_source(folder)} decides",
                        allowed="a folder by its path",
                        remedy="set it before the command (NAME=value ...), or write the launch line",
                        place=f"{shell.place}:{line}",
                    )
                shell.folder = folder if folder.startswith("/") else f"{shell.folder}/{folder}".lstrip("/")
                return True
            case "set", ["--", *arguments]:
                shell.positional[:] = arguments
                return True
            case "shift", _:
                count = arithmetic(words[1], shell) if words[1:] else 1
                del shell.positional[: max(count or 0, 0)]
                return True
            case "unset", names:
                for each in names:
                    shell.variables.pop(each, None)
                    shell.exported.pop(each, None)
                    shell.arrays.pop(each, None)
                return True
            case "let", parts:
                for part in parts:
                    arithmetic(part, shell)
                return True
            case "eval", parts:
                return self._call(lambda: self.run_text(" ".join(parts), shell.place), line)
            case "grep", [flags, *_] if re.fullmatch(r"-\w*q\w*", flags):
                found = command_output(words, given, shell)
                if found is not None:
                    self._is_assumed, self._tested = False, " ".join(words)
                    return bool(found)
            case (("source" | "."), [path, *arguments]) if (text := self._text(path)) is not None:
                return self._call(lambda: self.run_text(text, path), line, arguments)
            case (("read" | "mapfile" | "readarray"), arguments):
                self._read(name, [each for each in arguments if not each.startswith("-") and each], given, line)
                return True
        if (function := self._functions.get(name)) is not None:
            return self._call(lambda: self._one(function), line, words[1:])
        printed = command_output(words, given if given is not None else self._given, shell)
        if name in ("echo", "printf") and printed is not None:
            self.said = UNKNOWN.sub(lambda mark: mark[1], printed).strip() or self.said
        if self._printed is not None and not writes:
            self._print(unknown(" ".join(words)) if printed is None else printed)
            return True
        self._is_assumed, self._tested = True, self._tested or UNKNOWN.sub(lambda mark: mark[1], " ".join(words))[:60]
        if given is not None and name == "sbatch":
            words = [*words, f"--wrap={given}"]
        elif given is not None and PurePosixPath(words[-1]).name in ("bash", "sh"):
            words = [*words, "-c", given]
        exported = {**shell.exported, **assigned}
        self.statements.append(Statement(tuple(words), exported, shell.folder, self._perhaps))
        return True

    def _text(self, path: str) -> str | None:
        """Of a script that is read in; None where there is none here, or it makes an environment of Python."""
        return None if UNKNOWN.search(path) or path.endswith("/activate") else self._shell.read(path)

    def _test(self, values: Sequence[str], written: Sequence[str], *, matches: bool = False) -> bool | None:
        self._is_assumed = False
        self._tested = UNKNOWN.sub(lambda mark: mark[1], " ".join(written))[:60]
        return is_true(values, self._shell, matches=matches)

    def _call(self, run: Callable[[], bool | None], line: int, arguments: Sequence[str] | None = None) -> bool | None:
        shell = self._shell
        before = shell.positional
        self._calls += 1
        if self._calls > _MOST_CALLS:
            raise refused("functions and scripts call each other too deep", shell, f"up to {_MOST_CALLS}", line)
        if arguments:
            shell.positional = [*arguments]
        try:
            return run()
        except _Leave as leave:
            if leave.kind != "return":
                raise
            return True
        finally:
            self._calls -= 1
            if arguments:
                shell.positional = before

    def _read(self, name: str, names: Sequence[str], given: str | None, line: int) -> None:
        """`read`, `mapfile`: values of what it is given."""
        shell = self._shell
        if name != "read":
            values = given.split("\n") if given is not None else [unknown(f"{name} in line {line}")]
            shell.assign_array(names[0] if names else "MAPFILE", {str(at): value for at, value in enumerate(values)})
            return
        parts = given.strip().split(None, max(len(names) - 1, 0)) if given is not None else []
        for number, each in enumerate(names):
            if re.fullmatch(r"[A-Za-z_]\w*", each):
                known = parts[number] if number < len(parts) else ""
                shell.assign(each, unknown(f"read {each}") if given is None else known)

    def _print(self, text: str) -> None:
        if self._printed is not None:
            self._printed.append(text)

    def _capture(self, commands: Commands, given: str | None = None) -> str:
        printed, self._printed, before, self._given = self._printed, [], self._given, given
        assumed = self._is_assumed, self._tested
        try:
            with self._apart():
                self.run_commands(commands)
            return "".join(self._printed or [])
        finally:
            self._printed, self._given = printed, before
            self._is_assumed, self._tested = assumed

    def _output(self, text: str) -> str:
        """What `$( )` comes to."""
        output = self._capture(parse_commands(text, self._shell.place))
        return unknown(f"$({text})") if UNKNOWN.search(output) else output


def _merged(ends: Sequence[Mapping[str, str]], mark: str) -> dict[str, str]:
    """What all ends have alike, and the mark where they differ."""
    alike: dict[str, str] = {}
    for name in dict.fromkeys(name for end in ends for name in end):
        values = {end.get(name) for end in ends}
        alike[name] = mark if len(values) > 1 else ends[0][name]
    return alike


def _one_word(part: str, shell: Shell) -> list[str]:
    return [part] if part in ("&&", "||", "!", "(", ")", "<", ">", "=~") else [expand_one(part, shell)]
