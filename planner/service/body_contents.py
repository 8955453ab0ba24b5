"""Reads the content of a request's body strictly: a job, or a JSON object."""

from __future__ import annotations

from typing import Any

from planner.errors import SpecError
from planner.job.json_text import read_json
from planner.job.loading import load_bundle, load_document, load_yaml
from planner.job.schema import Job
from planner.job.size_limits import LARGEST_YAML
from planner.service.problems import RequestError

JSON, YAML = "application/json", "application/yaml"
YAML_TYPES = (YAML, "application/x-yaml", "text/yaml", "text/x-yaml")


def too_large(most_bytes: int) -> RequestError:
    """The refusal of a body that is larger than this."""
    return RequestError(413, "the body is too large", allowed=f"at most {most_bytes} bytes")


def read_job(body: bytes, kind: str) -> Job:
    """The job of a body of this media type. Raises SpecError, RequestError."""
    if kind in YAML_TYPES:
        if len(body) > LARGEST_YAML:
            error = too_large(LARGEST_YAML)
            error.remedy = "send a bundle, as planner spec --bundle prints it"
            raise error
        return load_yaml(_text(body), "the body")
    document = read_object(body)
    return load_bundle(document, "the body") if "schema" in document else load_document(document, "the body")


def read_object(body: bytes, _: str = JSON) -> dict[str, Any]:
    """The JSON object of a body. Raises RequestError."""
    try:
        found = read_json(_text(body), "the body", constants=False)
    except SpecError as error:
        raise RequestError(400, error.problem, allowed=error.allowed, remedy=error.remedy, place=error.place) from None
    if not isinstance(found, dict):
        raise RequestError(400, "the body is no JSON object", allowed="one JSON object", place="the body")
    return found


def _text(body: bytes) -> str:
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RequestError(400, f"the body is no UTF-8 text (byte {error.start})", place="the body") from None
