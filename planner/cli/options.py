"""What the parsers of several commands share."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def common_options() -> argparse.ArgumentParser:
    """What every command takes, before and after its name."""
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument(
        "--debug",
        action="store_true",
        default=argparse.SUPPRESS,  # a default here would undo what stands before the command's name
        help="show where an error comes from (also: PLANNER_DEBUG=1)",
    )
    return options


def tracing_options() -> argparse.ArgumentParser:
    """What every command takes that may trace a job."""
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument(
        "--no-cache",
        action="store_true",
        help="trace anew, and keep nothing (traces are kept in $XDG_CACHE_HOME/planner/traces, or in PLANNER_CACHE)",
    )
    return options
