"""A program's own files, read without running them: imports, training loops and what counts their iterations."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from planner.tracing.program.launch_line import LaunchLine

_MOST_FILES = 200
_TRAINING = frozenset({"backward", "fit", "optim", "train"})
"""Attributes of programs that train (`loss.backward()`, `torch.optim`, `trainer.train()`)."""


@dataclass(frozen=True, slots=True)
class Import:
    """One import. `deferred`: within a function, which may never be called."""

    module: str
    names: tuple[str, ...]
    path: Path
    line: int
    deferred: bool


def own_files(line: LaunchLine, here: Path | None = None, most: int = _MOST_FILES) -> dict[Path, ast.Module]:
    """The program and the files beside it, or in the folder where it starts (`here`; default: this one), that it
    imports from, by their paths: those that are nearest by imports, if there are more than `most`."""
    here = here or Path.cwd()
    first = _file_of_module(line.program) if line.is_module else here / line.program
    found: dict[Path, ast.Module] = {}
    waiting = [] if first is None else [first]
    folders = [here] if first is None or line.is_module else [first.parent, here]
    while waiting and len(found) < most:
        path = waiting.pop(0)
        if path in found or (tree := _parse(path)) is None:
            continue
        found[path] = tree
        for each in imports_of(path, tree):
            if each.module.startswith("."):
                waiting += _files_of(path.parents[len(each.module) - len(each.module.lstrip(".")) - 1], each)
            else:
                waiting += (file for folder in folders for file in _files_of(folder, each))
    return found


def imports_of(path: Path, tree: ast.AST, *, deferred: bool = False) -> Iterator[Import]:
    """The imports of a file, but those that are for type checkers alone."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (Import(each.name, (), path, node.lineno, deferred) for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            names = tuple(each.name for each in node.names)
            yield Import("." * node.level + (node.module or ""), names, path, node.lineno, deferred)
        elif not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)):
            is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from imports_of(path, node, deferred=deferred or is_function)


def speak_of_training(files: dict[Path, ast.Module]) -> bool:
    """Whether any of them has a word for it: a program that only infers so far may train later."""
    return any(
        (isinstance(node, ast.Attribute) and node.attr in _TRAINING)
        or (isinstance(node, ast.alias) and (node.name.endswith("Trainer") or "optim" in node.name.split(".")))
        or (isinstance(node, ast.ImportFrom) and "optim" in (node.module or "").split("."))
        for tree in files.values()
        for node in ast.walk(tree)
    )  # fmt: skip


def _files_of(folder: Path, wanted: Import) -> Iterator[Path]:
    """Those of a folder that an import runs: packages on the way, the module, and names of it that are modules."""
    parts = wanted.module.lstrip(".").split(".") if wanted.module.strip(".") else []
    for stem in (*(parts[: end + 1] for end in range(len(parts))), *([*parts, name] for name in wanted.names)):
        for path in (folder.joinpath(*stem, "__init__.py"), folder.joinpath(*stem).with_suffix(".py")):
            if path.is_file():
                yield path


def _file_of_module(name: str) -> Path | None:
    try:
        found = importlib.util.find_spec(name)
        if found is not None and found.submodule_search_locations is not None:
            found = importlib.util.find_spec(f"{name}.__main__")
    except (ImportError, ValueError):
        return None
    return None if found is None or found.origin is None or not os.path.isfile(found.origin) else Path(found.origin)


def _parse(path: Path) -> ast.Module | None:
    try:
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None


Loop = ast.For | ast.While
COUNTER = re.compile(r"step|iter|epoch|update")
"""In names of what counts iterations (`global_step`, `iter_num`)."""
_NO_OPTIMIZER = re.compile(r"sched|prof|env", re.IGNORECASE)
"""In names of what has another method `step`."""
_NUMBERED = ("range", "trange", "count", "enumerate")
"""What numbers the iterations of a `for` (trange is tqdm's, count is itertools')."""


