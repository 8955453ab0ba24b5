"""Finds sizes that depend on the step in the lines of a program's own files."""

from __future__ import annotations

import ast
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


@dataclass(frozen=True, slots=True)
class SizeByStep:
    """`what` is `batch`, `sequence`, `window` or `image`; `text` is the line's own."""

    what: str
    place: str
    text: str
    value: ast.expr | None = field(default=None, compare=False)
    """Whose value at a step is the size; None where it has no such expression, or hangs on steps before that one."""


@dataclass(slots=True)
class _Scope:
    """A file, or a function in it: the names that it binds, how often, and those that depend on the step."""

    outer: _Scope | None = None
    bound: Counter[str] = field(default_factory=Counter)
    depending: set[str] = field(default_factory=set)

    def depends(self, name: str) -> bool:
        if name in self.bound or self.outer is None:
            return name in self.depending
        return self.outer.depends(name)


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
    sizes = _follow(files, _Flow(files, loops, elsewhere))
    unknown = _follow(files, _Flow(files, around, elsewhere - own))
    return [replace(size, value=None) if size in unknown else size for size in sizes]


def _counters_of_objects(files: Mapping[Path, ast.Module]) -> Iterator[str]:
    for tree in files.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Attribute) and adds_one(node):
                yield from {node.target.attr} if COUNTER.search(node.target.attr) else ()


def _follow(files: Mapping[Path, ast.Module], flow: _Flow) -> list[SizeByStep]:
    for _ in range(_ROUNDS):
        before = flow.extent()
        for path, tree in files.items():
            flow.follow(path, tree)
        if flow.extent() == before:
            break
    kinds, order = [*_SIZES], [*files]
    lines = sorted(flow.sizes, key=lambda line: (kinds.index(line[2]), order.index(line[0]), line[1]))
    return [flow.sizes[line] for line in lines]


def say_schedules(sizes: Sequence[SizeByStep]) -> tuple[str, ...]:
    """A sentence for each kind of size, with the last of its lines."""
    return tuple(
        f"the size of the {what} depends on the step at {lines[-1].place} ({lines[-1].text})"
        + "".join(f", {line.place}" for line in lines[:-1][:_MOST_PLACES])
        for what, lines in ((what, list(lines)) for what, lines in groupby(sizes, key=lambda size: size.what))
    )


