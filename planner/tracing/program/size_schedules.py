"""Finds sizes that depend on the step in the lines of a program's own files."""

from __future__ import annotations

import ast
import linecache
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

from planner.tracing.program.program_files import (
    COUNTER,
    TrainingLoop,
    adds_one,
    called,
    last_name,
    source_line,
    training_loops,
)

_SIZES = {
    "batch": r"bs|bsz|mbs|batch_?size|micro_?batch_?size",
    "sequence": r"seq(?:uence)?_?len(?:gth)?|ctx(?:_?len)?|context_?(?:len(?:gth)?|size)|block_?size|max_?len(?:gth)?",
    "window": r"ws|window|window_?sizes?",
    "image": r"resolution|(?:image|img|crop)_?size",
}
_SIZE = {what: re.compile(rf"(?:^|_)(?:{words})(?:_|$)", re.IGNORECASE) for what, words in _SIZES.items()}
_MAKES_TENSORS = frozenset({"empty", "ones", "rand", "randint", "randn", "zeros"})
_ELSEWHERE = frozenset({"global_step", "current_epoch"})
"""Counters of libraries (transformers, Lightning)."""
_NO_SIZE = re.compile(r"(?:idx|index|ids?)$", re.IGNORECASE)
_SIZE_OF_DATA = frozenset({"dim", "len", "ndim", "numel", "shape", "size"})
_ROUNDS = 10
"""Calls through which a step is followed."""
_MOST_CHARACTERS, _MOST_PLACES = 80, 2

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Comprehension = ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp
_ATTRIBUTE, _RESULT = ".", "()"
_Key = tuple[object, str]
"""A variable of a scope, a comprehension or a lambda, an attribute of any object, or the result of any function of the
name."""


@dataclass(frozen=True, slots=True)
class SizeByStep:
    """`what` is `batch`, `sequence`, `window` or `image`; `text` is the line's own."""

    what: str
    place: str
    text: str
    value: ast.expr | None = field(default=None, compare=False)
    """Whose value at a step is the size; None where it has no such expression, or hangs on steps before that one."""


def sizes_by_step(files: Mapping[Path, ast.Module], drivers: Sequence[TrainingLoop] = ()) -> list[SizeByStep]:
    """Every such line of these files, in their order; none if no loop of theirs trains. Lines that depend on what
    others count than the `drivers` (a loop around them, an object) have no value."""
    loops = training_loops(files)
    if not loops:
        return []
    counted = {id(loop.node) for loop in drivers}
    others = {id(loop.node) for loop in loops if loop.is_inner} - counted
    around = [
        loop for loop in loops if not loop.is_inner and not any(id(node) in others for node in ast.walk(loop.node))
    ]
    own = {last_name(counter.target) for loop in drivers for counter in loop.increments()}
    elsewhere = {*_ELSEWHERE, *_counters_of_objects(files)}
    lines = [line for path, tree in files.items() for line in _lines(path, tree.body, _Scope(tree))]
    sizes = _Flow(lines, loops, elsewhere).follow()
    unknown = _Flow(lines, around, elsewhere - own).follow()
    kinds, order = [*_SIZES], [*files]
    found = sorted(sizes, key=lambda line: (kinds.index(line[2]), order.index(line[0]), line[1]))
    return [replace(sizes[key], value=None) if key in unknown else sizes[key] for key in found]


def _counters_of_objects(files: Mapping[Path, ast.Module]) -> Iterator[str]:
    for tree in files.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Attribute) and adds_one(node):
                yield from {node.target.attr} if COUNTER.search(node.target.attr) else ()


def say_schedules(sizes: Sequence[SizeByStep]) -> tuple[str, ...]:
    """A sentence for each kind of size, with the last of its lines."""
    return tuple(
        f"the size of the {what} depends on the step at {lines[-1].place} ({lines[-1].text})"
        + "".join(f", {line.place}" for line in lines[:-1][:_MOST_PLACES])
        for what, lines in ((what, list(lines)) for what, lines in groupby(sizes, key=lambda size: size.what))
    )


class _Scope:
    """A file, or a function in it, with how often it binds each name."""

    def __init__(self, node: ast.Module | _Function, outer: _Scope | None = None) -> None:
        self._outer = outer
        inner = [*ast.walk(node)]
        stored = (part for part in inner if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store))
        self.within: dict[int, _Key] = outer.within if outer else dict(_inner_variables(inner))
        self.bound = Counter([*_arguments(node), *(part.id for part in stored if id(part) not in self.within)])
        for name in (name for part in inner if isinstance(part, ast.Global) for name in part.names):
            del self.bound[name]

    def find(self, node: ast.Name) -> _Key:
        """The variable that the name means here."""
        if id(node) in self.within:
            return self.within[id(node)]
        return (self, node.id) if node.id in self.bound or self._outer is None else self._outer.find(node)


