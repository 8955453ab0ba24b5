"""Job specs and bundles, from files and from what a service receives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from planner.errors import SpecError
from planner.hardware import catalog
from planner.job import consistency, gpu_names
from planner.job.compile_checks import with_scope
from planner.job.json_text import read_json
from planner.job.nodes import Node, node_from_data
from planner.job.reading import read_dataclass
from planner.job.schema import Gpu, Job
from planner.job.size_limits import LARGEST_YAML
from planner.job.text_files import file_text
from planner.job.yaml_text import read_yaml

BUNDLE_SCHEMA = "planner.bundle/1"


def load_job(path: Path) -> Job:
    """The job of a file: a spec in YAML, or a bundle in JSON as `planner spec --bundle` prints it.

    Raises SpecError with file, line and column for whatever is wrong.
    """
    return _job(*document_of(file_text(path, str(path)), str(path), path.parent))


def document_of(text: str, source: str, folder: Path | None) -> tuple[Node, Path | None]:
    """What a spec or a bundle says, before it is read as a job, and where its relative paths start: at `folder`, for a
    bundle nowhere, and without a folder there may be none. Raises SpecError with the place in `source`."""
    if source.endswith(".json") or _is_json_object(text):
        data = read_json(text, source)
        if isinstance(data, dict) and "schema" in data:
            return _parts_of_bundle(data, source), None
    return read_yaml(text, source), folder


def load_bundle(document: Mapping[str, Any], source: str = "the bundle") -> Job:
    """The job of a bundle that is parsed already; nothing outside of it is read. Raises SpecError."""
    return _job(_parts_of_bundle(document, source), None)


def _parts_of_bundle(document: Mapping[str, Any], source: str) -> Node:
    if document.get("schema") != BUNDLE_SCHEMA:
        raise SpecError(f"the schema is {document.get('schema')!r}", allowed=BUNDLE_SCHEMA, place=source)
    return node_from_data({key: value for key, value in document.items() if key != "schema"}, source)


def load_document(document: Mapping[str, Any], source: str = "the spec") -> Job:
    """The job of a spec that is parsed already and refers to nothing outside. Raises SpecError."""
    return _job(node_from_data(document, source), None)


def load_yaml(text: str, source: str = "the spec") -> Job:
    """The job of a spec in YAML that refers to nothing outside. Raises SpecError with line and column."""
    if len(text) > LARGEST_YAML:
        raise SpecError(
            f"the spec has {len(text)} characters of YAML", allowed=f"at most {LARGEST_YAML}; or a bundle", place=source
        )
    return _job(read_yaml(text, source), None)


def load_node(document: Node, folder: Path | None) -> Job:
    """The job of a spec that somebody put together; relative paths start at `folder`. Raises SpecError at the nodes'
    own places."""
    return _job(document, folder)


def choices_of(document: Node) -> list[str]:
    """What a spec leaves open and its reader decided, for people."""
    node = document.nearest_to("cluster.gpu.name")
    named = isinstance(node.value, str) and node.path in ("cluster.gpu", "cluster.gpu.name")
    said = gpu_names.tell_choice(str(node.value)) if named else ""
    return [said] if said else []


def read_gpu(written: str | Mapping[str, Any], place: str) -> Gpu:
    """The GPU of a name, or of its figures, where no spec says it: an option, a request's key. Raises SpecError."""
    node = node_from_data(written, place, "cluster.gpu")
    gpu = cast(Gpu, read_dataclass(Gpu, node, None))
    consistency.check_gpu(gpu, node)
    return gpu


def job_on_gpu(job: Job, written: str | Mapping[str, Any], *, place: str = "") -> Job:
    """The same job on another GPU. Raises SpecError as :func:`read_gpu` does."""
    return replace(job, cluster=replace(job.cluster, gpu=read_gpu(written, place)))


def _is_json_object(text: str) -> bool:
    if not text.lstrip().startswith("{"):
        return False
    try:
        read_json(text, "")
    except SpecError:
        return False  # a YAML mapping in braces, or broken: the YAML reader says where
    return True


def _job(document: Node, folder: Path | None) -> Job:
    document.mapping("a mapping with model, train, parallel, cluster, ...")
    job = cast(Job, read_dataclass(Job, document, folder))
    if "gpu" not in document.nearest_to("cluster").mapping() or document.nearest_to("cluster") is document:
        raise SpecError(
            "cluster.gpu is missing",
            allowed=", ".join(catalog.names()) + "; or {total_bytes: 79.1GiB, arch: sm_90}",
            place=document.nearest_to("cluster").place,
        )
    consistency.check(job, document)
    return _with_factory_path(with_scope(job), document, folder)


def _with_factory_path(job: Job, document: Node, folder: Path | None) -> Job:
    """A factory is looked for beside the spec; a bundle carries the folder that was meant."""
    if not job.model.factory or folder is None:
        return job
    path = (folder / job.model.factory_path).resolve()
    if not path.is_dir():
        node = document.nearest_to("model.factory_path")
        raise node.error(
            f"is {node.summary}, and there is no such folder", allowed="a folder with the factory's module"
        )
    return replace(job, model=replace(job.model, factory_path=str(path)))
