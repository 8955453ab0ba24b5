"""Reads what a plan is asked with: a spec, or a program as a tarball and a header, or as JSON with a shared folder."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import json
import os
import stat
import tarfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request

from planner.errors import PlannerError, SpecError
from planner.job.json_text import read_json
from planner.job.launching.launchers import words_of
from planner.job.launching.line import parse
from planner.job.loading import read_gpu
from planner.job.schema import Job
from planner.job.shorthand import read_host_memory
from planner.planning.program_ranks import choose_ranks
from planner.runtime.limits import Limits
from planner.runtime.scripts import LIMITS as SCRIPT_LIMITS
from planner.runtime.scripts import run_script
from planner.runtime.walled_program import WalledProgram
from planner.runtime.walls import Walls
from planner.service.http.bodies import LIMITS, SMALL, media_type, read_beside, read_body, receive_content
from planner.service.http.body_readers import JSON, YAML_TYPES, explain_body_error, read_job, read_object
from planner.service.http.dependencies import Dependencies, code_runners_only, split_authorization
from planner.service.http.problems import RequestError
from planner.service.orders import RunRequest, program_walls, refuse_programs
from planner.settings import split_list
from planner.units import MIB, show_bytes
from planner.versions import minor_of

MOST_FILES = 10_000
MOST_UNPACKED_BYTES = 128 * MIB
"""Half of what the folder in memory holds into which it is unpacked (planner.runtime.walls.TMP_BYTES)."""
MOST_TEXT_BYTES = MIB
"""Of a file that the command names and that is read with it: a script, a config of accelerate."""
LONGEST_PATH = 1000
_LONGEST_PART = 255
"""Bytes of one part of a path (Linux, NAME_MAX)."""
_DEEPEST = 64
"""Folders above a file."""
_LATEST = 2**33
"""Seconds since 1970, which every file system keeps: the year 2242."""
_GZIP = b"\x1f\x8b"
_PLACE = "the tarball"


class Tarball:
    """A tarball, plain or gzipped, of files and folders that all lie in it.

    Raises RequestError (422) for what is not a tarball, has a link or a device, a name that leaves it, or too much.
    """

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._files: dict[str, tarfile.TarInfo] = {}
        self._folders: set[str] = set()
        unpacked = 0
        try:
            with self._open() as packed:
                for count, member in enumerate(packed):
                    _check(member)
                    unpacked += member.size
                    if count >= MOST_FILES or unpacked > MOST_UNPACKED_BYTES:
                        raise _refused(
                            "the tarball unpacks to too much",
                            f"{MOST_FILES:,} files, {show_bytes(MOST_UNPACKED_BYTES)}",
                            "leave out data, weights and .git; data may lie in a folder that the service reads",
                        )
                    self._take(member)
        except RequestError:
            raise
        except Exception as error:
            # tarfile lets through what Python's own functions say of a header: of no kind that could be listed.
            raise _refused(
                f"the body cannot be read as a tarball: {type(error).__name__}: {str(error)[:200]}",
                "a tar file, plain or gzipped",
            ) from None
        if not self._files:
            raise _refused("the tarball is empty", "the files of a program")

    def text_of(self, written: str) -> str:
        member = self._files.get(str(PurePosixPath(written)))
        if member is None:
            raise SpecError("is not in the tarball", allowed="a file of the tarball, from its top", place=written)
        if member.size > MOST_TEXT_BYTES:
            raise SpecError("is too large to be read", allowed=f"up to {show_bytes(MOST_TEXT_BYTES)}", place=written)
        with self._open() as packed:
            file = packed.extractfile(member)
            return _decode(file.read() if file is not None else b"", written)

    def _open(self) -> tarfile.TarFile:
        content: IO[bytes] = io.BytesIO(self._content)
        if self._content.startswith(_GZIP):
            content = gzip.GzipFile(fileobj=content)  # type: ignore[assignment]
        return tarfile.open(fileobj=_InPieces(content), mode="r:")  # type: ignore[call-overload, no-any-return]

    def _take(self, member: tarfile.TarInfo) -> None:
        path = PurePosixPath(member.name)
        above = {str(parent) for parent in path.parents} - {"."}
        if member.isreg():
            self._files[str(path)] = member
        else:
            above |= {str(path)} - {"."}
        self._folders |= above
        both = next((name for name in (*above, str(path)) if name in self._files and name in self._folders), None)
        if both is not None:
            raise _refused(f"{both[:200]!a} is a file and a folder", "each name once")


class _InPieces:
    """A file of which no piece is read that is larger than a text: a header that says so is none."""

    def __init__(self, content: IO[bytes]) -> None:
        self._content = content
        self.seek, self.tell, self.close = content.seek, content.tell, content.close

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= 2 * MOST_TEXT_BYTES:
            raise ValueError(f"a header of {size} bytes")
        return self._content.read(size)


def _check(member: tarfile.TarInfo) -> None:
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts or "\0" in member.name or len(member.name) > LONGEST_PATH:
        raise _refused(f"the name {member.name[:200]!a} leaves the tarball", "relative names without ..")
    if not (member.isreg() or member.isdir()) or member.issparse():
        raise _refused(
            f"{member.name[:200]!a} is a link, a device or a pipe, or has holes",
            "files and folders",
            "tar --dereference",
        )
    too_long = any(len(os.fsencode(part)) > _LONGEST_PART for part in path.parts)
    if too_long or len(path.parts) > _DEEPEST or (member.isreg() and not path.parts):
        raise _refused(f"{member.name[:200]!a} is not a valid file name", "names as files have them")
    if member.size < 0 or not 0 <= member.mtime < _LATEST:
        raise _refused(f"{member.name[:200]!a} has a size or a time that no file has", "a file's own", "tar -cz")


def _refused(problem: str, allowed: str, remedy: str = "tar -cz -C FOLDER .") -> RequestError:
    return RequestError(422, problem, allowed=allowed, remedy=remedy, place=_PLACE)


def _decode(content: bytes, place: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise SpecError("is not UTF-8 text", place=place) from None


_MAKE_READABLE = "chmod -R o+rX the folder of the program"


class SharedFolder:
    """A folder within one of those that the operator named. Raises RequestError (403) for any other."""

    def __init__(self, written: str, allowed: Sequence[str]) -> None:
        roots = [Path(root).resolve() for root in allowed]
        path = Path(written)
        folder = path.resolve() if path.is_absolute() and "\0" not in written else None
        if folder is None or not any(folder.is_relative_to(root) for root in roots):
            # Of what lies elsewhere it is not said whether it exists.
            raise RequestError(
                403,
                f"{written!r:.200} is not a folder in which this service looks for programs",
                allowed=", ".join(map(str, roots)) or "no folder; a tarball as the body",
                remedy="send a tarball, or ask the operator to name the folder in PLANNER_PROGRAM_FOLDERS",
                place="path",
            )
        root = next(root for root in roots if folder.is_relative_to(root))
        if not folder.is_dir() or not _is_open(root, folder):
            raise SpecError(
                f"there is no folder {written!r:.200} that everybody may read",
                allowed="the folder of a program",
                remedy=_MAKE_READABLE,
                place="path",
            )
        self.path = str(folder)

    def text_of(self, written: str) -> str:
        try:
            descriptor = os.open(os.path.join(self.path, written), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError):
            raise SpecError("is not in the folder of the program", allowed="a file there", place=written) from None
        with os.fdopen(descriptor, "rb") as file:
            # Of what is open: a link that is changed meanwhile leads nowhere else.
            real = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
            mode = os.fstat(descriptor).st_mode
            if not real.is_relative_to(self.path) or not stat.S_ISREG(mode):
                raise SpecError("is not in the folder of the program", allowed="a file there", place=written)
            # The service may be able to read what its caller is not.
            if not mode & stat.S_IROTH or not _is_open(Path(self.path), real.parent):
                raise SpecError(
                    "is a file that not everybody may read",
                    allowed="what the program itself can read, which runs as nobody",
                    remedy=_MAKE_READABLE,
                    place=written,
                )
            content = file.read(MOST_TEXT_BYTES + 1)
        if len(content) > MOST_TEXT_BYTES:
            raise SpecError("is too large to be read", allowed=f"up to {show_bytes(MOST_TEXT_BYTES)}", place=written)
        return _decode(content, written)


def _is_open(root: Path, folder: Path) -> bool:
    way = [folder, *(parent for parent in folder.parents if parent != root and parent.is_relative_to(root))]
    try:
        return all(os.stat(step).st_mode & stat.S_IXOTH for step in way if step != root) and (
            folder == root or bool(os.stat(folder).st_mode & stat.S_IROTH)
        )
    except OSError:
        return False


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
_LIMITS = Limits(
    seconds=LIMITS.seconds + SCRIPT_LIMITS.seconds,
    memory_bytes=LIMITS.memory_bytes + SCRIPT_LIMITS.memory_bytes,
    tasks=LIMITS.tasks + SCRIPT_LIMITS.tasks,
)
"""Of a request whose script is run."""
_Label = Annotated[str, Field(max_length=_LONGEST_LABEL)]


HEADER = "X-Planner-Run"
"""In it a tarball's request says what a JSON body says, without a path. Not in the query, which proxies keep in
their logs."""
_IN_HEADER = f'the header {HEADER}: {{"command": "python train.py", "gpu": "H100-SXM-80GB"}}'


class RunBody(BaseModel):
    """A program's command and what it is judged for."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": EXAMPLE})
    command: str | list[str]
    """As on the command line behind `planner run --`: one text, or its words."""
    path: str = ""
    """The folder in which the command is started; only in a JSON body."""
    gpu: str = "H100-SXM-80GB"
    ranks: str = "auto"
    steps: Annotated[int, Field(ge=0, le=MOST_STEPS)] = 0
    strict: bool = False
    """Refuse to answer values that only the device would have."""
    host_memory: str | Annotated[int, Field(ge=0)] = ""
    """What the job may use of each node's main memory, as 480GiB; empty: the nodes are counted, not judged."""
    torch: Annotated[str, Field(pattern=r"^([0-9]+\.[0-9]+[0-9A-Za-z.+]*)?$", max_length=64)] = ""
    """The release of torch that it runs with, as 2.8: the nearest that is offered runs it; empty: the service's own."""
    name: _Label = ""
    team: _Label = ""
    queue: _Label = ""


