"""Digests the source files that make an answer, so that other code never serves it from a store.

Each digest is walked from where the work begins, along every import of planner's own modules. It is made once per
process; it is the same on every machine: names are sorted and lines end in one way.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from importlib import resources
from importlib.resources.abc import Traversable

from planner.distribution import version

TRACE = ("planner.tracing.spec.step_trace", "planner.tracing.rank_trace")
"""Where the events of a rank are made, and the text as which they are kept."""

CATALOG = ("planner.hardware.catalog", "planner.job.overhead")
"""What is known of GPUs and of what lives outside the allocator."""

JUDGEMENT = ("planner.searching.answer",)
"""What makes figures, a verdict and advice of events; how they are shown is no part of it."""

RUN = ("planner.planning.program", "planner.tracing.program.on_paper")
"""What runs a program, and judges it."""

SEARCH = ("planner.searching.requests", "planner.searching.exact_plans")
"""What weighs the candidates of a search, besides their plans."""

OF_NO_FIGURE = (
    "planner.distribution", "planner.errors", "planner.planning.provenance", "planner.runtime",
    "planner.tracing.isolated",
)  # fmt: skip
"""What all of these import and what decides no figure: texts for people, processes, places of files."""

TABLES = (".cpp", ".h", ".yaml", ".json")
"""Files besides modules that are read: with any module of their package."""

_DIGITS = 12
_IMPORT = re.compile(
    rb"^[ \t]*(?:from[ \t]+(planner[\w.]*)[ \t]+import[ \t]+(\([^)]*\)|[^\n]*)|import[ \t]+(planner[^\n]*))",
    re.MULTILINE,
)
_NAMED = re.compile(rb"[\"'](planner(?:\.\w+){2,})(?::\w+)?[\"']")
"""A module that is imported by its name (`importlib`), or a function that a child process calls (`module:function`)."""


@functools.cache
def own() -> Sources:
    """Those of this process."""
    return Sources(resources.files("planner"))


class Sources:
    """The modules of planner in a folder or an archive, and which of them import which."""

    def __init__(self, root: Traversable) -> None:
        self._modules: dict[str, tuple[str, Traversable]] = {}
        self._tables: dict[str, list[tuple[str, Traversable]]] = {}
        self._contents: dict[str, bytes] = {}
        self._imports: dict[str, tuple[str, ...]] = {}
        self._list(root, "planner", "planner", "")
        self._modules.pop("planner", None)  # its Python API is for others

    @functools.cached_property
    def trace_code(self) -> str:
        """The digest of the code that decides a trace."""
        return self.digest(TRACE)

    @functools.cached_property
    def catalog(self) -> str:
        """The digest of the facts about GPUs, and of how they are looked up."""
        return self.digest(CATALOG, besides=TRACE)

    @functools.cached_property
    def allocator_rules(self) -> str:
        """The digest of the allocator's rules, as code, and of what judges by them."""
        return self.digest(JUDGEMENT, besides=(*TRACE, *CATALOG))

    @functools.cached_property
    def run_code(self) -> str:
        """The digest of the code that runs a program, and judges what it did."""
        return self.digest(RUN)

    @functools.cached_property
    def search_code(self) -> str:
        """The digest of the code that decides the answer of a search."""
        return self.digest((*SEARCH, *JUDGEMENT))

    def digest(self, entries: Sequence[str], besides: Sequence[str] = ()) -> str:
        """Twelve hexadecimal digits for what is reached from these modules and not from those `besides`; the version
        of planner where no sources are, as in an installation that has compiled files only."""
        modules = self.reached(entries) - self.reached(besides)
        if not modules:
            return f"version {version()}"
        files = [(self._modules[module][0], self._content(module)) for module in modules]
        files += [(path, _content(file)) for module in modules for path, file in self._tables.get(module, ())]
        digest = hashlib.sha256()
        for path, content in sorted(files):
            digest.update(f"{path} {hashlib.sha256(content).hexdigest()}\n".encode())
        return digest.hexdigest()[:_DIGITS]

    def reached(self, entries: Iterable[str]) -> set[str]:
        """These modules and all that they import, wherever in them they do, with the packages in which they lie."""
        reached: set[str] = set()
        left = list(entries)
        while left:
            module = left.pop()
            decides_nothing = any(module == name or module.startswith(f"{name}.") for name in OF_NO_FIGURE)
            if module in reached or module not in self._modules or decides_nothing:
                continue
            reached.add(module)
            if module not in self._imports:
                self._imports[module] = tuple(_imported(self._content(module)))
            left += (module.rpartition(".")[0], *self._imports[module])
        return reached

    def _list(self, folder: Traversable, package: str, module: str, prefix: str) -> None:
        """Modules by name, tables by the package to which they belong."""
        for entry in folder.iterdir():
            name, path = entry.name, prefix + entry.name
            if name == "__init__.py":
                self._modules[module] = (path, entry)
            elif name.endswith(".py"):
                self._modules[f"{module}.{name.removesuffix('.py')}"] = (path, entry)
            elif name.endswith(TABLES):
                self._tables.setdefault(package, []).append((path, entry))
            elif "." not in name and name != "__pycache__" and entry.is_dir():
                inner = f"{module}.{name}"
                is_package = entry.joinpath("__init__.py").is_file()
                self._list(entry, inner if is_package else package, inner, f"{path}/")

    def _content(self, module: str) -> bytes:
        if module not in self._contents:
            self._contents[module] = _content(self._modules[module][1])
        return self._contents[module]


def _imported(source: bytes) -> Iterator[str]:
    """What may be modules among the names of its imports. Reading them so is ten times faster than parsing."""
    for origin, names, modules in _IMPORT.findall(source):
        if origin:
            yield origin.decode()
        for name in re.findall(rb"[\w.]+", names or modules):
            yield (b"%s.%s" % (origin, name) if origin else name).decode()
    yield from (name.decode() for name in _NAMED.findall(source))


def _content(file: Traversable) -> bytes:
    return file.read_bytes().replace(b"\r\n", b"\n")
