"""Finds blocks: the repeated layers, which are recomputed, wrapped or split."""

from __future__ import annotations

import fnmatch

from torch import nn

from planner.errors import SpecError


def find(model: nn.Module, pattern: str = "") -> list[tuple[str, nn.Module]]:
    """Paths and modules of the blocks, in the model's order, none inside another.

    With a `pattern` (`model.layers.*`, where `*` stands for one part of a path) the modules that match it. Without,
    those that transformers marks as checkpointable (`GradientCheckpointingLayer`), or else the members of every
    ModuleList or Sequential of at least two layers of one class, or of one layer where there are no two. Raises
    SpecError if a pattern matches nothing.
    """
    if pattern:
        return _matching(model, pattern)
    return (
        _outermost(_find_marked(model)) or _outermost(_find_repeated(model, 2)) or _outermost(_find_repeated(model, 1))
    )


def _matching(model: nn.Module, pattern: str) -> list[tuple[str, nn.Module]]:
    parts = pattern.split(".")
    found = [(path, module) for path, module in model.named_modules() if _fits(path.split("."), parts)]
    if found:
        return _outermost(found)
    lists = [path for path, module in model.named_modules() if isinstance(module, nn.ModuleList)]
    raise SpecError(
        f"no module of {type(model).__name__} matches {pattern!r}",
        allowed=", ".join(f"{path}.*" for path in lists) or "paths of the model's modules",
        place="model.blocks",
    )


def _fits(path: list[str], parts: list[str]) -> bool:
    return len(path) == len(parts) and all(map(fnmatch.fnmatchcase, path, parts))


def _find_marked(model: nn.Module) -> list[tuple[str, nn.Module]]:
    return [
        (path, module)
        for path, module in model.named_modules()
        if any(base.__name__ == "GradientCheckpointingLayer" for base in type(module).__mro__)
    ]


def _find_repeated(model: nn.Module, at_least: int) -> list[tuple[str, nn.Module]]:
    found = []
    for path, module in model.named_modules():
        if not isinstance(module, nn.ModuleList | nn.Sequential) or len(module) < at_least:
            continue
        if len({type(child) for child in module}) == 1:
            found += [(f"{path}.{name}" if path else name, child) for name, child in module.named_children()]
    return found


def _outermost(found: list[tuple[str, nn.Module]]) -> list[tuple[str, nn.Module]]:
    inside: set[int] = set()
    kept = []
    for path, module in found:
        if id(module) in inside:
            continue
        inside.update(id(child) for child in module.modules())
        kept.append((path, module))
    return kept
