"""Lets a program's loop count to far later steps: to those of `--steps-at`, or where its sizes are largest."""

from __future__ import annotations

import ast
import copy
import importlib.abc
import importlib.machinery
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import length_hint
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import torch

from planner.errors import ProgramError
from planner.tracing.program.input_sizes import Causes
from planner.tracing.program.program_files import TrainingLoop, adds_one, last_name, source_line, training_loops
from planner.tracing.program.rank_orders import PeaksAt
from planner.tracing.program.size_schedules import SizeByStep
from planner.tracing.program.step_look_ahead import Skip, StepLookAhead

EACH = 3
"""Optimizer steps that are run at each: so many settle the memory of equal ones (planner.tracing.program.stopping)."""
_MOST_NUMBERS = 256
"""Of the counter at one step, where it counts micro-batches."""
_NAME = "__planner_steps__"
_COUNTER = re.compile(r"^(?!.*(?:eval|val|test|micro|accum|warm|log|save)).*(?:step|iter|update)", re.IGNORECASE)
"""Names of what is increased by one with each iteration."""
_MOST_PASSED = 8
"""Iterations that are left out in a row, where none of them counts."""
_OPTION = "--steps-at"
_AROUND = f"""
try:
    try:
        pass
    except BaseException:
        if not {_NAME}.passes():
            raise
finally:
    {_NAME}.left()
"""
"""A loop, and what it does each time."""


