"""A program's own files, read without running them: imports, training loops and what counts their iterations."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from itertools import takewhile
from pathlib import Path

from planner.job.launching.line import LaunchLine
from planner.tracing.program.assumptions import short_path

_MOST_FILES = 200
_TRAINING = frozenset({"backward", "fit", "optim", "train"})
"""Attributes of programs that train (`loss.backward()`, `torch.optim`, `trainer.train()`)."""


@dataclass(frozen=True, slots=True)
class Import:
    """One import. `deferred`: within a function or a branch, which may never be run."""

    module: str
    names: tuple[str, ...]
    line: int
    deferred: bool


def own_files(
    line: LaunchLine, here: Path | None = None, most: int = _MOST_FILES, *, surely: bool = False
) -> dict[Path, ast.Module]:
    """The program and the files beside it, in the folder where it starts (`here`; default: this one), or in the package
    that it is of, that it imports from, by their paths: those that are nearest by imports, if there are more than
    `most`; with `surely` those alone that it imports whenever it starts."""
    here = here or Path.cwd()
    waiting = [] if line.is_module else [here / line.program]
    folders = {path.parent: "" for path in waiting} | {here: ""}
    """Each with the one package in it that is the program's own; empty: all of them."""
    if (inside := find_module(line, here)) is not None:
        waiting.append(inside)
    for package in map(package_around, waiting):
        folders.setdefault(package.parent, package.stem)
    files: dict[Path, ast.Module] = {}
    while waiting and len(files) < most:
        path = waiting.pop(0)
        if path in files:
            continue
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue
        files[path] = tree
        for wanted in find_imports(tree):
            if surely and wanted.deferred:
                continue
            if level := len(wanted.module) - len(wanted.module.lstrip(".")):
                waiting += _imported_files(path.parents[level - 1], wanted)
            else:
                waiting += (
                    file
                    for folder, package in folders.items()
                    if package in ("", wanted.module.partition(".")[0])
                    for file in _imported_files(folder, wanted)
                )
    return files