def _inner_variables(nodes: Sequence[ast.AST]) -> Iterator[tuple[int, _Key]]:
    """Of names by their ids the variables of comprehensions and lambdas, inner ones last; `nodes`: outer ones first."""
    for node in nodes:
        bound: set[str] = set()
        if isinstance(node, ast.Lambda):
            bound |= {*_arguments(node)}
        elif isinstance(node, _Comprehension):
            bound |= {part.id for each in node.generators for part in _names(each.target)}
        outside = {id(part) for part in _names(node.generators[0].iter)} if isinstance(node, _Comprehension) else ()
        yield from (
            (id(part), (node, part.id)) for part in _names(node) if part.id in bound and id(part) not in outside
        )


def _names(node: ast.AST) -> Iterator[ast.Name]:
    return (part for part in ast.walk(node) if isinstance(part, ast.Name))


@dataclass(frozen=True, slots=True)
class _Line:
    """A statement without those within it. On the `tests` it depends whether its `function` comes to it."""

    path: Path
    node: ast.stmt
    scope: _Scope
    tests: tuple[ast.expr, ...]
    function: str


def _lines(
    path: Path, body: list[ast.stmt], scope: _Scope, tests: tuple[ast.expr, ...] = (), function: str = ""
) -> Iterator[_Line]:
    for node in body:
        if isinstance(node, _Function):
            own = _Scope(node, scope)
            yield _Line(path, node, own, (), node.name)
            yield from _lines(path, node.body, own, (), node.name)
        elif isinstance(node, ast.ClassDef):
            yield from _lines(path, node.body, scope)
        else:
            yield _Line(path, node, scope, tests, function)
            # `step % 100 == 0`: what is done now and then is not a schedule.
            decides = isinstance(node, ast.If) and not any(isinstance(part, ast.Mod) for part in ast.walk(node.test))
            within = (*tests, node.test) if isinstance(node, ast.If) and decides else tests
            parts = [node, *getattr(node, "handlers", []), *getattr(node, "cases", [])]
            for inner in (getattr(part, name, []) for part in parts for name in ("body", "orelse", "finalbody")):
                yield from _lines(path, inner, scope, within, function)