class StepsAt:
    """The numbers that a loop counts: after `usual` iterations those of `steps` instead of its own. With an `ahead` it
    finds these steps itself, once it is told to `hurry`.

    `rounds` tells how often the optimizers have stepped, `iterations` how many are over, `peaks` the highest bytes
    since it was asked last. `reached` is called when a loop asks for its first number, and when the last step was run
    `done`, which does not return."""

    def __init__(
        self,
        steps: Sequence[int],
        usual: int,
        rounds: Callable[[], int],
        iterations: Callable[[], int],
        peaks: Callable[[], tuple[int, int]],
        done: Callable[[], Any],
        reached: Callable[[], None],
    ) -> None:
        self._steps: dict[int, str] = dict.fromkeys(steps, "")
        """With what is largest there."""
        self._rounds, self._iterations = rounds, iterations
        self._peaks, self._done, self._reached = peaks, done, reached
        self.usual: float = usual if steps else math.inf
        self.is_asked = bool(steps) and not usual
        self.ahead: StepLookAhead | None = None
        self.length = 0
        """How often the loop is gone through, as far as the program's options say it; 0: not known."""
        self._numbers: Iterator[int] | None = None
        self._next: int | None = None
        self._current = 0
        self._driver: str | None = None
        """The place that has set the counter first; others say what it says."""
        self._own: tuple[int, int] | None = None
        """The first number that the loop has counted by itself, and after how many rounds."""
        self._began: int | None = None
        """After how many rounds it was reached."""
        self._last: int | None = None
        self._bounds: dict[str, Callable[[], int]] = {}
        self._at: tuple[int, int] | None = None
        """The step, and its first iteration."""
        self._peaks_at: list[PeaksAt] = []
        self._refused: dict[str, str] = {}
        self._has_looked = False
        self._passed = 0
        """Iterations of a child in a row that did not count."""
        self.drivers = 0
        """Places that may set the counter."""
        self.loops_of: set[str] = set()
        """Files with loops among them."""
        self.files: set[str] = set()
        """That were run so far."""

    @property
    def counts(self) -> bool:
        """Whether it counts to other steps now."""
        return self._numbers is not None

    @property
    def reached_after(self) -> int | None:
        """After how many iterations the loop asked for its first number; None if it has not."""
        return self._began

    def hurry(self) -> bool:
        """Enough was seen of the usual steps: the next number is that of another one, if there is one to run. Returns
        whether that is not known yet."""
        if self.ahead is None or not self.drivers or self._has_looked:
            return False
        if self._began is None and not self.loops_of & self.files:
            return False  # a counter elsewhere would have counted the iterations that were seen
        self.usual = 0
        return True

    def skip(self) -> None:
        """A model is called, or something else begins that takes memory: a child has seen enough of this number."""
        if self.ahead is not None and self.ahead.is_child:
            raise Skip

    def peaks(self) -> tuple[PeaksAt, ...]:
        return (*self._peaks_at, *([] if self._at is None else [self._peaks_now(self._at)]))

    def check(self) -> None:
        """Raises ProgramError if nothing has counted to them, when the program has come to its end."""
        if not self.counts:
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
        if not isinstance(counted, range):
            return self._pass_on(numbers, place, None)
        if counted.step != 1 or not all(step in counted for step in self._steps):
            self._refused[place] = f"the one at {place} counts from {counted.start} to {counted.stop - 1}"
            if self.is_asked and len(self._refused) == self.drivers:
                self.check()
            return numbers
        return self._pass_on(numbers, place, counted.stop - 1)

    def _pass_on(self, numbers: Iterable[int], place: str, last: int | None) -> Iterator[int]:
        self._reach(place, last)
        for own in numbers:
            yield self._take(own)
            while self.counts:
                yield self._take(own)

    def numbered(self, pairs: enumerate[Any], place: str) -> Iterator[tuple[int, Any]]:
        """In place of an `enumerate`."""
        made_of: Any = pairs.__reduce__()[1]
        items, first = made_of  # the iterator, and where it begins (Objects/enumobject.c)
        self._reach(place, first + length - 1 if (length := length_hint(items)) else None)
        for own, item in pairs:
            yield self._take(own), item
            while self.ahead is not None and self.ahead.is_child:
                yield self._take(own), item

    def bounded(self, place: str, last: Callable[[], int]) -> None:
        """A loop begins whose lines say the last number to which it counts."""
        self._bounds[place] = last

    def first(self, before: int, place: str, drives: bool) -> int:
        """What a counter is before its loop; the first of several drives."""
        if drives and not self.counts:
            self._reach(place, None)
            self._current = self._take(before)
        return self._current if self.counts else before

    def after(self, before: int, place: str, drives: bool) -> int:
        """What a counter is after an iteration; one that does not drive follows the loop that does."""
        if not drives:
            return self._peek() if self.counts else before + 1
        if self._driver is None:
            self._reach(place, None)
        if self._driver == place:
            self._current = self._take(before + 1)
        return self._current if self.counts else before + 1

    def size(self, line: int, value: Any) -> Any:
        """The value of a line on which a size hangs."""
        if not torch.compiler.is_compiling() and self.ahead is not None:
            self.ahead.note(line, value)
        return value

    def sizes_now(self) -> Causes:
        """The values of all such lines, as they were last."""
        return () if self.ahead is None else self.ahead.sizes_now()

    def passes(self) -> bool:
        """Whether a loop goes on although something was raised in it: a child has left out the rest."""
        if self.ahead is None or not self.ahead.is_child:
            return False
        self._passed += 1
        if self._passed > _MOST_PASSED:  # nothing counts
            self.ahead.finish()
        return True

    def left(self) -> None:
        if self.ahead is not None and self.ahead.is_child:
            self.ahead.finish()

    def _reach(self, place: str, last: int | None) -> None:
        if self.counts:
            return
        if place != self._driver:  # what was before it warmed up
            self._began = None
            self._reached()
            if self.ahead is not None:
                self.ahead.forget()
        self._driver, self._last, self._own = place, last, None

    def _peek(self) -> int:
        if self._next is None:
            assert self._numbers is not None
            self._next = next(self._numbers)
        return self._next

    def _take(self, own: int) -> int:
        """The next number, which is the loop's own at first."""
        self._passed = 0
        if self._numbers is None:
            rounds = self._rounds()
            self._own = self._own or (own, rounds)
            self._began = rounds if self._began is None else self._began
            if rounds < self.usual or (not self.is_asked and rounds < self._began + EACH):
                return own
            self._numbers = self._turn(own, rounds)
            if self._numbers is None:
                return own
        number, self._next = self._peek(), None
        return number

    def _turn(self, own: int, rounds: int) -> Iterator[int] | None:
        """Away from the loop's own numbers: those of the steps; in a child those that it tries. None if there are no
        others to run."""
        self.usual, self._has_looked = math.inf, True
        if not self._steps and self.ahead is not None:
            last = self._find_last()
            if last is None or last <= own:
                return None
            tried = self.ahead.look(own, last)
            if tried is not None:
                return tried
            first, began = self._own or (own, rounds)
            room = EACH * max(math.ceil((own - first) / max(rounds - began, 1)), 1)
            for step, lines in self.ahead.steps().items():
                step = min(step, last + 1 - room)
                if not self._steps or step >= max(self._steps) + room:
                    self._steps[step] = self.ahead.say_largest(lines)
            if not self._steps:
                return None
        self.usual = rounds
        return self._count()

    def _find_last(self) -> int | None:
        """The last number to which the loop counts, as far as that is known."""
        try:
            said = [self._bounds[self._driver]()] if self._driver in self._bounds else []
        except Exception:  # an expression of the program's own, before its time
            return None
        said += [] if self._last is None else [self._last]
        return min(said) if said else self.length - 1 if self.length else None

    def _peaks_now(self, at: tuple[int, int]) -> PeaksAt:
        step, iteration = at
        return PeaksAt(step, *self._peaks(), iteration, self._steps[step])

    def _count(self) -> Iterator[int]:
        for step in self._steps:
            self._peaks()
            began = self._rounds()
            self._at = step, self._iterations() + 1
            for number in range(step, step + _MOST_NUMBERS):
                yield number
                if self._rounds() - began >= EACH:
                    break
            self._peaks_at, self._at = [*self.peaks()], None
        self._done()


