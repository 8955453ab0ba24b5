"""A program's own files, read without running them: what they import, and whether they speak of training."""

from __future__ import annotations

import ast
import importlib.util
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from planner.running.launch_line import LaunchLine

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
