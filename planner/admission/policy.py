"""The policy of a site: what to do with a verdict, or without one; from the operator's file or the environment.

What the file says stands: a submitter's environment fills in only what the file leaves open. A hook on the
submitter's machine can be gone around all the same; docs/admission.md says which hooks cannot.
"""

from __future__ import annotations

import configparser
import dataclasses
import math
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from planner.errors import SettingError
from planner.truth.calibration.recorded_errors import parse_risk

PREFIX = "PLANNER_ADMISSION_"
FILE_VARIABLE = "PLANNER_ADMISSION_POLICY"
USUAL_FILE = Path("/etc/planner/admission.ini")
SECTION = "admission"
_LARGEST_FILE = 64 * 1024
_MOST_SECONDS = 3600.0


class Action(StrEnum):
    """What a hook does with a job, and what a policy wants done with one of which something is wrong or not known."""

    ADMIT = "admit"
    """As a policy: without a word where there is a verdict, with a warning where there is none."""
    WARN = "warn"
    """Let the job through and say why it should not be."""
    HOLD = "hold"
    """Keep the job waiting where the system can, else refuse it for now. Never of a plan that is there."""
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The operator's choices. Raises SettingError where it is read from something else."""

    server: str = ""
    """The planner service, an http or https address."""
    token: str = ""
    """The bearer token that the service wants of those who write."""
    exceeds: Action = Action.REFUSE
    """warn or refuse: a job that does not fit."""
    refuse_uncalibrated: bool = False
    """Whether `exceeds = refuse` holds for plans too for whose GPU and torch nothing was measured; else they warn."""
    tight: Action = Action.WARN
    """admit, warn or refuse: a job that fits only just."""
    risk: float = 0.0
    """The share of jobs of a kind (`1%`) that may take more than the bound by which a job is tight; 0: the upper end of
    its interval, which 5 % exceed."""
    pending: Action = Action.ADMIT
    """admit (with a warning), hold or refuse: a job whose plan is not ready after `wait_seconds`. Where nothing is read
    for it, what is read for `unreachable`: neither job was checked."""
    unreachable: Action = Action.ADMIT
    """admit (with a warning), hold or refuse: the service does not answer."""
    unplannable: Action = Action.ADMIT
    """admit (with a warning) or refuse: the spec is wrong, or names something that cannot be planned. Where nothing is
    read for it, what is read for `unplanned`: a spec that is no use is none."""
    unplanned: Action = Action.ADMIT
    """admit or refuse: a job that asks for GPUs and carries no spec, at the hooks that can tell."""
    wait_seconds: float = 10.0
    """How long a submission may wait for a plan that is not made yet."""
    timeout_seconds: float = 3.0
    """How long the service may take for anything else."""

    @classmethod
    def read(
        cls, environment: Mapping[str, str], file: Path | None = None, defaults: Mapping[str, Any] | None = None
    ) -> Policy:
        """What the file says, else the environment (`PLANNER_ADMISSION_...`), else `defaults` of the hook."""
        path = file or policy_file(environment)
        stated = {} if path is None else section(path, SECTION)
        if "token_file" in stated:
            if "token" in stated:
                raise SettingError("both token and token_file are set", allowed="one of them", place=str(path))
            stated["token"] = _text_of(Path(stated.pop("token_file"))).strip()
        if unknown := [name for name in stated if name not in _FIELDS]:
            allowed = ", ".join((*_FIELDS, "token_file"))
            raise SettingError(f"there is no setting {unknown[0]!r}", allowed=allowed, place=str(path))
        values: dict[str, Any] = {}
        given = {name: text for name in _FIELDS if (text := environment.get(PREFIX + name.upper())) is not None}
        for layer in (
            dict(defaults or {}),
            {name: _value(name, text, PREFIX + name.upper()) for name, text in given.items()},
            {name: _value(name, text, f"{SECTION}.{name}") for name, text in stated.items()},
        ):
            values |= {name: layer[of] for name, of in _AS.items() if of in layer} | layer
        # As the callback in the training has them.
        for name in ("server", "token"):
            values.setdefault(name, _value(name, environment.get(f"PLANNER_{name.upper()}", ""), name))
        return cls(**values)


_FIELDS = {field.name: field for field in dataclasses.fields(Policy)}
_ALLOWED = {
    "exceeds": (Action.WARN, Action.REFUSE),
    "tight": (Action.ADMIT, Action.WARN, Action.REFUSE),
    "pending": (Action.ADMIT, Action.HOLD, Action.REFUSE),
    "unreachable": (Action.ADMIT, Action.HOLD, Action.REFUSE),
    "unplannable": (Action.ADMIT, Action.REFUSE),
    "unplanned": (Action.ADMIT, Action.REFUSE),
}
_AS = {"pending": "unreachable", "unplannable": "unplanned"}
"""What is not said, and whose action it then has: wherever the second one is said, in the file before anywhere else."""
_FLAGS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def policy_file(environment: Mapping[str, str]) -> Path | None:
    """The file that counts; None if there is none. Raises SettingError if the environment names one that is not."""
    if named := environment.get(FILE_VARIABLE):
        return Path(named)
    return USUAL_FILE if USUAL_FILE.is_file() else None


def section(path: Path, name: str) -> dict[str, str]:
    """One section of an operator's file as texts; empty if it is not there. Raises SettingError."""
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(_text_of(path), source=str(path))
    except configparser.Error as error:
        raise SettingError(f"it cannot be read: {str(error).splitlines()[0]}", place=str(path)) from None
    return dict(parser[name]) if parser.has_section(name) else {}


def _text_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_LARGEST_FILE).decode()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no UTF-8 text"
        raise SettingError(f"it cannot be read: {reason}", place=str(path)) from None


def _value(name: str, text: str, place: str) -> Any:
    text = text.strip()
    if name in _ALLOWED:
        if text.lower() not in list(_ALLOWED[name]):
            raise SettingError(f"{text!r} is not a policy", allowed=", ".join(_ALLOWED[name]), place=place)
        return Action(text.lower())
    if name == "refuse_uncalibrated":
        if text.lower() not in _FLAGS:
            raise SettingError(f"{text!r} is neither yes nor no", allowed="yes, no", place=place)
        return _FLAGS[text.lower()]
    if name == "risk":
        return parse_risk(text, place, SettingError)
    if name.endswith("_seconds"):
        try:
            seconds = float(text)
        except ValueError:
            seconds = math.nan
        if not 0 <= seconds <= _MOST_SECONDS:
            raise SettingError(f"{text!r} is not a time", allowed=f"seconds, 0 to {_MOST_SECONDS:g}", place=place)
        return seconds
    if name != "server":
        return text
    try:
        parts = urllib.parse.urlsplit(text)
        usable = not text or (parts.scheme in ("http", "https") and bool(parts.hostname))
    except ValueError:
        usable = False
    if not usable:
        raise SettingError(
            f"{text!r} is not the address of a service", allowed="http://HOST:PORT, https://HOST", place=place
        )
    return text.rstrip("/")
