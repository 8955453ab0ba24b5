"""Finds modules for packages that are not installed here and that a program's job has, and says which ones were asked
for in vain.

A package of the table that is installed is used as it is, with its compiled part replaced. One that is not is provided
if the command names it (`--with`), if the program's own requirements list it, or if the program imports it without
catching the error, as it could not run without. Everybody else finds nothing, as without planner, which is reported.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NoReturn

from planner.errors import TraceError
from planner.runtime.own_code import is_programs
from planner.tracing.program.assumptions import About, Assumptions, program_place
from planner.tracing.program.packages import package_table
from planner.tracing.program.packages.package_table import Offered, Package

SOUGHT: list[str] = []
"""Packages of the table that this process's program looked for and did not find."""
_GROUP = "planner.kernels"
"""Of entry points, each named like a compiled module: a mapping of what stands in it where it is not installed."""
_HOW = "describe its allocations in a Python file and name it with --kernels (docs/run.md)"


def runs_as_installed(extension: str) -> bool:
    """Whether a package's own compiled part, a module of this name, is there and runs."""
    return importlib.machinery.PathFinder.find_spec(extension) is not None


class _Refused(type):
    """A name that is not modelled: it can be imported, as the job has it, and is refused where it is used."""

    of: tuple[str, str]
    """Its whole name, and what is modelled of its module."""

    def refuse(cls) -> NoReturn:
        """Raises TraceError."""
        name, allowed = cls.of
        raise TraceError(f"the program uses {name}, which is not modelled", allowed=allowed, remedy=_HOW)

    def __call__(cls, *_arguments: Any, **_named: Any) -> NoReturn:
        cls.refuse()

    def __getattr__(cls, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        cls.refuse()


class _Module(ModuleType):
    """A module that has other names too, refused in use, so that nothing takes another way for want of them."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        whole = f"{self.__name__}.{name}"
        package = package_table.BY_MODULE.get(whole.partition(".")[0])
        if package is not None and whole in package.modules:
            return importlib.import_module(whole)
        if package is not None and whole in package.absent:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        allowed = ", ".join(sorted(known for known in vars(self) if not known.startswith("_"))) or "its modules"
        return _Refused(name, (), {"of": (whole, allowed)})


class _Loader(importlib.abc.Loader):
    def __init__(self, offered: Offered, version: str) -> None:
        self._offered, self._version = offered, version

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__version__ = self._version  # type: ignore[attr-defined]
        if self._offered.by:
            source = importlib.import_module(self._offered.by)
            for name in self._offered.names:
                setattr(module, name, getattr(source, name))


class _Ready(importlib.abc.Loader):
    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:  # noqa: ARG002
        return self._module

    def exec_module(self, module: ModuleType) -> None: ...


class First(importlib.abc.MetaPathFinder):
    """Asked before what is installed: compiled parts, which would ask a driver, and modules of a user's own. Where
    there is a driver on paper, compiled parts that are installed are used."""

    def __init__(self, own: Mapping[str, ModuleType], provided: Mapping[str, str]) -> None:
        self._own, self._provided = own, provided
        self._parts = {
            name: (package, offered)
            for package in package_table.PACKAGES
            for name, offered in package.extension.items()
        }

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name in self._own:
            return _spec(name, _Ready(self._own[name]), self._own)
        if "." in name or runs_as_installed(name):
            return None
        for named in importlib.metadata.entry_points(group=_GROUP, name=name):
            module = ModuleType(name)
            vars(module).update(named.load())
            return _spec(name, _Ready(module), ())
        if name not in self._parts:
            return None
        package, offered = self._parts[name]
        known = package.module in self._provided or package.module in sys.modules
        if known or importlib.machinery.PathFinder.find_spec(package.module):
            return importlib.util.spec_from_loader(name, _Loader(offered, package.version))
        return None


def _is_made(module: str) -> bool:
    return isinstance(getattr(sys.modules[module].__spec__, "loader", None), _Loader | _Ready)


def _spec(name: str, loader: importlib.abc.Loader, siblings: Iterable[str]) -> importlib.machinery.ModuleSpec | None:
    is_package = any(module.startswith(f"{name}.") for module in siblings)
    return importlib.util.spec_from_loader(name, loader, is_package=is_package)


class Last(importlib.abc.MetaPathFinder):
    """Asked for what is not installed. `provided`: by top-level module why the job is taken to have it."""

    def __init__(self, provided: Mapping[str, str], versions: Mapping[str, str], assumptions: Assumptions) -> None:
        self._provided, self._versions, self._assumptions = dict(provided), versions, assumptions
        self._reported: set[str] = set()

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> importlib.machinery.ModuleSpec | None:
        top = name.partition(".")[0]
        package = package_table.BY_MODULE.get(top)
        if package is None or not self._has(package, name) or name.startswith(tuple(package.absent)):
            return None
        if name != top and not _is_made(top):
            return None  # the package is installed, and has no such part
        if name not in package.modules:
            raise TraceError(
                f"the program imports {name}, which is not modelled",
                allowed=", ".join(sorted(package.modules)),
                remedy=_HOW + (f", or install {package.instead}" if package.instead else ""),
            )
        if package.name not in self._reported:
            self._reported.add(package.name)
            self._assumptions.add(
                About.PACKAGES,
                f"{package.name} is not installed here ({self._provided[package.module]}): its kernels allocate what"
                f" those of {package.version} do, and the rest of it is refused by name",
            )
        return _spec(name, _Loader(package.modules[name], self._version(package)), package.modules)

    def _version(self, package: Package) -> str:
        return self._versions.get(package.module, package.version)

    def _has(self, package: Package, name: str) -> bool:
        """Whether the job has it. Raises TraceError for one that the program needs and nobody has described."""
        if package.module in self._provided:
            return True
        importing = package_table.frames()
        if (
            name not in (package.module, *package.compiled)
            or not importing
            or package_table.runs_package(importing[0], "torch")
        ):
            return False
        if package.is_modelled and package.name not in SOUGHT:
            SOUGHT.append(package.name)
        way, place = package_table.way(), program_place(importing)
        if way == "asked" or package_table.is_guarded(importing):
            # Libraries ask for much that the program has no use for, and go another way for few.
            decides = way == "statement" and package.is_modelled
            if decides or is_programs(importing[0].f_code):
                instead = f"install {package.instead or package.name} here"
                self._assumptions.add(
                    About.PACKAGES,
                    f"{package.name} is not installed here, and the program goes on without it; if the job has"
                    f" it: {f'--with {package.name}' if package.is_modelled else instead}",
                    place,
                )
            return False
        if package.is_modelled:
            self._provided[package.module] = "the program imports it and catches no error"
            return True
        if package.from_index:
            return False  # the program ends, and is told what else it lacks (package_table)
        part = "" if name == package.module else f" with its compiled part {name}"
        raise TraceError(
            f"the program needs {package.name}{part}, which is not installed here",
            allowed="packages that are installed here as on the cluster: they run as they are, without a GPU",
            remedy=f"install {package.instead} where planner runs" if package.instead else _HOW,
            place=place,
        )

    def find_distributions(self, context: Any) -> Iterator[importlib.metadata.Distribution]:
        """What `importlib.metadata` says of packages that are provided."""
        wanted = package_table.canonical(context.name) if context.name else None
        for package in package_table.PACKAGES:
            known = (package_table.canonical(package.name), package_table.canonical(package.module))
            if package.module in self._provided and (wanted is None or wanted in known):
                yield _Distribution(package, self._version(package))


class _Distribution(importlib.metadata.Distribution):
    def __init__(self, package: Package, version: str) -> None:
        self._texts = {
            "METADATA": f"Metadata-Version: 2.1\nName: {package.name}\nVersion: {version}\n",
            "top_level.txt": f"{package.module}\n",
        }

    def read_text(self, filename: str) -> str | None:
        return self._texts.get(filename)

    def locate_file(self, path: Any) -> Any:
        return path


def _modelled() -> str:
    return ", ".join(package.name for package in package_table.PACKAGES if package.is_modelled)


def find_provided(named: Sequence[str], listed: Mapping[str, str]) -> dict[str, str]:
    """By top-level module why a package is provided: it was named, or the program's requirements list it.

    Raises TraceError for a name that is not modelled.
    """
    reasons = {
        package.module: f"{listed[name]} lists it"
        for name, package in package_table.BY_NAME.items()
        if name in listed and package.is_modelled
    }
    for name in (word.partition("==")[0] for word in named):
        package = package_table.BY_NAME.get(package_table.canonical(name))
        if package is None or not package.is_modelled:
            raise TraceError(
                f"there is no model of a package {name[:80]!a}", allowed=_modelled(), remedy=_HOW, place="--with"
            )
        reasons[package.module] = "--with names it"
    return reasons


def named_versions(named: Sequence[str]) -> dict[str, str]:
    """By top-level module the version that a package is said to have (`flash-attn==2.7.4`), whatever is modelled."""
    pairs = (word.partition("==") for word in named if "==" in word)
    return {package_table.BY_NAME[package_table.canonical(name)].module: version for name, _, version in pairs}


@contextmanager
def providing(
    provided: Mapping[str, str],
    versions: Mapping[str, str],
    own: Mapping[str, ModuleType],
    assumptions: Assumptions,
) -> Iterator[None]:
    """Inside, packages are found as this module says (`First`, `Last`). Of what was imported by then a user's own
    modules take the place."""
    first, last = First(own, provided), Last(provided, versions, assumptions)
    sys.meta_path.insert(0, first)
    sys.meta_path.append(last)
    imported = {name: sys.modules[name] for name in own if name in sys.modules}
    sys.modules.update({name: own[name] for name in imported})
    try:
        yield
    finally:
        sys.modules.update(imported)
        sys.meta_path.remove(first)
        sys.meta_path.remove(last)