def driving_loops(files: Mapping[Path, ast.Module]) -> list[TrainingLoop]:
    """Those whose numbers are the steps: of several loops of one function the last, as those before it warm up."""
    loops = [loop for loop in training_loops(files) if loop.is_inner]
    owners: dict[int, int] = {}
    for tree in files.values():
        for function in ast.walk(tree):  # outer ones come first
            if isinstance(function, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef):
                owners.update((id(node), id(function)) for node in ast.walk(function))
    return [*{owners[id(loop.node)]: loop for loop in sorted(loops, key=lambda loop: loop.node.lineno)}.values()]


def counted_anew(
    files: Mapping[Path, ast.Module], loops: Sequence[TrainingLoop], steps: StepsAt, sizes: Sequence[SizeByStep] = ()
) -> dict[Path, ast.Module]:
    """Those of a program's files that count the iterations of its training, with `loops` and counters that ask `steps`,
    and lines of `sizes` that tell it their values. Raises ProgramError if there is none, where steps are asked for."""
    changes = _Changes({id(size.value): line for line, size in enumerate(sizes) if size.value is not None})
    for loop in loops:
        changes.take(loop)
    for path, tree in files.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Attribute) and adds_one(node):
                changes.follow(path, node)
            elif id(node) in changes.sizes:
                changes.paths[path] = None
    steps.drivers, steps.loops_of = changes.drivers, changes.loops_of
    if not steps.drivers and steps.is_asked:
        raise ProgramError(
            "no loop was found that trains and counts its iterations",
            allowed="in the program's own files a loop around backward() and step(): `for step in range(...)`, "
            "`for step, batch in enumerate(...)`, or one that adds 1 to a counter (`step += 1`)",
            remedy="leave it out, and have the program itself begin at another step",
            place=_OPTION,
        )
    if not steps.drivers:
        return {}
    return {path: ast.fix_missing_locations(changes.visit(files[path])) for path in changes.paths}


@contextmanager
def counting(steps: StepsAt, changed: Mapping[Path, ast.Module]) -> Iterator[None]:
    """Inside, modules of the changed files are made of these."""
    finder = _Finder({str(path): tree for path, tree in changed.items()}, steps)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def run_changed(program: str, tree: ast.Module, steps: StepsAt) -> Mapping[str, Any]:
    """As `runpy.run_path(program, run_name="__main__")` would the file; what its module has at the end."""
    main = ModuleType("__main__")
    main.__file__ = program
    steps.files.add(str(Path.cwd() / program))
    setattr(main, _NAME, steps)  # a global of each: what is compiled refuses builtins that are not Python's
    sys.modules["__main__"] = main
    exec(compile(tree, program, "exec"), vars(main))
    return vars(main)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, changed: Mapping[str, ast.Module], steps: StepsAt) -> None:
        self._changed, self._steps = changed, steps

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.origin is None or spec.origin not in self._changed:
            return None
        spec.loader = _Loader(name, spec.origin, self._changed[spec.origin], self._steps)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, tree: ast.Module, steps: StepsAt) -> None:
        super().__init__(name, path)
        self._tree, self._steps = tree, steps

    def exec_module(self, module: ModuleType) -> None:
        setattr(module, _NAME, self._steps)
        super().exec_module(module)

    def get_code(self, _name: str) -> CodeType:
        self._steps.files.add(self.path)
        code: CodeType = compile(self._tree, self.path, "exec")
        return code


