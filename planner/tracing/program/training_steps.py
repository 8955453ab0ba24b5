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
from itertools import count, groupby
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
        self._peaks_at: list[PeaksAt] = []
        self._refused: dict[str, str] = {}
        self.drivers = 0
        """Places that may set the counter."""

    def peaks(self) -> tuple[PeaksAt, ...]:
        """The steps that were run so far."""
        return (*self._peaks_at, *([] if self._at is None else [PeaksAt(self._at, *self._peaks())]))

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
        if isinstance(counted, range) and (counted.step != 1 or not all(step in counted for step in self._steps)):
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
        number, self._next = self._peek(), None
        return number

    def _count(self) -> Iterator[int]:
        for step in self._steps:
            peaks = self._peaks()
            if self._at is not None:
                self._peaks_at.append(PeaksAt(self._at, *peaks))
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
        code: CodeType = compile(self._tree, self.path, "exec")
        return code


class _Changes(ast.NodeTransformer):
    def __init__(self) -> None:
        self.paths: dict[Path, None] = {}
        self.drivers = 0
        self._calls: dict[int, tuple[str, str]] = {}
        self._increments: dict[int, tuple[str, bool]] = {}
        self._firsts: dict[int, list[tuple[ast.expr, str]]] = {}

    def take(self, loop: TrainingLoop) -> None:
        """Its numbers, or else its counters, are those of the steps."""
        place = _place(loop.path, loop.node)
        numbered = loop.numbered()
        if numbered is not None:
            call, name = numbered
            self._calls[id(call)] = ("numbered" if name == "enumerate" else "over", place)
        counters = [counter for counter in loop.increments() if _COUNTER.search(last_name(counter.target))]
        for counter in counters:
            self._increments[id(counter)] = (_place(loop.path, counter), numbered is None)
        if numbered is None and counters:
            self._firsts[id(loop.node)] = [(counter.target, _place(loop.path, counter)) for counter in counters]
        self.drivers += numbered is not None or bool(counters)
        self.paths[loop.path] = None

    def follow(self, path: Path, node: ast.AugAssign) -> None:
        """A counter somewhere else: it drives if no loop does."""
        if _COUNTER.search(last_name(node.target)) and id(node) not in self._increments:
            drives = not self._calls and not self._firsts
            self._increments[id(node)] = (_place(path, node), drives)
            self.drivers += drives
            self.paths[path] = None

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
        before = copy.deepcopy(node.target)
        before.ctx = ast.Load()
        asked = _ask("after", [before, ast.Constant(place)], drives=ast.Constant(drives))
        return ast.copy_location(ast.Assign([node.target], asked), node)

    def visit_For(self, node: ast.For | ast.While) -> Any:
        before = [
            ast.copy_location(ast.Assign([copy.deepcopy(target)], _ask("first", [ast.Constant(place)])), node)
            for target, place in self._firsts.get(id(node), [])
        ]
        self.generic_visit(node)
        return [*before, node]

    visit_While = visit_For  # noqa: N815


def _place(path: Path, node: ast.stmt | ast.expr) -> str:
    return f"{short_path(str(path))}:{node.lineno}"


def _ask(method: str, given: list[ast.expr], **named: ast.expr) -> ast.Call:
    asked = ast.Attribute(ast.Name(_NAME, ast.Load()), method, ast.Load())
    return ast.Call(asked, given, [ast.keyword(key, value) for key, value in named.items()])


def _last_of_each_function(files: Mapping[Path, ast.Module]) -> list[TrainingLoop]:
    loops = [loop for loop in training_loops(files) if loop.is_inner]
    owners: dict[int, int] = {}
    for tree in files.values():
        for function in ast.walk(tree):  # outer ones come first
            if isinstance(function, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef):
                owners.update((id(node), id(function)) for node in ast.walk(function))
    return [*{owners[id(loop.node)]: loop for loop in sorted(loops, key=lambda loop: loop.node.lineno)}.values()]


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
        before = flow.extent()
        for path, tree in files.items():
            flow.follow(path, tree)
        if flow.extent() == before:
            break
    kinds, order = [*_SIZES], [*files]
    lines = sorted(flow.sizes, key=lambda line: (kinds.index(line[2]), order.index(line[0]), line[1]))
    return [flow.sizes[line] for line in lines]


