"""Reads the `Prefer` header (RFC 7240): how long a client waits, and whether it would rather come back."""

from __future__ import annotations

import re
from dataclasses import dataclass

from starlette.requests import Request

MOST_SECONDS = 3600.0
_PREFERENCE = re.compile(r'\s*([a-zA-Z-]+)(?:\s*=\s*"?([^",;]*)"?)?\s*(?:;[^,]*)?')


@dataclass(frozen=True, slots=True)
class PreferHeader:
    """`wait` in seconds; None where the client said nothing that can be used."""

    wait: float | None = None
    respond_async: bool = False

    @property
    def headers(self) -> dict[str, str]:
        """The header that says what was heeded."""
        said = ["respond-async"] if self.respond_async else []
        said += [f"wait={self.wait:g}"] if self.wait is not None else []
        return {"Preference-Applied": ", ".join(said)} if said else {}


def read_prefer_header(request: Request) -> PreferHeader:
    """The preferences of a request; one that cannot be read is ignored, as the RFC wants it."""
    found: dict[str, str] = {}
    for line in request.headers.getlist("prefer"):
        for part in line.split(","):
            match = _PREFERENCE.fullmatch(part)
            if match:
                found.setdefault(match[1].lower(), (match[2] or "").strip())
    wait = found.get("wait", "")
    seconds = min(float(wait), MOST_SECONDS) if re.fullmatch(r"[0-9]{1,9}", wait) else None
    return PreferHeader(seconds, "respond-async" in found)