class _Changes(ast.NodeTransformer):
    def __init__(self, sizes: Mapping[int, int]) -> None:
        """`sizes`: by the `id` of an expression the line whose value it is."""
        self.sizes = sizes
        self.paths: dict[Path, None] = {}
        self.drivers = 0
        self.loops_of: set[str] = set()
        self._calls: dict[int, tuple[str, str]] = {}
        self._increments: dict[int, tuple[str, bool]] = {}
        self._firsts: dict[int, list[tuple[ast.expr, str]]] = {}
        self._loops: dict[int, tuple[str, TrainingLoop]] = {}

    def take(self, loop: TrainingLoop) -> None:
        """Its numbers, or else its counters, are those of the steps."""
        place = source_line(loop.path, loop.node)
        numbered = loop.numbered()
        if numbered is not None:
            call, name = numbered
            self._calls[id(call)] = ("numbered" if name == "enumerate" else "over", place)
        counters = [counter for counter in loop.increments() if _COUNTER.search(last_name(counter.target))]
        for counter in counters:
            self._increments[id(counter)] = (source_line(loop.path, counter), numbered is None)
        if numbered is None and counters:
            self._firsts[id(loop.node)] = [(counter.target, source_line(loop.path, counter)) for counter in counters]
            place = source_line(loop.path, counters[0])
        self._loops[id(loop.node)] = place, loop
        if numbered is not None or counters:
            self.drivers += 1
            self.loops_of.add(str(loop.path))
        self.paths[loop.path] = None

    def follow(self, path: Path, node: ast.AugAssign) -> None:
        """A counter somewhere else: it drives if no loop does."""
        if _COUNTER.search(last_name(node.target)) and id(node) not in self._increments:
            drives = not self._calls and not self._firsts
            self._increments[id(node)] = (source_line(path, node), drives)
            self.drivers += drives
            self.paths[path] = None

    def visit(self, node: ast.AST) -> Any:
        changed = super().visit(node)
        if id(node) in self.sizes:
            changed = ast.copy_location(_ask("size", [ast.Constant(self.sizes[id(node)]), changed]), changed)
        return changed

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if id(node) not in self._calls:
            return node
        method, place = self._calls[id(node)]
        return ast.copy_location(_ask(method, [node, ast.Constant(place)]), node)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        self.generic_visit(node)
        if id(node) not in self._increments:
            return node
        place, drives = self._increments[id(node)]
        return ast.copy_location(_assigned(node.target, "after", [ast.Constant(place), ast.Constant(drives)]), node)

    def visit_For(self, node: ast.For | ast.While) -> Any:
        place, loop = self._loops.get(id(node), ("", None))
        if loop is None:
            return self.generic_visit(node)
        bounds, firsts = [*_last_numbers(loop)], self._firsts.get(id(node), [])
        counters = [
            (each.target, *self._increments[id(each)]) for each in loop.increments() if id(each) in self._increments
        ]
        self.generic_visit(node)
        before: list[ast.stmt] = [
            _assigned(target, "first", [ast.Constant(of), ast.Constant(at == 0)])
            for at, (target, of) in enumerate(firsts)
        ]
        if bounds:
            before += ast.parse(f"{_NAME}.bounded({place!r}, lambda: min([{', '.join(bounds)}]))").body
        around = ast.parse(_AROUND).body[0]
        assert isinstance(around, ast.Try)
        within = around.body[0]
        assert isinstance(within, ast.Try)
        within.handlers[0].body += [
            _assigned(target, "after", [ast.Constant(of), ast.Constant(drives)]) for target, of, drives in counters
        ]
        for part in (*before, around):
            for inner in ast.walk(part):
                ast.copy_location(inner, node)
        within.body, around.body, node.body = node.body, [node], [within]
        return [*before, around]

    visit_While = visit_For  # noqa: N815


def _ask(method: str, given: list[ast.expr]) -> ast.Call:
    return ast.Call(ast.Attribute(ast.Name(_NAME, ast.Load()), method, ast.Load()), given, [])


def _assigned(target: ast.expr, method: str, given: list[ast.expr]) -> ast.Assign:
    """A counter becomes what is answered to its value."""
    before = copy.deepcopy(target)
    before.ctx = ast.Load()  # type: ignore[attr-defined]
    return ast.Assign([copy.deepcopy(target)], _ask(method, [before, *given]))


def _last_numbers(loop: TrainingLoop) -> Iterator[str]:
    """Expressions for the last number of a loop: `n - 1` of `while step < n`, `n` of `if step > n: break`."""
    counters = {loop.target(), *(last_name(counter.target) for counter in loop.increments())} - {""}
    goes_on = [loop.node.test] if isinstance(loop.node, ast.While) else []
    goes_on = [part for test in goes_on for part in (test.values if isinstance(test, ast.BoolOp) else [test])]
    ends = [
        node.test
        for node in ast.walk(loop.node)
        if isinstance(node, ast.If) and isinstance(node.body[-1], ast.Break | ast.Return)
    ]
    for tests, below, at in ((goes_on, ast.Lt, ast.LtE), (ends, (ast.GtE, ast.Eq), ast.Gt)):
        for test in tests:
            match test:
                case ast.Compare(left=left, ops=[op], comparators=[end]) if last_name(left) in counters:
                    if isinstance(op, below):
                        yield f"({ast.unparse(end)}) - 1"
                    elif isinstance(op, at):
                        yield ast.unparse(end)