def say_schedules(files: Mapping[Path, ast.Module]) -> tuple[str, ...]:
    """A sentence for each kind of size, with the last of its lines."""
    return tuple(
        f"the size of the {what} depends on the step at {lines[-1].place} ({lines[-1].text})"
        + "".join(f", {line.place}" for line in lines[:-1][:_MOST_PLACES])
        for what, lines in (
            (what, list(lines)) for what, lines in groupby(sizes_by_step(files), key=lambda size: size.what)
        )
    )


class _Flow:
    """What depends on the step: variables by scope, attributes, parameters and results of functions by their names."""

    def __init__(self, files: Mapping[Path, ast.Module]) -> None:
        self.sizes: dict[tuple[Path, int, str], SizeByStep] = {}
        self._lines: dict[Path, list[str]] = {}
        self._scopes: dict[int, _Scope] = {}
        self._attributes: set[str] = set(_ELSEWHERE)
        self._results: set[str] = set()
        self._parameters: defaultdict[str, set[int | str]] = defaultdict(set)
        """Of functions by their names: places and names of arguments that depend."""
        self._own: set[str] = set()
        self._loops = {id(loop.node): loop for loop in training_loops(files)}
        for tree in files.values():
            for node in ast.walk(tree):
                if isinstance(node, _Function):
                    self._own.add(node.name)
                elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Attribute) and adds_one(node):
                    self._attributes.update({node.target.attr} if COUNTER.search(node.target.attr) else ())

    def extent(self) -> int:
        """How much is known to depend: it only grows."""
        scopes = sum(len(scope.depending) for scope in self._scopes.values())
        return scopes + len(self._attributes) + len(self._results) + sum(map(len, self._parameters.values()))

    def follow(self, path: Path, tree: ast.Module) -> None:
        """One more round over a file."""
        if self._loops:
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
                # `step % 100 == 0`: what is done now and then is no schedule.
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
                    self._bind(target, scope, node, is_copy=bool(_what(last_name(value))))

    def _bind(self, target: ast.expr, scope: _Scope, node: ast.stmt, *, is_copy: bool = False) -> None:
        for part in ast.walk(target):
            if not isinstance(getattr(part, "ctx", None), ast.Store):
                continue
            name = last_name(part)
            if isinstance(part, ast.Name):
                scope.depending.add(name)
            elif isinstance(part, ast.Attribute) and _what(name):
                self._attributes.add(name)
            if not is_copy:
                self._note(name, node)

    def _look(self, expression: ast.expr, scope: _Scope) -> None:
        """Calls and items within an expression that make sizes of the step, or hand it on."""
        for part in ast.walk(expression):
            if isinstance(part, ast.Subscript) and self._depends(part.slice, scope):
                self._note(last_name(part.value), part)
            elif isinstance(part, ast.Call):
                self._call(part, scope)

    def _call(self, call: ast.Call, scope: _Scope) -> None:
        name = called(call)
        given = [(place, value) for place, value in enumerate(call.args) if self._depends(value, scope)]
        named = [(word.arg, word.value) for word in call.keywords if word.arg and self._depends(word.value, scope)]
        for key, value in named:
            if not _what(last_name(value)):
                self._note(key, call)
        if given or named:
            self._note(name, call)
            if name in _MAKES_TENSORS and not all(_what(last_name(value)) for _, value in given):
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
                own, given = called(node), [*node.args, *(word.value for word in node.keywords)]
                # A result that depends by an argument does so where one is given that depends.
                by_argument = not self._parameters[own] or any(self._depends(value, scope) for value in given)
                return own in self._results and by_argument
        return any(self._depends(child, scope) for child in ast.iter_child_nodes(node))

    def _note(self, name: str, node: ast.stmt | ast.expr) -> None:
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
        self.sizes[self._path, node.lineno, what] = SizeByStep(what, _place(self._path, node), line[:_MOST_CHARACTERS])


def _what(name: str) -> str:
    """Of what it is the size, by its name; empty if it is none."""
    if _NO_SIZE.search(name):
        return ""
    return next((what for what, words in _SIZE.items() if words.search(name)), "")


def _arguments(node: _Function) -> list[ast.arg]:
    return [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
