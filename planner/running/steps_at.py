"""Lets a program's training loop count from one step to another, far later one (`--steps-at 0,900,1800`).

The numbers of the loop are other ones where it is run; no file is changed. Whatever a program makes of its counter (the
size of a batch, an evaluation now and then) it makes of these.
"""

from __future__ import annotations

import ast
import builtins
import copy
import importlib.abc
import importlib.machinery
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from planner.errors import ProgramError
from planner.running.assumptions import short_path
from planner.running.training_loops import TrainingLoop, adds_one, last_name, training_loops

EACH = 3
"""Optimizer steps that are run at each: so many settle the memory of equal ones (planner.running.stopping)."""
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
