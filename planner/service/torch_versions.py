"""Which releases of torch a service plans with: its own and those that its operator offers; a job's decides."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.errors import PlannerError, SettingError
from planner.planning import identity
from planner.runtime.child import interpreter_words
from planner.runtime.environments.interpreters import bring_code, read_interpreter
from planner.runtime.environments.torch_environments import find_environment
from planner.settings import PREFIX, split_list
from planner.versions import minor_of

_PLACE = f"{PREFIX}TORCH_VERSIONS"
_ALLOWED = "2.6=/opt/torch-2.6/bin/python, or 2.6, whose environment planner has made for this user"
_SECONDS = 60.0
"""To import what names plans, in another interpreter on a machine that is busy."""
_VERSIONS = "import json; from planner.planning import identity; print(json.dumps(dict(identity.every_version())))"


@dataclass(frozen=True, slots=True)
class OfferedTorch:
    """A release of torch that plans are made with."""

    minor: str
    python: str
    """Its interpreter; empty: that of this process."""
    versions: Mapping[str, str]
    """What it has besides: :func:`planner.planning.identity.every_version` there."""


@dataclass(frozen=True, slots=True)
class TorchVersions:
    """Its own torch, and the others that were offered, each with its interpreter."""

    others: tuple[OfferedTorch, ...] = ()

    @property
    def offered(self) -> Sequence[OfferedTorch]:
        named = {torch.minor: torch for torch in (_own(), *self.others)}  # one of our own release is preferred to ours
        return sorted(named.values(), key=lambda torch: _number(torch.minor))

    def nearest(self, asked: str) -> OfferedTorch:
        """The one of this release (`2.6`, `2.6.1+cu124`), else the nearest, the newer one of two that are as near; our
        own for a job that does not say."""
        release = minor_of(asked) or _own().minor
        return min(
            self.offered, key=lambda torch: (abs(_number(torch.minor) - _number(release)), -_number(torch.minor))
        )

    def loaded_for(self, asked: str) -> str:
        """The release that a worker has to load for this one besides its own; empty where its own does it."""
        torch = self.nearest(asked)
        return torch.minor if torch.python else ""


ONLY_OWN = TorchVersions()


@functools.cache
def read_torch_versions(setting: str) -> TorchVersions:
    """What PLANNER_TORCH_VERSIONS offers: every interpreter is asked what it has. Raises SettingError."""
    torches = tuple(map(_read_entry, split_list(setting)))
    minors = [torch.minor for torch in torches]
    if twice := {minor for minor in minors if minors.count(minor) > 1}:
        raise SettingError(f"torch {min(twice)} is named twice", allowed="each release once", place=_PLACE)
    return TorchVersions(torches)


def _own() -> OfferedTorch:
    return OfferedTorch(identity.installed_torch(), "", identity.every_version())


def _read_entry(entry: str) -> OfferedTorch:
    version, named, python = (part.strip() for part in entry.partition("="))
    minor = minor_of(version)
    if not minor or (named and not os.path.isabs(python)):
        raise _refusal(f"{entry[:80]!r} names no torch with its Python")
    if not named and minor == identity.installed_torch():
        return _own()
    try:
        if not python:
            made = find_environment(minor)
            if made is None:
                problem = f"no environment of torch {minor} was made for this user"
                raise PlannerError(problem, allowed=_ALLOWED, remedy=f"planner torch {minor}, or name its Python")
            python = made.python
        torch = read_interpreter(python, needs_torch=True).torch
    except PlannerError as error:
        place = f"{_PLACE}: {error.place or entry}"
        raise SettingError(error.problem, allowed=error.allowed, remedy=error.remedy, place=place) from None
    if minor_of(torch) != minor:
        raise _refusal(f"{python} has torch {torch}, not {minor}", f"{minor_of(torch)}={python}")
    return OfferedTorch(minor, python, _read_versions(python))


def _read_versions(python: str) -> Mapping[str, str]:
    """What names plans there, said by planner there. Raises SettingError for an interpreter that cannot plan."""
    try:
        words = interpreter_words(_VERSIONS, python=python, root=bring_code())
    except OSError as error:
        raise _refusal(
            f"planner cannot be laid where another Python finds it: {error}",
            "plan a job of each release while the image is built",
            allowed="a cache (XDG_CACHE_HOME) that can be written, or in which a job of that torch was planned before",
        ) from None
    try:
        ended = subprocess.run(
            words, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
        versions: Mapping[str, str] = json.loads(ended.stdout)
    except subprocess.TimeoutExpired:
        raise _refusal(f"{python} does not answer within {_SECONDS:g} s", "see what keeps it") from None
    except ValueError:
        last_line = (ended.stderr.strip().splitlines() or [f"it ended with {ended.returncode}"])[-1]
        remedy = f"try it: {python} -c 'import torch, transformers'"
        raise _refusal(f"{python} cannot run planner: {last_line}", remedy) from None
    if versions["transformers"] == "none":
        raise _refusal(f"{python} has no transformers", f"{python} -m pip install transformers")
    return versions


def _refusal(problem: str, remedy: str = "", allowed: str = _ALLOWED) -> SettingError:
    return SettingError(problem, allowed=allowed, remedy=remedy, place=_PLACE)


def _number(minor: str) -> int:
    """Of a release, so that the difference of two says how near they are."""
    major, rest = minor.split(".")
    return 1000 * int(major) + int(rest)
