"""The command line: parse, call, show; one file per command, which adds its parser and runs it.

It never plans, reads or draws by itself, and imports a heavy package only in the command that needs it: `planner
check --server` runs on PyYAML alone. Called by people, by `python -m planner` and by tests, through `main`; a command
returns 0 (fits, tight or done) or 3 (does not fit), and `main` adds 2 for wrong input and 1 for a fault of planner's.
"""

from planner.cli.shell import main

__all__ = ["main"]
