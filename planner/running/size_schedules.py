"""Where a program's own lines let the size of a batch, a sequence or a window depend on the step.

What depends on what is followed through assignments, conditions, calls of the program's own functions and their
results, by names alone. It may miss a schedule (a library's, one that goes through data), and may name a line whose
size never changes: the report quotes it.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from planner.running.assumptions import short_path
from planner.running.training_loops import COUNTER, TrainingLoop, adds_one, called, last_name, training_loops

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


def sizes_by_step(files: Mapping[Path, ast.Module]) -> list[SizeByStep]:
    """Every such line of these files, in their order; none if no loop of theirs trains."""
    flow = _Flow(files)
    for _ in range(_ROUNDS):
        before = flow.size()
        for path, tree in files.items():
            flow.follow(path, tree)
        if flow.size() == before:
            break
    kinds, order = [*_SIZES], [*files]
    found = sorted(flow.found, key=lambda each: (kinds.index(each[2]), order.index(each[0]), each[1]))
    return [flow.found[each] for each in found]


def say_schedules(files: Mapping[Path, ast.Module]) -> tuple[str, ...]:
    """A sentence for each kind of size, with the last of its lines."""
    of_kind: defaultdict[str, list[SizeByStep]] = defaultdict(list)
    for each in sizes_by_step(files):
        of_kind[each.what].append(each)
    return tuple(
        f"the size of the {what} depends on the step at {lines[-1].place} ({lines[-1].text})"
        + "".join(f", {each.place}" for each in lines[:-1][:_MOST_PLACES])
        for what, lines in of_kind.items()
    )


class _Flow:
    """What depends on the step: variables by scope, attributes, parameters and results of functions by their names."""

    def __init__(self, files: Mapping[Path, ast.Module]) -> None:
        self.found: dict[tuple[Path, int, str], SizeByStep] = {}
        self._lines: dict[Path, list[str]] = {}
        self._scopes: dict[int, _Scope] = {}
        self._attributes: set[str] = set(_ELSEWHERE)
        self._results: set[str] = set()
        self._parameters: defaultdict[str, set[int | str]] = defaultdict(set)
        """Of functions by their names: places and names of arguments that depend."""
        self._own: set[str] = set()
        self._loops = {id(each.node): each for each in training_loops(files)}
        for tree in files.values():
            for node in ast.walk(tree):
                if isinstance(node, _Function):
                    self._own.add(node.name)
                elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Attribute) and adds_one(node):
                    self._attributes.update({node.target.attr} if COUNTER.search(node.target.attr) else ())

    def size(self) -> int:
        """How much is known to depend: it only grows."""
        scopes = sum(len(each.depending) for each in self._scopes.values())
        return scopes + len(self._attributes) + len(self._results) + sum(map(len, self._parameters.values()))

    def follow(self, path: Path, tree: ast.Module) -> None:
        """One more round over a file."""
        if self._loops:
            self._path = path
            self._walk(tree.body, self._scope(tree, None), conditional=False, function="")

    def _scope(self, node: ast.AST, outer: _Scope | None) -> _Scope:
        if id(node) not in self._scopes:
            arguments = _arguments(node) if isinstance(node, _Function) else []
            names = [each for each in ast.walk(node) if isinstance(each, ast.Name)]
            stored = (each.id for each in names if isinstance(each.ctx, ast.Store))
            bound = Counter([*(each.arg for each in arguments), *stored])
            for each in ast.walk(node):
                for name in each.names if isinstance(each, ast.Global) else ():
                    del bound[name]
            self._scopes[id(node)] = _Scope(outer, bound)
        return self._scopes[id(node)]

    def _walk(self, body: list[ast.stmt], scope: _Scope, *, conditional: bool, function: str) -> None:
        """`conditional`: whether it depends on the step that these lines run; they are of the `function`."""
        for each in body:
            self._statement(each, scope, conditional=conditional, function=function)

    def _statement(self, node: ast.stmt, scope: _Scope, *, conditional: bool, function: str) -> None:
        if isinstance(node, _Function):
            inner = self._scope(node, scope)
            names = [each.arg for each in _arguments(node)]
            first = names[:1] in (["self"], ["cls"])
            for place, name in enumerate(names):
                if {place - first, name} & self._parameters[node.name]:
                    inner.depending.add(name)
            self._walk(node.body, inner, conditional=False, function=node.name)
            return
        if isinstance(node, ast.ClassDef):
            self._walk(node.body, scope, conditional=False, function="")
            return
        for each in _expressions(node):
            self._look(each, scope)
        under = conditional
        match node:
            case ast.For() | ast.While():
                loop = self._loops.get(id(node))
                if loop is not None:
                    self._counters(loop, scope)
                elif isinstance(node, ast.For) and self._depends(node.iter, scope):
                    self._bind(node.target, scope, node)
            case ast.If():
                under = conditional or (self._depends(node.test, scope) and not _is_periodic(node.test))
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
        for each in (*getattr(node, "handlers", []), *getattr(node, "cases", [])):
            self._walk(each.body, scope, conditional=under, function=function)

    def _counters(self, loop: TrainingLoop, scope: _Scope) -> None:
        if loop.target():
            scope.depending.add(loop.target())
        for each in loop.increments():
            if isinstance(each.target, ast.Name):
                scope.depending.add(each.target.id)

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
                    self._bind(target, scope, node, is_copy=bool(_what(last_name(value))))

    def _bind(self, target: ast.expr, scope: _Scope, node: ast.stmt, *, is_copy: bool = False) -> None:
        for each in ast.walk(target):
            if not isinstance(getattr(each, "ctx", None), ast.Store):
                continue
            name = last_name(each)
            if isinstance(each, ast.Name):
                scope.depending.add(name)
            elif isinstance(each, ast.Attribute) and _what(name):
                self._attributes.add(name)
            if not is_copy:
                self._note(name, node)

    def _look(self, expression: ast.expr, scope: _Scope) -> None:
        """Calls and items within an expression that make sizes of the step, or hand it on."""
        for each in ast.walk(expression):
            if isinstance(each, ast.Subscript) and self._depends(each.slice, scope):
                self._note(last_name(each.value), each)
            elif isinstance(each, ast.Call):
                self._call(each, scope)

    def _call(self, call: ast.Call, scope: _Scope) -> None:
        name = called(call)
        given = [(place, each) for place, each in enumerate(call.args) if self._depends(each, scope)]
        named = [(each.arg, each.value) for each in call.keywords if each.arg and self._depends(each.value, scope)]
        for key, value in named:
            if not _what(last_name(value)):
                self._note(key, call)
        if given or named:
            self._note(name, call)
            if name in _MAKES_TENSORS and not all(_what(last_name(each)) for _, each in given):
                self._note("batch_size", call)
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
                own, given = called(node), [*node.args, *(each.value for each in node.keywords)]
                # A result that depends by an argument does so where one is given that depends.
                by_argument = not self._parameters[own] or any(self._depends(each, scope) for each in given)
                return own in self._results and by_argument
        return any(self._depends(each, scope) for each in ast.iter_child_nodes(node))

    def _note(self, name: str, node: ast.stmt | ast.expr) -> None:
        what = _what(name)
        if what and (self._path, node.lineno, what) not in self.found:
            lines = self._lines.setdefault(self._path, _lines_of(self._path))
            text = lines[node.lineno - 1].strip() if node.lineno <= len(lines) else ast.unparse(node)
            place = f"{short_path(str(self._path))}:{node.lineno}"
            self.found[self._path, node.lineno, what] = SizeByStep(what, place, text[:_MOST_CHARACTERS])


def _what(name: str) -> str:
    """Of what it is the size, by its name; empty if it is none."""
    if _NO_SIZE.search(name):
        return ""
    return next((what for what, words in _SIZE.items() if words.search(name)), "")


def _arguments(node: _Function) -> list[ast.arg]:
    return [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]


def _expressions(node: ast.stmt) -> Iterator[ast.expr]:
    """Those of a statement itself: none of the statements within it."""
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.expr):
            yield each
        elif isinstance(each, ast.withitem):
            yield each.context_expr


def _is_periodic(test: ast.expr) -> bool:
    """`step % 100 == 0`: what is done now and then is no schedule."""
    return any(isinstance(each, ast.Mod) for each in ast.walk(test))


def _lines_of(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