async def receive_job_or_program(request: Request, deps: Dependencies) -> Job | RunRequest:
    """What a body asks to plan: a spec, or a program (a tarball, or JSON with its `command`).

    Raises SpecError for what cannot be planned, RequestError for a body that cannot be read, and what `refuse_runs`
    raises for a program.
    """
    kind, header = media_type(request), request.headers.get(HEADER, "")
    if kind in TAR_TYPES:
        refuse_runs(request, deps)
    content = await receive_content(request, JSON, *YAML_TYPES, *TAR_TYPES)
    if kind in YAML_TYPES:
        return await read_body(deps, read_job, content, kind)
    is_small = kind == JSON and len(content) <= SMALL and b'"command"' not in content
    is_kept = is_small and not header and not request.query_params
    if is_kept and (known := deps.jobs_read.get(content)) is not None:
        return known
    refusal = _refusal(request, deps)
    # Of folders nobody hears who may not have programs run.
    folders = split_list(deps.settings.program_folders) if refusal is None else None
    walls = dataclasses.asdict(program_walls(deps.settings))
    about = json.dumps(
        {"kind": kind, "header": header, "folders": folders, "query": bool(request.query_params), "walls": walls}
    )
    turns = deps.small_bodies if is_small else deps.bodies
    asked = await read_beside(turns, read_job_or_program, content, about, _REMEDY, _LIMITS)
    if asked is None:
        assert refusal is not None
        raise refusal
    if not isinstance(asked, RunRequest):
        if is_kept:
            deps.jobs_read.keep(content, asked)
        return asked
    _, token = split_authorization(request.headers.get("authorization", ""))
    tenant = hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest() if token else ""
    return dataclasses.replace(asked, tenant=tenant, tarball=b"" if kind == JSON else content)


