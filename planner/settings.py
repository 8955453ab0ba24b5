"""Settings of a process that serves: from the environment (`PLANNER_...`) or from the arguments of a Serve application.

Every field is a variable: `database` is `PLANNER_DATABASE`. Values in the environment are text; those in a Serve
configuration may be text or of their own type.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from planner.errors import SettingError
from planner.units import GIB, MIB, parse_bytes

PREFIX = "PLANNER_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How this planner serves. Raises SettingError where it is made from something else."""

    database: str = field(default="sqlite:///planner.sqlite", repr=False)
    """Where the history lies: `sqlite:///FILE`, or `postgresql://...` if replicas on several nodes share it."""
    token_sha256: str = field(default="", repr=False)
    """SHA-256 (hexadecimal) of the bearer token that writes need; empty: nobody is asked. Several, with commas."""
    hosts: str = ""
    """Names with commas (`planner.example.org`) by which callers may reach it besides localhost and IP addresses;
    empty: any, but for `planner serve` on an address that only its own machine reaches: none."""
    factories: str = ""
    """Which code jobs may bring (`model.factory`): patterns with commas, such as `ourmodels.*` or `shop.nets:build_*`;
    empty: none. It runs behind walls on this cluster, or not at all."""
    factories_as_root: bool = False
    """Whether it is meant that this process is root: the code itself then runs as nobody. Else root refuses it."""
    measure_factories_without_walls: bool = False
    """Whether validations run such code bare, where a GPU cannot be had behind walls; wants `code_token_sha256`."""
    code_token_sha256: str = field(default="", repr=False)
    """As `token_sha256`, for validations of jobs that bring code: where it is set, they need one of these tokens."""
    factory_folder: str = ""
    """Where the modules of factories may lie (`model.factory_path`); empty: only what is installed."""
    programs: bool = False
    """Whether whole programs may be sent (POST /v1/plans). They run behind walls on this cluster, or not at all."""
    program_folders: str = ""
    """Folders, with commas, of a file system that this service and its users share: a program may be named by a path in
    one of them; empty: programs come as tarballs only."""
    program_data: str = ""
    """Folders, with commas, that every program may read: data, weights."""
    program_seconds: float = 600.0
    """The longest that all ranks of a program together may take to the end of their first iterations."""
    trace_workers: int = 0
    """Processes that trace specs, each with PyTorch loaded; 0: one for every CPU that the cluster has, at most 8. With
    `programs` half as many run programs besides, and at least one; where several tokens may have programs run at least
    two, of which one token has at most half at a time."""
    torch_versions: str = ""
    """Releases of torch that jobs are planned with besides this Python's, with commas: `2.6=/opt/torch-2.6/bin/python`,
    or `2.6`, whose environment planner has made for this user. A job is planned with the nearest to its own."""
    trace_seconds: float = 120.0
    """The longest that one trace may take."""
    trace_memory_bytes: int = 8 * GIB
    """The resident memory that a tracing process may take."""
    trace_queue: int = 64
    """Jobs that may wait for a tracing process; the next one is refused (429)."""
    check_seconds: float = 0.8
    """How long a check waits for its verdict before it answers `pending`."""
    loop_seconds: float = 15.0
    """How long the event loop of a replica may stand still before the replica is ended, and another started; 0: for
    ever."""
    body_bytes: int = 8 * MIB
    """The largest request."""
    validation_seconds: float = 900.0
    """The longest that one measured step may take, and the longest that it waits for a GPU that is busy."""
    validation_memory_bytes: int = 32 * GIB
    """The resident memory of the host that a measuring process may take."""
    validations_at_once: int = 2
    """How many validations run at a time; others wait."""
    validation_queue: int = 32
    """Validations that may wait; the next one is refused (429)."""
    search_seconds: float = 600.0
    """The longest that one search may take."""
    searches_at_once: int = 2
    """How many searches run at a time; others wait."""
    search_queue: int = 16
    """Searches that may wait; the next one is refused (429)."""
    retention_days: float = 90.0
    """How long plans that nobody asks for are kept."""
    retention_plans: int = 10_000
    """How many plans are kept."""
    log_level: str = "INFO"
    """DEBUG, INFO, WARNING or ERROR."""

    @property
    def factory_patterns(self) -> tuple[str, ...]:
        """`factories`, one by one."""
        return split_list(self.factories)

    @classmethod
    def read(cls, given: Mapping[str, Any] | None = None, environment: Mapping[str, str] | None = None) -> Settings:
        """What `given` says, else what the environment says, else the default."""
        given = given or {}
        for name in given.keys() - _FIELDS.keys():
            raise SettingError(f"there is no setting {name!r}", allowed=", ".join(_FIELDS), place=name)
        variables = {name: (environment or {}).get(PREFIX + name.upper()) for name in _FIELDS}
        values = {name: text for name, text in variables.items() if text is not None} | dict(given)
        settings = cls(**{name: _value(name, value) for name, value in values.items()})
        if settings.measure_factories_without_walls and not settings.code_token_sha256:
            raise SettingError(
                "unsandboxed measuring of users' code needs a token",
                remedy="set PLANNER_CODE_TOKEN_SHA256: such a validation then needs that token",
                place="PLANNER_MEASURE_FACTORIES_WITHOUT_WALLS",
            )
        return settings


def split_list(text: str) -> tuple[str, ...]:
    """What stands between commas, without what is empty."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


_FIELDS = {each.name: each for each in dataclasses.fields(Settings)}


_FLAGS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def _value(name: str, value: Any) -> Any:
    default: Any = _FIELDS[name].default
    kind, place, text = type(default), PREFIX + name.upper(), str(value).strip()
    if kind is bool:
        if text.lower() not in _FLAGS:
            raise SettingError(f"{value!r} is neither yes nor no", allowed="true, false", place=place)
        return _FLAGS[text.lower()]
    if name.endswith("_bytes"):
        try:
            return parse_bytes(int(text) if text.isdigit() else text)
        except ValueError as error:
            raise SettingError(str(error), allowed="8GiB, 16MiB, 1048576", place=place) from None
    if kind is str:
        return _text(name, text, place)
    try:
        number: int | float = kind(value)
    except (TypeError, ValueError):
        raise SettingError(f"{value!r} is not a number", allowed=f"{kind.__name__}, 0 or more", place=place) from None
    if not 0 <= number < 10**9:
        raise SettingError(f"{value!r} is out of range", allowed="0 to 1000000000", place=place)
    return number


_HASHES = re.compile(r"[0-9a-fA-F]{64}(,[0-9a-fA-F]{64})*")
_PATTERN = re.compile(r"[^\W\d]\w*(?:\.[\w*?]+)*(?::[\w.*?]+)?")


def _text(name: str, text: str, place: str) -> str:
    if name.endswith("token_sha256") and text and not _HASHES.fullmatch(text):
        # What stands there may be the token itself: it is not shown.
        raise SettingError(
            "this is not a SHA-256", allowed="64 hexadecimal digits", remedy="printf %s TOKEN | sha256sum", place=place
        )
    # A pattern names the package that it stands for: one that any importable module matches is refused.
    for pattern in split_list(text) if name == "factories" else ():
        if not _PATTERN.fullmatch(pattern):
            raise SettingError(
                f"{pattern[:80]!r} is not a pattern of factories",
                allowed="a package by its name, then anything: ourmodels.*, shop.nets:build_*",
                place=place,
            )
    if name != "log_level":
        return text
    if text.upper() not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise SettingError(f"{text!r} is not a level", allowed="DEBUG, INFO, WARNING, ERROR", place=place)
    return text.upper()
