"""What the service says of a body to the process that reads it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from planner.service.orders import program_walls
from planner.settings import Settings


def about_body(kind: str, header: str = "", folders: Sequence[str] = ()) -> str:
    """Of a service that runs programs, as root if it is."""
    walls = asdict(program_walls(Settings(factories_as_root=True)))
    return json.dumps({"kind": kind, "header": header, "folders": [*folders], "query": False, "walls": walls})