class _Flow:
    """What depends on the step: variables by scope, attributes, parameters and results of functions by their names."""

    def __init__(self, files: Mapping[Path, ast.Module], loops: Sequence[TrainingLoop], attributes: set[str]) -> None:
        """`attributes`: of objects that are counted up."""
        self.sizes: dict[tuple[Path, int, str], SizeByStep] = {}
        self._lines: dict[Path, list[str]] = {}
        self._scopes: dict[int, _Scope] = {}
        self._attributes = attributes.copy()
        self._results: set[str] = set()
        self._parameters: defaultdict[str, set[int | str]] = defaultdict(set)
        """Of functions by their names: places and names of arguments that depend."""
        self._loops = {id(loop.node): loop for loop in loops}
        functions = (node for tree in files.values() for node in ast.walk(tree) if isinstance(node, _Function))
        self._own = {function.name for function in functions}

    def extent(self) -> int:
        """How much is known to depend: it only grows."""
        scopes = sum(len(scope.depending) for scope in self._scopes.values())
        return scopes + len(self._attributes) + len(self._results) + sum(map(len, self._parameters.values()))

    def follow(self, path: Path, tree: ast.Module) -> None:
        """One more round over a file."""
        self._path = path
        self._walk(tree.body, self._scope(tree, None), conditional=False, function="")

    def _scope(self, node: ast.AST, outer: _Scope | None) -> _Scope:
        if id(node) not in self._scopes:
            bound = Counter(argument.arg for argument in (_arguments(node) if isinstance(node, _Function) else ()))
            inner = list(ast.walk(node))
            bound.update(name.id for name in inner if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store))
            for statement in inner:
                for name in statement.names if isinstance(statement, ast.Global) else ():
                    del bound[name]
            self._scopes[id(node)] = _Scope(outer, bound)
        return self._scopes[id(node)]

    def _walk(self, body: list[ast.stmt], scope: _Scope, *, conditional: bool, function: str) -> None:
        """`conditional`: whether it depends on the step that these lines run; they are of the `function`."""
        for statement in body:
            self._statement(statement, scope, conditional=conditional, function=function)

    def _statement(self, node: ast.stmt, scope: _Scope, *, conditional: bool, function: str) -> None:
        if isinstance(node, _Function):
            inner = self._scope(node, scope)
            names = [argument.arg for argument in _arguments(node)]
            first = names[:1] in (["self"], ["cls"])
            for place, name in enumerate(names):
                if {place - first, name} & self._parameters[node.name]:
                    inner.depending.add(name)
            self._walk(node.body, inner, conditional=False, function=node.name)
            return
        if isinstance(node, ast.ClassDef):
            self._walk(node.body, scope, conditional=False, function="")
            return
        for child in ast.iter_child_nodes(node):  # none of the statements within it
            if isinstance(child, ast.expr | ast.withitem):
                self._look(child.context_expr if isinstance(child, ast.withitem) else child, scope)
        under = conditional
        match node:
            case ast.For() | ast.While():
                loop = self._loops.get(id(node))
                if loop is not None:
                    counters = [counter.target for counter in loop.increments()]
                    scope.depending.update(target.id for target in counters if isinstance(target, ast.Name))
                    scope.depending.update({loop.target()} - {""})
                elif isinstance(node, ast.For) and self._depends(node.iter, scope):
                    self._bind(node.target, scope, node)
            case ast.If():
                # `step % 100 == 0`: what is done now and then is not a schedule.
                is_periodic = any(isinstance(part, ast.Mod) for part in ast.walk(node.test))
                under = conditional or (not is_periodic and self._depends(node.test, scope))
            case ast.Assign():
                self._assign(node.targets, node.value, scope, node, conditional)
            case ast.AnnAssign(value=ast.expr() as value):
                self._assign([node.target], value, scope, node, conditional)
            case ast.AugAssign():
                self._assign([node.target], node.value, scope, node, conditional)
            case ast.Return(value=ast.expr() as value) if conditional or self._depends(value, scope):
                self._results.add(function)
        for name in ("body", "orelse", "finalbody"):
            self._walk(getattr(node, name, []), scope, conditional=under, function=function)
        for part in (*getattr(node, "handlers", []), *getattr(node, "cases", [])):
            self._walk(part.body, scope, conditional=under, function=function)

    def _assign(
        self, targets: list[ast.expr], value: ast.expr, scope: _Scope, node: ast.stmt, conditional: bool
    ) -> None:
        depends = self._depends(value, scope)
        if depends or conditional:
            for target in targets:
                if not depends and scope.bound[last_name(target)] == 1:
                    continue  # it has one value, wherever it has one
                if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and not conditional:
                    for one, its in zip(target.elts, value.elts, strict=False):
                        self._assign([one], its, scope, node, conditional)
                else:
                    hangs = {last_name(part) for part in ast.walk(value)} & {
                        last_name(part) for part in ast.walk(target)
                    }
                    known = None if isinstance(node, ast.AugAssign) or hangs - {""} else value
                    self._bind(target, scope, node, known, is_copy=bool(_what(last_name(value))))

    def _bind(
        self, target: ast.expr, scope: _Scope, node: ast.stmt, value: ast.expr | None = None, *, is_copy: bool = False
    ) -> None:
        for part in ast.walk(target):
            if not isinstance(getattr(part, "ctx", None), ast.Store):
                continue
            name = last_name(part)
            if isinstance(part, ast.Name):
                scope.depending.add(name)
            elif isinstance(part, ast.Attribute) and _what(name):
                self._attributes.add(name)
            if not is_copy:
                self._note(name, node, value)

    def _look(self, expression: ast.expr, scope: _Scope) -> None:
        """Calls and items within an expression that make sizes of the step, or hand it on."""
        for part in ast.walk(expression):
            if isinstance(part, ast.Subscript) and self._depends(part.slice, scope):
                self._note(last_name(part.value), part, part if isinstance(part.ctx, ast.Load) else None)
            elif isinstance(part, ast.Call):
                self._call(part, scope)

    def _call(self, call: ast.Call, scope: _Scope) -> None:
        name = called(call)
        given = [(place, value) for place, value in enumerate(call.args) if self._depends(value, scope)]
        named = [(word.arg, word.value) for word in call.keywords if word.arg and self._depends(word.value, scope)]
        for key, value in named:
            if not _what(last_name(value)):
                self._note(key, call, value)
        if given or named:
            self._note(name, call, call)
            if name in _MAKES_TENSORS and not all(_what(last_name(value)) for _, value in given):
                first, *more = (value for _, value in given)
                self._note("batch_size", call, None if more or isinstance(first, ast.Starred) else first)
            if name in self._own:
                self._parameters[name] |= {place for place, _ in given} | {key for key, _ in named}

    def _depends(self, node: ast.AST, scope: _Scope) -> bool:
        match node:
            case ast.Name(id=name):
                return scope.depends(name)
            case ast.Attribute(attr=name):
                return name not in _SIZE_OF_DATA and (name in self._attributes or self._depends(node.value, scope))
            case ast.Call() if called(node) in _SIZE_OF_DATA:
                return False
            case ast.Call() if called(node) in self._own:
                own, given = called(node), [*node.args, *(word.value for word in node.keywords)]
                # A result that depends by an argument does so where one is given that depends.
                by_argument = not self._parameters[own] or any(self._depends(value, scope) for value in given)
                return own in self._results and by_argument
        return any(self._depends(child, scope) for child in ast.iter_child_nodes(node))

    def _note(self, name: str, node: ast.stmt | ast.expr, value: ast.expr | None) -> None:
        what = _what(name)
        if not what or (self._path, node.lineno, what) in self.sizes:
            return
        if self._path not in self._lines:
            try:
                text = self._path.read_text(encoding="utf-8", errors="replace")
            except OSError:
                text = ""
            self._lines[self._path] = text.splitlines()
        lines = self._lines[self._path]
        line = lines[node.lineno - 1].strip() if node.lineno <= len(lines) else ast.unparse(node)
        self.sizes[self._path, node.lineno, what] = SizeByStep(
            what, source_line(self._path, node), line[:_MOST_CHARACTERS], value
        )


def _what(name: str) -> str:
    """Of what it is the size, by its name; empty if it is none."""
    if _NO_SIZE.search(name):
        return ""
    return next((what for what, words in _SIZE.items() if words.search(name)), "")


def _arguments(node: _Function) -> list[ast.arg]:
    return [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
