"""A job as YAML with every default filled in."""

from __future__ import annotations

import re

import yaml

from planner.job.bundle import document
from planner.job.schema import Job
from planner.job.yaml_text import RESOLVERS


class _Dumper(yaml.SafeDumper):
    """Puts quotes around every text that YAML 1.1 or our reader would take for something else."""

    def ignore_aliases(self, _data: object) -> bool:
        return True

    def text(self, value: str) -> yaml.ScalarNode:
        """PyYAML 6 folds the line breaks of Unicode into spaces unless the text stands in double quotes."""
        style = '"' if any(mark in value for mark in "\x85\u2028\u2029") else None
        return self.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _Dumper.text)


for _tag, _pattern, _first in RESOLVERS:
    _Dumper.add_implicit_resolver(_tag, re.compile(f"(?:{_pattern.pattern})\\Z"), _first)


def job_yaml(job: Job) -> str:
    """The spec in full; read again, it gives the same job."""
    return yaml.dump(document(job), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