@dataclass(frozen=True, slots=True)
class TrainingLoop:
    """`is_inner`: whether no other loop that trains is in it, or in what it calls."""

    path: Path
    node: Loop
    is_inner: bool

    def numbered(self) -> tuple[ast.Call, str] | None:
        """Of a `for` over numbers the call that makes them, and what it is called (`range`); None of other loops."""
        if isinstance(self.node, ast.For):
            for each in ast.walk(self.node.iter):
                if isinstance(each, ast.Call) and (name := called(each)) in _NUMBERED:
                    return each, name
        return None

    def target(self) -> str:
        """The variable of a `for` that is such a number; empty if there is none."""
        found = self.numbered()
        if found is None or not isinstance(self.node, ast.For):
            return ""
        target = self.node.target
        if found[1] == "enumerate":
            target = target.elts[0] if isinstance(target, ast.Tuple) and target.elts else target
        return target.id if isinstance(target, ast.Name) else ""

    def increments(self) -> Iterator[ast.AugAssign]:
        """Of variables that it adds one to: not within loops and functions of its own."""
        waiting: list[ast.AST] = [*self.node.body]
        while waiting:
            each = waiting.pop(0)
            if isinstance(each, ast.AugAssign) and adds_one(each):
                yield each
            if not isinstance(each, Loop | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
                waiting += ast.iter_child_nodes(each)


def training_loops(files: Mapping[Path, ast.Module]) -> list[TrainingLoop]:
    """Those with a backward and a step of an optimizer in them, or in what they call; if there are none, those with
    one of the two (steps by hand, schedules of pipelines)."""
    functions = _calls_of_functions(files)
    loops = [(path, node) for path, tree in files.items() for node in ast.walk(tree) if isinstance(node, Loop)]
    does = [_reaching({name for name, calls in functions.items() if any(map(of, calls))}, functions) for of in _TRAINS]
    trains = {
        id(node): sum(
            any(of(each) or called(each) in names for each in _calls(node))
            for of, names in zip(_TRAINS, does, strict=True)
        )
        for _, node in loops
    }
    most = max(trains.values(), default=0)
    found = {each for each, count in trains.items() if count == most > 0}
    around = {name for tree in files.values() for name in _functions_around(tree, found)}
    looping = _reaching(around, functions)
    return [TrainingLoop(path, node, _is_inner(node, found, looping)) for path, node in loops if id(node) in found]


def called(call: ast.Call) -> str:
    """The last name of what is called: `step` of `self.optimizer.step()`."""
    return last_name(call.func)


def last_name(node: ast.AST) -> str:
    """Of a variable, an attribute, or an item under a constant key; else empty."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return str(node.slice.value)
    return ""


def adds_one(node: ast.AugAssign) -> bool:
    """`step += 1`."""
    return isinstance(node.op, ast.Add) and isinstance(node.value, ast.Constant) and node.value.value == 1


def _calls_of_functions(files: Mapping[Path, ast.Module]) -> dict[str, list[ast.Call]]:
    """By the names of functions and methods what they call; those of one name are taken together."""
    found: dict[str, list[ast.Call]] = {}
    for tree in files.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.setdefault(node.name, []).extend(_calls(node))
    return found


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    return (each for each in ast.walk(node) if isinstance(each, ast.Call))


def _steps(call: ast.Call) -> bool:
    """`optimizer.step()`, `optimizers[0].step()`, `scaler.step(optimizer)`."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "step":
        return False
    of = call.func.value
    return not _NO_OPTIMIZER.search(last_name(of.value if isinstance(of, ast.Subscript) else of))


def _goes_backward(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "backward"


_TRAINS = (_steps, _goes_backward)


def _reaching(names: Collection[str], functions: Mapping[str, list[ast.Call]]) -> set[str]:
    """Functions of these names, and all that call one of them."""
    found = set(names)
    while True:
        more = {name for name, calls in functions.items() if any(called(each) in found for each in calls)} - found
        if not more:
            return found
        found |= more


def _functions_around(tree: ast.Module, loops: Collection[int]) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if any(id(each) in loops for each in ast.walk(node)):
            yield node.name


def _is_inner(loop: Loop, loops: Collection[int], looping: Collection[str]) -> bool:
    within = (id(each) in loops for each in ast.walk(loop) if each is not loop)
    return not any(within) and not any(called(each) in looping for each in _calls(loop))
