"""Lets a program count to far later steps (`--steps-at`), and finds sizes that depend on the step in its lines."""

from __future__ import annotations

import ast
import builtins
import copy
import importlib.abc
import importlib.machinery
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from planner.errors import ProgramError
from planner.tracing.program.assumptions import short_path
from planner.tracing.program.program_files import COUNTER, TrainingLoop, adds_one, called, last_name, training_loops

EACH = 3
"""Optimizer steps that are run at each: so many settle the memory of equal ones (planner.tracing.program.stopping)."""
_MOST_NUMBERS = 256
"""Of the counter at one step, where it counts micro-batches."""
_NAME = "__planner_steps__"
_COUNTER = re.compile(r"^(?!.*(?:eval|val|test|micro|accum|warm|log|save)).*(?:step|iter|update)", re.IGNORECASE)
"""Names of what is increased by one with each iteration."""
_OPTION = "--steps-at"


@dataclass(frozen=True, slots=True)
class PeaksAt:
    """The highest bytes of one step and those that follow it at once."""

    step: int
    allocated_bytes: int
    reserved_bytes: int


class StepsAt:
    """The numbers that a loop counts. `rounds` tells how often the optimizers have stepped, `peaks` the highest bytes
    since it was asked last; `done` is called when the last step was run, and does not return."""

    def __init__(
        self,
        steps: Sequence[int],
        rounds: Callable[[], int],
        peaks: Callable[[], tuple[int, int]],
        done: Callable[[], Any],
    ) -> None:
        self._steps, self._rounds, self._peaks, self._done = steps, rounds, peaks, done
        self._numbers = self._count()
        self._next: int | None = None
        self._current = 0
        self._driver: str | None = None
        """The place that has set the counter first; others say what it says."""
        self._at: int | None = None
        self._found: list[PeaksAt] = []
        self._refused: dict[str, str] = {}
        self.drivers = 0
        """Places that may set the counter."""

    def found(self) -> tuple[PeaksAt, ...]:
        """The steps that were run so far."""
        return (*self._found, *([] if self._at is None else [PeaksAt(self._at, *self._peaks())]))

    def check(self) -> None:
        """Raises ProgramError if nothing has counted to them, when the program has come to its end."""
        if self._at is None:
            raise ProgramError(
                f"no loop counted to {', '.join(map(str, self._steps))}: "
                f"{', '.join(self._refused.values()) or 'the program came to none that trains'}",
                allowed="steps that its training loop comes to",
                remedy="name steps that its loop counts to, or have it train for longer",
                place=_OPTION,
            )

    def over(self, numbers: Iterable[int], place: str) -> Iterable[int]:
        """In place of the numbers of a `for`: those, if the steps are not all among them."""
        counted = getattr(numbers, "iterable", numbers)  # a tqdm
        if isinstance(counted, range) and (counted.step != 1 or not all(each in counted for each in self._steps)):
            self._refused[place] = f"the one at {place} counts from {counted.start} to {counted.stop - 1}"
            if len(self._refused) == self.drivers:
                self.check()
            return numbers
        self._driver = self._driver or place
        return (self._take() for _ in count())

    def numbered(self, pairs: Iterable[tuple[int, Any]], place: str) -> Iterator[tuple[int, Any]]:
        """In place of an `enumerate`."""
        self._driver = self._driver or place
        for _, item in pairs:
            yield self._take(), item

    def first(self, place: str) -> int:
        """What a counter is before its loop."""
        if self._driver is None:
            self._driver, self._current = place, self._take()
        return self._current

    def after(self, before: int, place: str, *, drives: bool) -> int:
        """What a counter is after an iteration; one that does not drive follows the loop that does."""
        if not drives:
            return before + 1 if self._driver is None else self._peek()
        self._driver = self._driver or place
        if self._driver == place:
            self._current = self._take()
        return self._current

    def _peek(self) -> int:
        if self._next is None:
            self._next = next(self._numbers)
        return self._next

    def _take(self) -> int:
        found = self._peek()
        self._next = None
        return found

    def _count(self) -> Iterator[int]:
        for step in self._steps:
            if self._at is not None:
                self._found.append(PeaksAt(self._at, *self._peaks()))
            else:
                self._peaks()
            self._at, began = step, self._rounds()
            for number in range(step, step + _MOST_NUMBERS):
                yield number
                if self._rounds() - began >= EACH:
                    break
        self._done()


def counted_anew(files: Mapping[Path, ast.Module], steps: StepsAt) -> dict[Path, ast.Module]:
    """Those of a program's files that count the iterations of its training, with loops and counters that ask `steps`.

    Of several loops of one function the last is taken: those before it warm up. Raises ProgramError if there is none.
    """
    changes = _Changes()
    for loop in _last_of_each_function(files):
        changes.take(loop)
    for path, tree in files.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Attribute) and adds_one(node):
                changes.follow(path, node)
    steps.drivers = changes.drivers
    if not steps.drivers:
        raise ProgramError(
            "no loop was found that trains and counts its iterations",
            allowed="in the program's own files a loop around backward() and step(): `for step in range(...)`, "
            "`for step, batch in enumerate(...)`, or one that adds 1 to a counter (`step += 1`)",
            remedy="leave it out, and have the program itself begin at another step",
            place=_OPTION,
        )
    return {path: ast.fix_missing_locations(changes.visit(files[path])) for path in changes.paths}


