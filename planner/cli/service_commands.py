"""`planner serve`, `capacity`, `webhook` and `kueue`: the service, what it tells of GPUs, and its Kubernetes hooks."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from planner.cli.options import DONE, add_command, add_format, print_answer
from planner.distribution import refuse_without
from planner.errors import PlannerError

if TYPE_CHECKING:
    from planner.cli.options import Commands


def add_serve(commands: Commands) -> None:
    """Adds the parser of `planner serve`."""
    parser = add_command(
        commands, "serve", run_serve,
        help="answer plans and checks over HTTP",
        description="Runs in the foreground until it is told to end (SIGTERM, Ctrl-C) and prints one line with the "
        "address when it is ready. Other settings are PLANNER_... variables.",
    )  # fmt: skip
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0 answers other machines too (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8642, help="(default: %(default)s)")
    parser.add_argument("--database", default="", metavar="URL", help="sqlite:///FILE, postgresql://USER@HOST/NAME")


def run_serve(arguments: argparse.Namespace) -> int:
    """`planner serve`: 0, or what cannot be used."""
    from planner.service.server import run_serve as served

    served(arguments.host, arguments.port, arguments.database)
    return DONE


def add_capacity(commands: Commands) -> None:
    """Adds the parser of `planner capacity`."""
    parser = add_command(
        commands, "capacity", run_capacity,
        help="say what GPU memory jobs asked for, will take and took, and what would be on other GPUs",
        description="Asks a planner service for capacity by team, queue and GPU. PyTorch is not needed.",
    )  # fmt: skip
    parser.add_argument("--server", default=os.environ.get("PLANNER_SERVER", ""), metavar="URL", help="PLANNER_SERVER")
    parser.add_argument("--since", default="", metavar="TIME", help="ended jobs too: 30d, 12h, 2026-01-31T12:00:00Z")
    parser.add_argument("--on", action="append", default=[], metavar="GPU", help="what would be on it; several times")
    parser.add_argument("--timeout", type=float, default=10.0, metavar="SECONDS", help="(default: %(default)s)")
    add_format(parser)


def run_capacity(arguments: argparse.Namespace) -> int:
    """`planner capacity`: 0, or SettingError, UnreachableError or what the service does not understand."""
    from planner.admission import client
    from planner.report.capacity_text import render_capacity

    document = client.ask(
        arguments.server, token=os.environ.get("PLANNER_TOKEN", ""), since=arguments.since, on=arguments.on,
        seconds=arguments.timeout,
    )  # fmt: skip
    print_answer(arguments, lambda: document, lambda: render_capacity(document))
    return DONE


def add_webhook(commands: Commands) -> None:
    """Adds the parser of `planner webhook`."""
    parser = add_command(
        commands, "webhook", run_webhook,
        help="decide on jobs that are created in Kubernetes",
        description="Answers the reviews of Kubernetes' API server over TLS until it is told to end (SIGTERM). "
        "PLANNER_SERVER names the planner service.",
    )  # fmt: skip
    parser.add_argument("--host", default="0.0.0.0", help="(default: %(default)s)")
    parser.add_argument("--port", type=int, default=8443, help="(default: %(default)s)")
    parser.add_argument("--certificate", type=Path, required=True, metavar="FILE.crt", help="PEM; read anew on change")
    parser.add_argument("--key", type=Path, required=True, metavar="FILE.key")
    parser.add_argument(
        "--client-ca", type=Path, metavar="FILE.crt",
        help="review only for clients whose certificate this CA signed; PEM, read anew on change",
    )  # fmt: skip
    parser.add_argument(
        "--any-client", action="store_true", help="instead: review for every client that reaches the port"
    )
    parser.add_argument("--client-name", default="", metavar="NAME", help="and whose certificate is for this name")
    parser.add_argument("--policy", type=Path, metavar="FILE.ini")


def run_webhook(arguments: argparse.Namespace) -> int:
    """`planner webhook`: 0, or PlannerError for what it cannot work with."""
    refuse_without(("kubernetes", "starlette", "uvicorn"), extra="kubernetes", user="the webhook")
    from planner.admission.webhook import Clients, serve_webhook

    if arguments.client_name and arguments.client_ca is None:
        raise PlannerError("a name says nothing without a CA", remedy="add --client-ca FILE.crt", place="--client-name")
    if (arguments.client_ca is None) is not arguments.any_client:
        raise PlannerError(
            "nothing says which clients may ask for reviews" if arguments.client_ca is None else "both say who may ask",
            allowed="--client-ca FILE.crt, or --any-client",
            remedy="docs/admission.md says how the API server gets a certificate; where it cannot, --any-client, and "
            "let only the control plane's addresses reach the port",
            place="--client-ca",
        )
    serve_webhook(
        host=arguments.host,
        port=arguments.port,
        certificate=arguments.certificate,
        key=arguments.key,
        policy_file=arguments.policy,
        clients=Clients(arguments.client_ca, arguments.client_name) if arguments.client_ca else None,
    )
    return DONE


def add_kueue(commands: Commands) -> None:
    """Adds the parser of `planner kueue`."""
    parser = add_command(
        commands, "kueue", run_kueue,
        help="answer the admission checks of Kueue",
        description="Answers every AdmissionCheck of Kueue that is planner's until it is told to end (SIGTERM). "
        "PLANNER_SERVER names the planner service.",
    )  # fmt: skip
    parser.add_argument("--policy", type=Path, metavar="FILE.ini")
    parser.add_argument("--host", default="0.0.0.0", help="where probes are answered (default: %(default)s)")
    parser.add_argument("--health-port", type=int, default=8081, help="of the probes (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=8, help="workloads answered at a time (default: %(default)s)")


def run_kueue(arguments: argparse.Namespace) -> int:
    """`planner kueue`: 0, or PlannerError for what it cannot work with."""
    refuse_without(("kubernetes",), extra="kubernetes", user="the controller")
    from planner.admission.kueue import run_controller

    run_controller(
        policy_file=arguments.policy,
        host=arguments.host,
        health_port=arguments.health_port,
        workers=arguments.workers,
    )
    return DONE
