"""Waits for the program to import torch, then records its memory; runs the `sitecustomize` that this one hides.

Only Python's own library is needed: the program's environment need not have planner. The program of a job has the
planner that this folder is of.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

FOLDER, JOB = "PLANNER_MEASURE_FOLDER", "PLANNER_MEASURE_JOB"
_HERE = os.path.dirname(os.path.realpath(__file__))


class _TorchFinder:
    """Finds torch as the other finders do, and has the recorder begin when torch is there."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        if name != "torch":
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            self._follow(spec)
        return spec

    def _follow(self, spec: ModuleSpec) -> None:
        """Found is not yet imported: libraries ask whether torch is there without importing it."""
        loader = spec.loader
        assert loader is not None
        load = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                _begin()

        loader.exec_module = exec_module  # type: ignore[method-assign]


def _begin() -> None:
    try:
        recorder = _module("planner_rank_recorder", os.path.join(os.path.dirname(_HERE), "rank_recorder.py"))
        recorder.begin(os.environ[FOLDER])
    except Exception as error:  # the program goes on, whatever happens here
        print(f"planner: this process is not measured: {type(error).__name__}: {error}", file=sys.stderr)


def _module(name: str, path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _run_the_hidden_one() -> None:
    """What it raises is Python's to report, as if it had been found first."""
    path = [folder for folder in sys.path if os.path.realpath(folder) != _HERE]
    spec = PathFinder.find_spec("sitecustomize", path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _prepare_job() -> None:
    """The process ends with the one that has started it, and has this planner, whatever else is called so there."""
    import typing  # noqa: F401

    sys.path.insert(0, os.path.realpath(os.path.join(_HERE, *[os.pardir] * 4)))
    from planner.runtime.child import die_with_parent

    sys.path.append(sys.path.pop(0))  # no file beside planner stands for a library
    die_with_parent(os.getppid())


if __name__ == "sitecustomize":
    if os.environ.get(FOLDER):
        if os.environ.get(JOB):
            _prepare_job()
        sys.meta_path.insert(0, _TorchFinder())
    _run_the_hidden_one()
