"""Refuses requests to a host name that this service does not have: a page elsewhere may have its name point here."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

from planner.service.http.problems import RequestError
from planner.settings import Settings, split_list

LOCALHOST = "localhost"


def refuse_host(headers: Mapping[bytes, bytes], settings: Settings) -> None:
    """Raises RequestError (421) for a Host header with a name that the settings do not expect.

    An address is always expected, as probes send it: a browser that shows it as a page's host has asked that page here
    (DNS rebinding takes a name).
    """
    expected = split_list(settings.hosts)
    written = headers.get(b"host", b"").decode("latin-1")
    name = _name_in(written)
    if not expected or _read_address(name) is not None or name == LOCALHOST or name.endswith(f".{LOCALHOST}"):
        return
    if name not in (each.lower() for each in expected):
        raise RequestError(
            421,
            f"the request is for the host {written[:200]!a}, which is not a name of this service",
            allowed=f"an IP address, {LOCALHOST}, {settings.hosts}",
            remedy="if it is one, the operator adds it to PLANNER_HOSTS",
            place="Host",
        )


def _name_in(written: str) -> str:
    try:
        return (urlsplit(f"//{written}").hostname or "").removesuffix(".")
    except ValueError:
        return ""


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it."""
    address = _read_address(host)
    return host == LOCALHOST if address is None else address.is_loopback


def _read_address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
