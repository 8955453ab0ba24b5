"""`planner spec`: a job as a spec, out of whatever names one."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from planner.cli.job_input import job_of
from planner.cli.options import DONE, common_options, job_options

if TYPE_CHECKING:
    from planner.cli.options import Commands


def add_spec(commands: Commands) -> None:
    """Adds the parser of `planner spec`."""
    parser = commands.add_parser(
        "spec",
        parents=[common_options(), job_options()],
        help="print a job as a spec, also out of a model's name or what you already have",
        description="Checks a job and prints it as a spec: what differs from the defaults. With --from-..., makes it"
        " out of the files of other programs; JOB then says what they cannot, and need not be complete.",
    )
    parser.add_argument("--all", action="store_true", help="print every key, with its default")
    parser.add_argument("--bundle", action="store_true", help="print one self-contained JSON object instead")
    parser.add_argument("--json-schema", action="store_true", help="print the JSON Schema of specs, for editors")
    parser.set_defaults(run=run, name="spec")


def run(arguments: argparse.Namespace) -> int:
    """`planner spec`: 0, or SpecError."""
    from planner.job.loading import bundle_text
    from planner.job.printing import job_yaml, short_yaml

    if arguments.json_schema:
        from planner.job.spec_keys import json_schema

        print(json.dumps(json_schema(), indent=2))
        return DONE
    job = job_of(arguments, is_traced=False)
    if arguments.bundle:
        print(bundle_text(job), end="")
    else:
        print(job_yaml(job) if arguments.all else short_yaml(job), end="")
    return DONE
