"""`planner webhook`: the validating webhook of Kubernetes."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from planner.cli.exit_codes import DONE
from planner.cli.options import common_options
from planner.distribution import refuse_without

if TYPE_CHECKING:
    from planner.cli.options import Commands


def add(commands: Commands) -> None:
    """Adds the parser of `planner webhook`."""
    parser = commands.add_parser(
        "webhook",
        parents=[common_options()],
        help="decide on jobs that are created in Kubernetes",
        description="Answers the reviews of Kubernetes' API server over TLS until it is told to end (SIGTERM). "
        "PLANNER_SERVER names the planner service.",
    )
    parser.add_argument("--host", default="0.0.0.0", help="(default: %(default)s)")
    parser.add_argument("--port", type=int, default=8443, help="(default: %(default)s)")
    parser.add_argument("--certificate", type=Path, required=True, metavar="FILE.crt", help="PEM; read anew on change")
    parser.add_argument("--key", type=Path, required=True, metavar="FILE.key")
    parser.add_argument("--policy", type=Path, metavar="FILE.ini")
    parser.set_defaults(run=run_webhook)


def run_webhook(arguments: argparse.Namespace) -> int:
    """`planner webhook`: 0, or PlannerError for what it cannot work with."""
    refuse_without(("kubernetes", "starlette", "uvicorn"), extra="kubernetes", user="the webhook")
    from planner.admission.webhook import serve_webhook

    serve_webhook(
        host=arguments.host,
        port=arguments.port,
        certificate=arguments.certificate,
        key=arguments.key,
        policy_file=arguments.policy,
    )
    return DONE
