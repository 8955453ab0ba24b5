"""Digests the source files that make a plan, so that other code never serves its plans.

A trace's id takes in the digest of what decides a trace, a plan's id besides those of what judges and of the tables.
Each is made once per process; it is the same on every machine: names are sorted and lines end in one way.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Sequence
from importlib import resources
from importlib.resources.abc import Traversable

from planner.distribution import version

TRACE = (
    "events", "facts", "hardware.architectures", "host_events", "job", "layout", "long_run", "paper",
    "rollout.engine_figures", "rollout.kv_cache",
    "tracing.absent_host", "tracing.compile_failures", "tracing.compiled_on_paper", "tracing.deepspeed_on_paper",
    "tracing.engine", "tracing.garbage_collection", "tracing.host_ledger", "tracing.host_tensors",
    "tracing.host_text", "tracing.quiet_libraries", "tracing.shortened_phases", "tracing.stepped_on_meta",
    "tracing.trace", "tracing.trace_failures", "tracing.trace_text", "tracing.traced",
    "tracing.unwritten_checkpoints",
    "training", "units", "upstream",
)  # fmt: skip
"""What decides the events of a rank: packages and modules, `tracing` without the processes that it runs in."""

JUDGEMENT = (
    "allocator", "calibration.correction", "calibration.estimate", "calibration.interval", "calibration.observation",
    "bound", "calibration.quarantine", "host", "long_run", "planning", "report.attribution", "report.lives",
    "report.named_moments", "report.phase_holders", "report.phase_table", "report.rank_class", "report.shared_gpu",
    "report.statement", "report.verdict", "rollout", "searching",
)  # fmt: skip
"""What makes figures, a verdict and advice of events; how they are shown is no part of it."""

CATALOG = ("hardware", "overhead")
"""What is known of GPUs and of what lives outside the allocator."""

KINDS = (".py", ".cpp", ".h", ".yaml", ".json")
"""Files that are read: sources and tables."""

_DIGITS = 12


@functools.cache
def trace_code() -> str:
    """The digest of the code that decides a trace."""
    return source_digest(resources.files("planner"), TRACE)


@functools.cache
def allocator_rules() -> str:
    """The digest of the allocator's rules, as code, and of what judges by them."""
    return source_digest(resources.files("planner"), JUDGEMENT)


@functools.cache
def catalog() -> str:
    """The digest of the facts about GPUs, and of how they are looked up."""
    return source_digest(resources.files("planner"), CATALOG)


def source_digest(root: Traversable, packages: Sequence[str]) -> str:
    """Twelve hexadecimal digits for the sources of these packages and modules; the version where no sources are."""
    digest = hashlib.sha256()
    try:
        for path, content in sources(root, packages):
            digest.update(f"{path} {hashlib.sha256(content).hexdigest()}\n".encode())
    except OSError:  # an installation that has compiled files only
        return f"version {version()}"
    return digest.hexdigest()[:_DIGITS]


def sources(root: Traversable, packages: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """The path, from the package's root, and the content of each source file. Raises OSError if a package has none."""
    for package in sorted(packages):
        *folders, name = package.split(".")
        where = root.joinpath(*folders) if folders else root
        prefix = "".join(f"{each}/" for each in folders)
        if where.joinpath(name).is_dir():
            yield from _files(where.joinpath(name), f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}.py", _content(where.joinpath(f"{name}.py"))


def _files(folder: Traversable, prefix: str) -> Iterator[tuple[str, bytes]]:
    for each in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if each.is_dir():
            yield from _files(each, f"{prefix}{each.name}/")
        elif each.name.endswith(KINDS):
            yield prefix + each.name, _content(each)


def _content(file: Traversable) -> bytes:
    return file.read_bytes().replace(b"\r\n", b"\n")