def refuse_runs(request: Request, deps: Dependencies) -> None:
    """Raises ProgramNotAllowedError where no programs are run, RequestError (401) for who may not have them run."""
    refuse_programs(deps.settings)
    code_runners_only(request, "a bearer token for code of users is needed to have a program run")


def _refusal(request: Request, deps: Dependencies) -> PlannerError | None:
    try:
        refuse_runs(request, deps)
    except PlannerError as error:
        return error
    return None


def read_job_or_program(content: bytes, about: str) -> Job | RunRequest | None:
    """The request in this content; of a tarball without the tarball, which its caller has. None for a program whose
    sender may not have it run."""
    context = json.loads(about)
    document = read_object(content) if context["kind"] == JSON else {}
    if context["kind"] == JSON and not document.keys() & {"command", "path"}:
        return read_job(content, JSON)
    if context["folders"] is None:
        return None
    if context["query"]:
        allowed = f"the keys in a JSON body; of a tarball in {_IN_HEADER}"
        raise RequestError(422, "a run has no query, which proxies log", allowed=allowed, place="query")
    walls = Walls(**context["walls"])
    if context["kind"] != JSON:
        body = _read_body(_read_header(context["header"]))
        if body.path:
            raise RequestError(422, "a tarball came with a path", allowed="one of them", place="path")
        return _request(body, Tarball(content).text_of, WalledProgram(walls=walls, tarball=content))
    body = _read_body(document)
    if not body.path:
        raise RequestError(422, "path is missing", allowed="a folder, or a tarball as the body", place="path")
    folder = SharedFolder(body.path, context["folders"])
    walled = WalledProgram(walls=walls, folder=folder.path)
    return dataclasses.replace(_request(body, folder.text_of, walled), folder=folder.path)


def _read_body(document: Mapping[str, Any]) -> RunBody:
    try:
        return RunBody.model_validate(document)
    except ValidationError as error:
        raise explain_body_error(error, RunBody) from None


def _read_header(written: str) -> dict[str, Any]:
    if not written:
        raise RequestError(422, "the command of the tarball is missing", allowed=_IN_HEADER, place=HEADER)
    document = read_json(written.encode("latin-1").decode("utf-8", "replace"), HEADER, constants=False)
    if not isinstance(document, dict):
        raise RequestError(422, "it must be a JSON object", allowed=_IN_HEADER, place=HEADER)
    return document


def _request(body: RunBody, text_of: Callable[[str], str], walled: WalledProgram) -> RunRequest:
    words = words_of(body.command, "command") if isinstance(body.command, str) else body.command
    if len(words) > _MOST_WORDS or sum(map(len, words)) > _LONGEST_COMMAND or any("\0" in word for word in words):
        raise SpecError(
            "the command cannot be started: it is too long, or has a NUL",
            allowed=f"{_MOST_WORDS} words, {_LONGEST_COMMAND} characters",
            place="command",
        )
    line = parse(words, text_of, run_script=partial(run_script, walled=walled))
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
