"""Builds a model by a factory: `module:callable`, any callable that returns an `nn.Module`.

The factory runs here and now; whoever calls limits its time and memory.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.machinery
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

from planner.errors import SpecError
from planner.job.code_rules import ANY_CODE, CodeRules

_PLACE = "model.factory"
_rules = ANY_CODE


def allow(rules: CodeRules) -> None:
    """From here on this process calls no factory but those; until then it calls any."""
    global _rules
    _rules = rules


def from_factory(factory: str, arguments: Mapping[str, Any], path: str = "") -> nn.Module:
    """The module that `factory` returns, on whichever device and in whichever dtype it made it.

    `path` is put in front of `sys.path` for the import and the call, and taken off again. Raises SpecError if the
    factory is missing, raises, or returns something else than an nn.Module, FactoryNotAllowedError for one that this
    process may not call (`allow`).
    """
    _rules.refuse_name(factory, path)
    with _importable(path):
        _forget_namesake(factory.partition(":")[0], path)
        build = _find(factory)
        _rules.refuse_foreign(factory, build)
        try:
            module = build(**arguments)
        except (SpecError, MemoryError):
            raise
        except Exception as failure:
            raise SpecError(
                f"the factory {factory} raised {type(failure).__name__}: {failure}",
                remedy="run the factory by itself; its arguments are model.factory_arguments",
                place=_PLACE,
            ) from failure
    if not isinstance(module, nn.Module):
        raise SpecError(
            f"the factory {factory} returned a {type(module).__name__}",
            allowed="a callable that returns a torch.nn.Module",
            place=_PLACE,
        )
    return module


@contextmanager
def _importable(path: str) -> Iterator[None]:
    if not path:
        yield
        return
    sys.path.insert(0, path)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        if path in sys.path:
            sys.path.remove(path)


def _forget_namesake(module_name: str, path: str) -> None:
    """A process that has built another job's `models:build` has that job's `models` in memory."""
    top = module_name.partition(".")[0]
    here = importlib.machinery.PathFinder.find_spec(top, [path]) if path else None
    loaded = sys.modules.get(top)
    if here is None or loaded is None or getattr(loaded, "__file__", None) == here.origin:
        return
    for name in [name for name in sys.modules if name == top or name.startswith(f"{top}.")]:
        del sys.modules[name]


def _find(factory: str) -> Callable[..., Any]:
    module_name, colon, name = factory.partition(":")
    if not (module_name and colon and name):
        raise SpecError(f"{factory!r} names no callable", allowed="module:callable", place=_PLACE)
    module = _import(module_name, factory)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            close = difflib.get_close_matches(part, [n for n in vars(module) if not n.startswith("_")], n=3)
            raise SpecError(
                f"{module_name} has no {name!r}",
                remedy=f"did you mean {', '.join(close)}?" if close else "name a callable of that module",
                place=_PLACE,
            )
        found = getattr(found, part)
    if not callable(found):
        raise SpecError(f"{factory} is of type {type(found).__name__}", allowed="a callable", place=_PLACE)
    return found  # type: ignore[no-any-return]


def _import(name: str, factory: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as failure:
        missing = failure.name or name
        if name == missing or name.startswith(f"{missing}."):
            problem = f"there is no module {missing!r} for the factory {factory}"
        else:
            problem = f"the factory {factory} needs the module {missing!r}, which is not installed"
        raise SpecError(problem, remedy="install it, or set model.factory_path", place=_PLACE) from failure
    except Exception as failure:
        raise SpecError(
            f"importing {name} raised {type(failure).__name__}: {failure}",
            remedy="import it by itself",
            place=_PLACE,
        ) from failure
