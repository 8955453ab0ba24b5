"""Which code of jobs may be called in a process: the one rule, asked wherever a factory is about to be called."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from planner.errors import FactoryNotAllowedError

_PLACE = "model.factory"


@dataclass(frozen=True, slots=True)
class CodeRules:
    """What may be called. On a user's own machine that is everything (ANY_CODE)."""

    patterns: tuple[str, ...] | None = ()
    """Of modules, or of `module:callable`; none means that nothing may be called, None that everything may."""
    folder: str = ""
    """Where modules may lie that are not installed; empty: nowhere."""

    def refuse_name(self, factory: str, path: str) -> None:
        """Raises FactoryNotAllowedError for a factory that no pattern names, or a path that is not in the folder."""
        if self.patterns is None:
            return
        if not self.patterns:
            raise FactoryNotAllowedError(
                "this service runs no code of its users",
                allowed="model.hf_config or model.decoder",
                remedy="plan it with the command line, or ask the operator to name it in PLANNER_FACTORIES",
                place=_PLACE,
            )
        if not any(_matches(factory, pattern) for pattern in self.patterns):
            raise FactoryNotAllowedError(
                f"{factory:.200} is not among the factories that this service runs",
                allowed=", ".join(self.patterns),
                remedy="plan it with the command line, or ask the operator to name it in PLANNER_FACTORIES",
                place=_PLACE,
            )
        if path and not (self.folder and Path(path).resolve().is_relative_to(Path(self.folder).resolve())):
            raise FactoryNotAllowedError(
                f"{path!r:.200} is not a folder in which this service looks for code",
                allowed=self.folder or "no folder; modules that are installed",
                remedy="leave it out, or ask the operator to set PLANNER_FACTORY_FOLDER",
                place="model.factory_path",
            )

    def refuse_foreign(self, factory: str, callable_: Callable[..., Any]) -> None:
        """Raises FactoryNotAllowedError for a callable that an allowed module has only imported: `models:os.system` is
        none of its own."""
        wrapped = inspect.unwrap(callable_)  # planner stands in for some of Python's functions
        home = str(getattr(wrapped, "__module__", "") or type(wrapped).__module__)
        if self.patterns is None or any(fnmatchcase(home, pattern.partition(":")[0]) for pattern in self.patterns):
            return
        raise FactoryNotAllowedError(
            f"the factory {factory} is defined in {home[:200]}",
            allowed=", ".join(self.patterns),
            remedy="name a callable of the module itself",
            place=_PLACE,
        )


ANY_CODE = CodeRules(None)


def _matches(factory: str, pattern: str) -> bool:
    """A pattern without a colon is one of modules."""
    name = factory if ":" in pattern else factory.partition(":")[0]
    return fnmatchcase(name, pattern)
