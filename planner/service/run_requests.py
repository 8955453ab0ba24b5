"""Reads what a run of a program is asked with: a tarball and a query, or a JSON body with a path."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request

from planner.errors import SpecError
from planner.facts.versions import minor_of
from planner.importers.shell_words import words_of
from planner.job.host_memory import read_host_memory
from planner.job.loading import read_gpu
from planner.planning.program_ranks import choose_ranks
from planner.running.launch_line import parse
from planner.service.bodies import content_of, media_type, unsupported_error
from planner.service.body_contents import JSON, read_object
from planner.service.body_errors import error_of_body
from planner.service.orders import RunRequest
from planner.service.problems import RequestError
from planner.service.reading_process import read_beside
from planner.service.shared_folders import SharedFolder
from planner.service.tarballs import Tarball
from planner.settings import Settings, split_list

TAR_TYPES = (
    "application/x-tar",
    "application/gzip",
    "application/x-gzip",
    "application/x-gtar",
    "application/tar+gzip",
)
MOST_RANKS = 16
"""Of one request: each of them is run."""
MOST_STEPS = 1000
_MOST_WORDS = 4096
_LONGEST_COMMAND = 64 * 1024
"""Characters; Linux starts nothing with much more (execve(2), MAX_ARG_STRLEN)."""
_LONGEST_LABEL = 253
_REMEDY = "a shorter script or config, or a tarball of fewer files"
EXAMPLE: dict[str, Any] = {
    "path": "/shared/nlp/llama-sft",
    "command": "torchrun --nproc-per-node 8 train.py --config sft.toml",
    "gpu": "H100-SXM-80GB",
    "ranks": "auto",
    "team": "nlp",
}
_Label = Annotated[str, Field(max_length=_LONGEST_LABEL)]


class RunBody(BaseModel):
    """A program's command and what it is judged for. In a query all values are texts."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": EXAMPLE})
    command: str | list[str]
    """As on the command line behind `planner run --`: one text, or its words."""
    path: str = ""
    """The folder in which the command is started; only in a JSON body."""
    gpu: str = "H100-SXM-80GB"
    ranks: str = "auto"
    """auto (the first two, one of the middle and the last), all, or numbers between commas."""
    steps: Annotated[int, Field(ge=0, le=MOST_STEPS)] = 0
    """Iterations; 0: until its memory is steady."""
    strict: bool = False
    """Refuse to answer values that only the device would have."""
    host_memory: str | Annotated[int, Field(ge=0)] = ""
    """What the job may use of each node's main memory, as 480GiB; empty: the nodes are counted, not judged."""
    torch: Annotated[str, Field(pattern=r"^([0-9]+\.[0-9]+[0-9A-Za-z.+]*)?$", max_length=64)] = ""
    """The release of torch that it runs with, as 2.8: the nearest that is offered runs it; empty: the service's own."""
    name: _Label = ""
    team: _Label = ""
    queue: _Label = ""


async def run_of(request: Request, settings: Settings) -> RunRequest:
    """What a request asks to be run. Raises RequestError, SpecError."""
    kind = media_type(request)
    if kind != JSON and kind not in TAR_TYPES:
        raise unsupported_error(kind, f"{JSON} (with a path), application/x-tar or application/gzip (a tarball)")
    query = request.query_params.multi_items()
    if kind == JSON and query:
        raise RequestError(422, "with a JSON body there is no query", allowed="its keys in the body", place="query")
    if len(dict(query)) < len(query):
        raise RequestError(422, "the query names something twice", allowed="each once", place="query")
    content = await content_of(request)
    about = json.dumps({"kind": kind, "query": dict(query), "folders": split_list(settings.program_folders)})
    found: RunRequest = await read_beside("planner.service.run_requests:read_run", content, about, _REMEDY)
    return found if kind == JSON else dataclasses.replace(found, tarball=content)


def read_run(content: bytes, about: str) -> RunRequest:
    """The request in this content; of a tarball without the tarball, which its caller has."""
    said = json.loads(about)
    if said["kind"] != JSON:
        body = _body(said["query"])
        if body.path:
            raise RequestError(422, "a tarball came with a path", allowed="one of them", place="query.path")
        return _request(body, Tarball(content).text_of)
    body = _body(read_object(content))
    if not body.path:
        raise RequestError(422, "path is missing", allowed="a folder, or a tarball as the body", place="path")
    folder = SharedFolder(body.path, said["folders"])
    return dataclasses.replace(_request(body, folder.text_of), folder=folder.path)


def _body(given: Mapping[str, Any]) -> RunBody:
    try:
        return RunBody.model_validate(given)
    except ValidationError as error:
        raise error_of_body(error, RunBody) from None


def _request(body: RunBody, text_of: Callable[[str], str]) -> RunRequest:
    words = _words(body.command)
    line = parse(words, text_of)
    if len(choose_ranks(body.ranks, line.world_size)) > MOST_RANKS:
        raise SpecError(
            f"ranks {body.ranks} of {line.world_size} are too many to be run in one request",
            allowed=f"at most {MOST_RANKS}",
            place="ranks",
        )
    return RunRequest(
        line=line,
        command=tuple(words),
        gpu=read_gpu(body.gpu, "gpu"),
        ranks=body.ranks,
        steps=body.steps,
        strict=body.strict,
        host_memory_bytes=read_host_memory(body.host_memory, "host_memory"),
        torch=minor_of(body.torch),
        metadata={"name": body.name, "team": body.team, "queue": body.queue},
    )


def _words(command: str | list[str]) -> list[str]:
    words = words_of(command, "command") if isinstance(command, str) else command
    if len(words) > _MOST_WORDS or sum(map(len, words)) > _LONGEST_COMMAND or any("\0" in each for each in words):
        raise SpecError(
            "the command cannot be started: it is too long, or has a NUL",
            allowed=f"{_MOST_WORDS} words, {_LONGEST_COMMAND} characters",
            place="command",
        )
    return words
