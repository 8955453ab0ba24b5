"""A job as YAML with every default filled in."""

from __future__ import annotations

import re

import yaml

from planner.spec.bundle import document
from planner.spec.job import Job
from planner.spec.yaml_text import RESOLVERS


class _Dumper(yaml.SafeDumper):
    """Puts quotes around every text that YAML 1.1 or our reader would take for something else."""

    def ignore_aliases(self, _data: object) -> bool:
        return True


for _tag, _pattern, _first in RESOLVERS:
    _Dumper.add_implicit_resolver(_tag, re.compile(f"(?:{_pattern.pattern})\\Z"), _first)


def job_yaml(job: Job) -> str:
    """The spec in full; read again, it gives the same job."""
    return yaml.dump(document(job), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