def find_imports(tree: ast.AST, *, deferred: bool = False) -> Iterator[Import]:
    """The imports of a file, but those that are for type checkers alone."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, (), node.lineno, deferred) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names = tuple(alias.name for alias in node.names)
            yield Import("." * node.level + (node.module or ""), names, node.lineno, deferred)
        elif not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)):
            yield from find_imports(node, deferred=deferred or isinstance(node, _PERHAPS))


def speak_of_training(files: dict[Path, ast.Module]) -> bool:
    """Whether any of them has a word for it: a program that only infers so far may train later."""
    return any(
        (isinstance(node, ast.Attribute) and node.attr in _TRAINING)
        or (isinstance(node, ast.alias) and (node.name.endswith("Trainer") or "optim" in node.name.split(".")))
        or (isinstance(node, ast.ImportFrom) and "optim" in (node.module or "").split("."))
        for tree in files.values()
        for node in ast.walk(tree)
    )  # fmt: skip


def _imported_files(folder: Path, wanted: Import) -> Iterator[Path]:
    """Those of a folder that an import runs: packages on the way, the module, and names of it that are modules."""
    parts = wanted.module.lstrip(".").split(".") if wanted.module.strip(".") else []
    for stem in (*(parts[: end + 1] for end in range(len(parts))), *([*parts, name] for name in wanted.names)):
        for path in (folder.joinpath(*stem, "__init__.py"), folder.joinpath(*stem).with_suffix(".py")):
            if path.is_file():
                yield path


def find_module(line: LaunchLine, here: Path) -> Path | None:
    """The file of the module that is run, by `-m` or by a command that was installed with a package; nothing of it is
    imported."""
    name = line.program if line.is_module else _module_of_command(line.program)
    if not name:
        return None
    first, *inner = name.split(".")
    try:
        spec = importlib.util.find_spec(first)
    except (ImportError, ValueError):
        spec = None
    places = [here / first]
    if spec is not None:
        places += map(Path, spec.submodule_search_locations or [(spec.origin or "").removesuffix(".py")])
    for stem in (place.joinpath(*inner) for place in places):
        for path in (stem.with_name(f"{stem.name}.py"), stem / "__main__.py", stem / "__init__.py"):
            if path.is_file():
                return path
    return None


def _module_of_command(program: str) -> str:
    """Of a console script the module of its entry point; empty for any other program."""
    found = () if program.endswith(".py") else entry_points(group="console_scripts", name=Path(program).name)
    return next((entry.module for entry in found), "")


def package_around(file: Path) -> Path:
    """The outermost package that a file is of; of none, the file."""
    return [file, *takewhile(lambda folder: (folder / "__init__.py").is_file(), file.parents)][-1]


Loop = ast.For | ast.While
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_PERHAPS = (*_Function.__args__, ast.Lambda, ast.If, ast.Match, ast.Try, ast.TryStar)
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
            for call in _calls(self.node.iter):
                if (name := called(call)) in _NUMBERED:
                    return call, name
        return None

    def target(self) -> str:
        """The variable of a `for` that is such a number; empty if there is none."""
        numbered = self.numbered()
        if numbered is None or not isinstance(self.node, ast.For):
            return ""
        target = self.node.target
        if numbered[1] == "enumerate":
            target = target.elts[0] if isinstance(target, ast.Tuple) and target.elts else target
        return target.id if isinstance(target, ast.Name) else ""

    def increments(self) -> Iterator[ast.AugAssign]:
        """Of variables that it adds one to: not within loops and functions of its own."""
        waiting: list[ast.AST] = [*self.node.body]
        while waiting:
            node = waiting.pop(0)
            if isinstance(node, ast.AugAssign) and adds_one(node):
                yield node
            if not isinstance(node, Loop | _Function | ast.ClassDef | ast.Lambda):
                waiting += ast.iter_child_nodes(node)


def training_loops(files: Mapping[Path, ast.Module]) -> list[TrainingLoop]:
    """Those with a backward and a step of an optimizer in them, or in what they call; if there are none, those with
    one of the two (steps by hand, schedules of pipelines)."""
    functions: defaultdict[str, list[ast.Call]] = defaultdict(list)
    """By the names of functions and methods what they call; those of one name are taken together."""
    for tree in files.values():
        for node in ast.walk(tree):
            if isinstance(node, _Function):
                functions[node.name].extend(_calls(node))
    loops = [(path, node) for path, tree in files.items() for node in ast.walk(tree) if isinstance(node, Loop)]
    does = [
        (does, _reaching({name for name, calls in functions.items() if any(map(does, calls))}, functions))
        for does in (is_optimizer_step, _goes_backward)
    ]
    trains = {
        id(loop): sum(any(of(call) or called(call) in names for call in _calls(loop)) for of, names in does)
        for _, loop in loops
    }
    most = max(trains.values(), default=0)
    training = {loop for loop, count in trains.items() if count == most > 0}
    around = {
        node.name
        for tree in files.values()
        for node in ast.walk(tree)
        if isinstance(node, _Function) and any(id(inner) in training for inner in ast.walk(node))
    }
    looping = _reaching(around, functions)

    def is_inner(loop: Loop) -> bool:
        within = (id(node) in training for node in ast.walk(loop) if node is not loop)
        return not any(within) and not any(called(call) in looping for call in _calls(loop))

    return [TrainingLoop(path, loop, is_inner(loop)) for path, loop in loops if id(loop) in training]


def source_line(path: Path, node: ast.stmt | ast.expr) -> str:
    """`folder/train.py:12`."""
    return f"{short_path(str(path))}:{node.lineno}"


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


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    return (call for call in ast.walk(node) if isinstance(call, ast.Call))


def is_optimizer_step(call: ast.Call) -> bool:
    """`optimizer.step()`, `optimizers[0].step()`, `scaler.step(optimizer)`."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "step":
        return False
    of = call.func.value
    return not _NO_OPTIMIZER.search(last_name(of.value if isinstance(of, ast.Subscript) else of))


def _goes_backward(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "backward"


def _reaching(names: Collection[str], functions: Mapping[str, list[ast.Call]]) -> set[str]:
    reaching = set(names)
    while (
        more := {name for name, calls in functions.items() if any(called(call) in reaching for call in calls)}
        - reaching
    ):
        reaching |= more
    return reaching
