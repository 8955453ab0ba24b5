"""Reads what a submission brings to be planned: its spec, or its program with the files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planner.errors import SpecError
from planner.job.json_text import read_json

MOST_BYTES = 8 * 2**20
"""What the service takes."""
_SUFFIXES = (".yaml", ".yml", ".json")


def bundle_of_file(path: Path) -> Mapping[str, Any]:
    """The bundle of a spec that a person named on their own command line. Raises SpecError."""
    from planner.job.loading import bundle, load_job

    return bundle(load_job(path))


def bundle_of_text(text: str) -> Mapping[str, Any]:
    """The bundle that a submission carries; nothing outside of it is read. Raises SpecError."""
    from planner.job.loading import bundle, load_bundle

    if len(text) > MOST_BYTES:
        raise SpecError("the bundle is larger than 8 MiB")
    document = read_json(text, "the bundle")
    if not isinstance(document, dict):
        raise SpecError("the bundle must be a JSON object", remedy="planner spec --bundle JOB.yaml")
    return bundle(load_bundle(document))


def bundle_within(written: str, folders: Sequence[Path]) -> Mapping[str, Any]:
    """The bundle of a spec that a submission names, if it and all that it refers to lie within one of the folders.

    A submission may be made by a program out of what somebody else wrote: it must not make the hook read, and tell
    a service of, other files of the submitter. Raises SpecError.
    """
    path = within(written, folders, suffixes=_SUFFIXES, place="the submission's spec")
    _check_references(path, folders)
    return bundle_of_file(path)


def within(written: str, folders: Sequence[Path], *, suffixes: Sequence[str], place: str) -> Path:
    """The regular file of that name, links followed, within one of the folders. Raises SpecError."""
    if not written or "\0" in written or re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", written):
        raise SpecError(f"{written[:200]!a} is not a file", allowed="a path within the folder of the job", place=place)
    roots = [folder.resolve() for folder in folders]
    for root in roots:
        path = (root / written).resolve()
        if path.is_relative_to(root) and path.suffix in suffixes and path.is_file():
            if path.stat().st_size > MOST_BYTES:
                raise SpecError(f"{written[:200]!a} is larger than 8 MiB", place=place)
            return path
    raise SpecError(
        f"there is no {written[:200]!a} in the folder of the job",
        allowed=f"{', '.join(suffixes)} within {' or '.join(str(root) for root in roots)}",
        place=place,
    )


def _within(file: Path, folders: Sequence[Path], place: str) -> None:
    written = str(file)
    within(written, folders, suffixes=_SUFFIXES, place=place)


def _check_references(path: Path, folders: Sequence[Path]) -> None:
    """The files that a spec names have to lie where the spec may; a folder of code is nothing for a hook."""
    from planner.job import hf_config, trainer
    from planner.job.json_text import file_text
    from planner.job.yaml_text import read_yaml

    document = read_yaml(file_text(path, path.name), path.name)
    named = document.nearest_to("model.hf_config")
    config = named.value if named.path == "model.hf_config" else None
    if isinstance(config, str) and not hf_config.shipped(config, path.parent):
        # Relative to the spec, not to the folder; what is read there ends in .json.
        beside = str(path.parent / config) if "\0" not in config else config
        within(beside, folders, suffixes=(".json",), place=named.place)
    for key in trainer.FILES:
        named = document.nearest_to(key)
        if named.path == key:
            # What it names beside itself is read for that, and nothing that lies elsewhere.
            trainer.read_file(named, path.parent, lambda file, node: _within(file, folders, node.place))
    code = document.nearest_to("model.factory_path")
    if code.path == "model.factory_path" and code.value:
        raise SpecError(
            "a job that brings a folder of code cannot be checked by a hook",
            remedy="planner check, or a model by hf_config or decoder",
            place=code.place,
        )


RUN = "run"
"""The mark: `planner: run` in Ray's metadata, `planner:run=SCRIPT` in Slurm's comment; in Kubernetes an annotation."""
USUAL_GPU = "PLANNER_GPU"
"""A variable of the hook: the GPU that programs are run for, where the submission does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramAsk:
    """A command, and its files: in a folder that the service shares, or packed."""

    command: tuple[str, ...]
    gpu: str = ""
    path: str = ""
    tarball: bytes = b""
    labels: Mapping[str, str] = field(default_factory=dict)
    """`name`, `team`, `queue`, as far as they are known."""

    def request(self) -> tuple[bytes, Mapping[str, str]]:
        """Body and headers of its request to the service. The command stands in no address: proxies log those."""
        asked = {"command": list(self.command), **({"gpu": self.gpu} if self.gpu else {}), **self.labels}
        if self.tarball:
            return self.tarball, {"Content-Type": "application/gzip", "X-Planner-Run": json.dumps(asked)}
        return json.dumps({**asked, "path": self.path}).encode(), {"Content-Type": "application/json"}


def of_slurm(script: str, folder: Path, environment: Mapping[str, str], site: Mapping[str, str]) -> ProgramAsk:
    """A batch script, from the folder in which it is submitted: on a cluster with Slurm that is a shared one."""
    if not script or script.startswith("-"):
        raise SpecError("the comment names no script", allowed="planner:run=SCRIPT", place="--comment")
    gpu = site.get("gpu", "") or environment.get(USUAL_GPU, "")
    return ProgramAsk(command=("sbatch", script), gpu=gpu, path=str(folder.resolve()))


def of_kubernetes(annotations: Mapping[str, Any], mark: str, command: Sequence[str], gpu: str, name: str) -> ProgramAsk:
    """The command of the container that asks for GPUs, in the folder that the annotation names. Raises SpecError."""
    path = annotations.get(mark)
    if not isinstance(path, str) or not path.startswith("/"):
        raise SpecError("it names no folder", allowed="an absolute path that the service shares", place=mark)
    if not command:
        raise SpecError(
            "no container that asks for GPUs says its command", remedy="write its command and args", place=mark
        )
    return ProgramAsk(command=tuple(command), gpu=gpu, path=path, labels={"name": name})