@contextmanager
def counting(steps: StepsAt, changed: Mapping[Path, ast.Module]) -> Iterator[None]:
    """Inside, modules of the changed files are made of these."""
    finder = _Finder({str(path): tree for path, tree in changed.items()})
    setattr(builtins, _NAME, steps)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        delattr(builtins, _NAME)


def run_changed(program: str, tree: ast.Module) -> None:
    """As `runpy.run_path(program, run_name="__main__")` would the file."""
    main = ModuleType("__main__")
    main.__file__ = program
    sys.modules["__main__"] = main
    exec(compile(tree, program, "exec"), vars(main))


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, changed: Mapping[str, ast.Module]) -> None:
        self._changed = changed

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.origin is None or spec.origin not in self._changed:
            return None
        spec.loader = _Loader(name, spec.origin, self._changed[spec.origin])
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, tree: ast.Module) -> None:
        super().__init__(name, path)
        self._tree = tree

    def get_code(self, _name: str) -> CodeType:
        found: CodeType = compile(self._tree, self.path, "exec")
        return found


class _Changes(ast.NodeTransformer):
    """What is to be changed, by the ids of nodes."""

    def __init__(self) -> None:
        self.paths: list[Path] = []
        self.drivers = 0
        self._calls: dict[int, tuple[str, str]] = {}
        self._increments: dict[int, tuple[str, bool]] = {}
        self._firsts: dict[int, list[tuple[ast.expr, str]]] = {}

    def take(self, loop: TrainingLoop) -> None:
        """Its numbers, or else its counters, are those of the steps."""
        place = self._place(loop.path, loop.node)
        numbered = loop.numbered()
        if numbered is not None:
            call, name = numbered
            self._calls[id(call)] = ("numbered" if name == "enumerate" else "over", place)
        counters = [each for each in loop.increments() if _COUNTER.search(last_name(each.target))]
        for each in counters:
            self._increments[id(each)] = (self._place(loop.path, each), numbered is None)
        if numbered is None and counters:
            self._firsts[id(loop.node)] = [(each.target, self._place(loop.path, each)) for each in counters]
        self.drivers += numbered is not None or bool(counters)
        self._note(loop.path)

    def follow(self, path: Path, node: ast.AugAssign) -> None:
        """A counter somewhere else: it drives if no loop does."""
        if _COUNTER.search(last_name(node.target)) and id(node) not in self._increments:
            drives = not self._calls and not self._firsts
            self._increments[id(node)] = (self._place(path, node), drives)
            self.drivers += drives
            self._note(path)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if id(node) not in self._calls:
            return node
        method, place = self._calls[id(node)]
        return ast.copy_location(_ask(method, [node, ast.Constant(place)]), node)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        if id(node) not in self._increments:
            return node
        place, drives = self._increments[id(node)]
        asked = _ask("after", [_read(node.target), ast.Constant(place)], drives=ast.Constant(drives))
        return ast.copy_location(ast.Assign([node.target], asked), node)

    def visit_For(self, node: ast.For) -> Any:
        return self._loop(node)

    def visit_While(self, node: ast.While) -> Any:
        return self._loop(node)

    def _loop(self, node: ast.For | ast.While) -> Any:
        before = [
            ast.copy_location(ast.Assign([copy.deepcopy(target)], _ask("first", [ast.Constant(place)])), node)
            for target, place in self._firsts.get(id(node), [])
        ]
        self.generic_visit(node)
        return [*before, node]

    def _place(self, path: Path, node: ast.stmt) -> str:
        return f"{short_path(str(path))}:{node.lineno}"

    def _note(self, path: Path) -> None:
        if path not in self.paths:
            self.paths.append(path)


def _ask(method: str, given: list[ast.expr], **named: ast.expr) -> ast.Call:
    asked = ast.Attribute(ast.Name(_NAME, ast.Load()), method, ast.Load())
    return ast.Call(asked, given, [ast.keyword(key, value) for key, value in named.items()])


def _read(target: ast.expr) -> ast.expr:
    found = copy.deepcopy(target)
    found.ctx = ast.Load()  # type: ignore[attr-defined]
    return found


def _last_of_each_function(files: Mapping[Path, ast.Module]) -> list[TrainingLoop]:
    loops = [each for each in training_loops(files) if each.is_inner]
    owners: dict[int, int] = {}
    for tree in files.values():
        for function in ast.walk(tree):  # outer ones come first
            if isinstance(function, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef):
                owners.update((id(each), id(function)) for each in ast.walk(function))
    last: dict[int, TrainingLoop] = {}
    for each in sorted(loops, key=lambda loop: loop.node.lineno):
        last[owners[id(each.node)]] = each
    return [*last.values()]


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
