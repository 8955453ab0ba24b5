"""A job as YAML: with every default filled in, or what differs from the defaults."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import yaml

from planner.hardware import catalog
from planner.job import hf_config
from planner.job.loading import document
from planner.job.schema import Job
from planner.job.spec_keys import by_path
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
    return plain_yaml(document(job))


def short_yaml(job: Job) -> str:
    """The spec without what is the default anyhow; read again, it gives the same job.

    A GPU of the catalog and a well-known model are called by their names.
    """
    spec, gpu = _without_defaults(job, document(job), ""), job.cluster.gpu
    if job.model.hf_config is not None and (model := hf_config.by_config(job.model.hf_config)) is not None:
        spec["model"]["hf_config"] = model.name
    train, recompute, optimizer = spec.get("train", {}), job.train.recompute, job.train.optimizer
    if "recompute" in train:
        train["recompute"] = {"every": recompute.every} if recompute.mode == "every" else recompute.mode
    if "optimizer" in train and optimizer.arguments:
        train["optimizer"] = {"name": optimizer.name, **optimizer.arguments}
    known = catalog.by_name(gpu.name) if gpu.name else None
    written: Any = document(job)["cluster"]["gpu"]
    if written is not None and not gpu.name:
        del written["name"]
    if known is not None and (known.name, known.total_bytes, known.arch) == (gpu.name, gpu.total_bytes, gpu.arch):
        written = gpu.name
    spec.setdefault("cluster", {})["gpu"] = written
    return plain_yaml(spec)


def plain_yaml(data: Any) -> str:
    """Plain data as a spec would be written, whatever it says."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def _without_defaults(part: Any, written: Mapping[str, Any], path: str) -> dict[str, Any]:
    """A section's keys that say something; a section of one key that has a short form is that value."""
    short_form: dict[str, Any] = {}
    for name, value in written.items():
        key = by_path().get(f"{path}.{name}" if path else name)
        if key is None:
            short_form[name] = value  # of a section with keys of its own, as the optimizer's
        elif not key.required and dataclasses.replace(part, **{name: key.default}) == part:
            continue
        elif key.section is not None and isinstance(value, dict) and key.path not in _WHOLE:
            inner, short = _without_defaults(getattr(part, name), value, key.path), key.short
            short_form[name] = inner[short] if inner.keys() == {short} else inner
        else:
            short_form[name] = value
    return short_form


_WHOLE = ("train.inputs", "train.recompute")
"""Mappings of other keys than the schema's, or whose short form hinges on both of their keys."""