class _Flow:
    """What depends on the step: variables by scope; attributes, parameters and results of functions by their names."""

    def __init__(self, lines: Sequence[_Line], loops: Sequence[TrainingLoop], attributes: set[str]) -> None:
        """`attributes`: of objects that are counted up."""
        self._lines, self._loops = lines, {id(loop.node): loop for loop in loops}
        self._sizes: dict[tuple[Path, int, str], SizeByStep] = {}
        self._depending: set[_Key] = {(_ATTRIBUTE, name) for name in attributes}
        self._own = {line.function for line in lines if isinstance(line.node, _Function)}
        self._parameters: defaultdict[str, set[int | str]] = defaultdict(set)
        """Of functions by their names: places and names of arguments that depend."""

    def follow(self) -> dict[tuple[Path, int, str], SizeByStep]:
        """The sizes, by file, line and what they are."""
        for _ in range(_ROUNDS):
            before = len(self._depending), sum(map(len, self._parameters.values()))
            for line in self._lines:
                self._line = line
                self._take(line.node, line.scope)
            if (len(self._depending), sum(map(len, self._parameters.values()))) == before:
                break
        return self._sizes

    def _take(self, node: ast.stmt, scope: _Scope) -> None:
        if isinstance(node, _Function):
            names = _arguments(node)
            first = names[:1] in (["self"], ["cls"])
            given = self._parameters[node.name]
            self._depending |= {(scope, name) for place, name in enumerate(names) if {place - first, name} & given}
            return
        for child in ast.iter_child_nodes(node):  # none of the statements within it
            if isinstance(child, ast.expr | ast.withitem):
                self._look(child.context_expr if isinstance(child, ast.withitem) else child)
        match node:
            case ast.For() | ast.While() if (loop := self._loops.get(id(node))) is not None:
                counters = [counter.target for counter in loop.increments()]
                names = [target.id for target in counters if isinstance(target, ast.Name)]
                self._depending |= {(scope, name) for name in (*names, loop.target()) if name}
            case ast.For() if self._depends(node.iter):
                self._bind(node.target)
            case ast.Assign():
                self._assign(node.targets, node.value)
            case ast.AnnAssign(value=ast.expr() as value) | ast.AugAssign(value=value):
                self._assign([node.target], value)
            case ast.Return(value=ast.expr() as value) if self._is_conditional() or self._depends(value):
                self._depending.add((_RESULT, self._line.function))

    def _is_conditional(self) -> bool:
        return any(map(self._depends, self._line.tests))

    def _assign(self, targets: list[ast.expr], value: ast.expr) -> None:
        depends, conditional = self._depends(value), self._is_conditional()
        for target in targets if depends or conditional else ():
            if not depends and self._line.scope.bound[last_name(target)] == 1:
                continue  # it has one value, wherever it has one
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and not conditional:
                for one, its in zip(target.elts, value.elts, strict=False):
                    self._assign([one], its)
                continue
            names = [{last_name(part) for part in ast.walk(each)} - {""} for each in (target, value)]
            is_known = not isinstance(self._line.node, ast.AugAssign) and names[0].isdisjoint(names[1])
            self._bind(target, value if is_known else None, is_copy=bool(_what(last_name(value))))

    def _bind(self, target: ast.expr, value: ast.expr | None = None, *, is_copy: bool = False) -> None:
        for part in ast.walk(target):
            if not isinstance(getattr(part, "ctx", None), ast.Store):
                continue
            name = last_name(part)
            if isinstance(part, ast.Name):
                self._depending.add((self._line.scope, name))
            elif isinstance(part, ast.Attribute) and _what(name):
                self._depending.add((_ATTRIBUTE, name))
            if not is_copy:
                self._note(name, self._line.node, value)

    def _look(self, expression: ast.expr) -> None:
        """Calls and items within an expression that make sizes of the step, or hand it on."""
        for part in ast.walk(expression):
            if isinstance(part, ast.Subscript) and self._depends(part.slice):
                self._note(last_name(part.value), part, part if isinstance(part.ctx, ast.Load) else None)
            elif isinstance(part, ast.Call):
                self._call(part)
            elif isinstance(part, ast.comprehension) and self._depends(part.iter):
                self._depending |= {self._line.scope.find(name) for name in _names(part.target)}

    def _call(self, call: ast.Call) -> None:
        name = called(call)
        given = {place: value for place, value in enumerate(call.args) if self._depends(value)}
        named = {word.arg: word.value for word in call.keywords if word.arg and self._depends(word.value)}
        for key, value in named.items():
            if not _what(last_name(value)):
                self._note(key, call, value)
        if not (given or named):
            return
        self._note(name, call, call)
        if name in _MAKES_TENSORS and not all(_what(last_name(value)) for value in given.values()):
            first, *more = given.values()
            self._note("batch_size", call, None if more or isinstance(first, ast.Starred) else first)
        if name in self._own:
            self._parameters[name] |= {*given, *named}

    def _depends(self, node: ast.AST) -> bool:
        match node:
            case ast.Name():
                return self._line.scope.find(node) in self._depending
            case ast.Attribute(attr=name):
                return name not in _SIZE_OF_DATA and (
                    (_ATTRIBUTE, name) in self._depending or self._depends(node.value)
                )
            case ast.Call() if called(node) in _SIZE_OF_DATA:
                return False
            case ast.Call() if called(node) in self._own:
                name, given = called(node), [*node.args, *(word.value for word in node.keywords)]
                # A result that depends by an argument does so where one is given that depends.
                by_argument = not self._parameters[name] or any(map(self._depends, given))
                return (_RESULT, name) in self._depending and by_argument
        return any(map(self._depends, ast.iter_child_nodes(node)))

    def _note(self, name: str, node: ast.stmt | ast.expr, value: ast.expr | None) -> None:
        path = self._line.path
        if (what := _what(name)) and (path, node.lineno, what) not in self._sizes:
            text = linecache.getline(str(path), node.lineno).strip() or ast.unparse(node)
            place = source_line(path, node)
            self._sizes[path, node.lineno, what] = SizeByStep(what, place, text[:_MOST_CHARACTERS], value)


def _what(name: str) -> str:
    """Of what it is the size, by its name; empty if it is none."""
    if _NO_SIZE.search(name):
        return ""
    return next((what for what, words in _SIZE.items() if words.search(name)), "")


def _arguments(node: ast.Module | _Function | ast.Lambda) -> list[str]:
    if isinstance(node, ast.Module):
        return []
    return [each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
