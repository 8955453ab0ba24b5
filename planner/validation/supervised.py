"""One child process that measures, watched: its time, its memory, its end. Whatever it does is an answer."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from planner.errors import PlannerError
from planner.measuring import measurement
from planner.tracing.isolated import Limits
from planner.units import show_bytes

_LOOK_SECONDS = 0.05
_ROOT = Path(__file__).parents[2]
_CHILD = "import sys; sys.path.append(sys.argv[1]); from planner.validation import child; child.answer_request()"
"""Started with -P and planner last in the path: no file where it is started stands for a library."""
_SAID = ("problem", "allowed", "remedy", "place")
_MOST_CHARACTERS = 2000
_CONFS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def run(request: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    """The child's answer: `{"measurement": ...}`, or `{"problem": ..., ...}` whatever went wrong.

    To be called from a thread that lives as long as the child: the kernel ends the child with it.
    """
    told = {**request, "seconds": limits.seconds, "parent": os.getpid()}
    with tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as answered, tempfile.TemporaryFile() as said:
        asked.write(json.dumps(told).encode())
        asked.seek(0)
        child = subprocess.Popen(
            [sys.executable, "-P", "-c", _CHILD, str(_ROOT)],
            stdin=asked, stdout=answered, stderr=said, start_new_session=True,
            env=_environment(str(request["job"].get("allocator", {}).get("conf", ""))),
        )  # fmt: skip
        try:
            trouble = _watch(child, limits)
        finally:
            _end(child)
        if trouble:
            return {"problem": trouble}
        try:
            return _read(_all(answered), request)
        except (ValueError, TypeError, KeyError, AttributeError, PlannerError):
            # It ended before it had answered; or a foreign program has answered in its place.
            return {"problem": _ended(child.returncode, _last_line(said))}


def _read(text: bytes, request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer, if it is one to this request. Raises one of many errors if it is not."""
    answer = json.loads(text)
    if isinstance(answer.get("problem"), str):
        return {name: str(answer.get(name, ""))[:_MOST_CHARACTERS] for name in _SAID} | {
            "of_a_peer": answer.get("of_a_peer") is True
        }
    found = measurement.from_json(answer["measurement"])
    if (found.rank, found.world_size) != (request["rank"], request["world_size"]) or found.error:
        raise ValueError("the measurement of another rank")
    return {"measurement": measurement.to_json(found)}


def _environment(conf: str) -> dict[str, str]:
    """This process's own, with the allocator's settings of the job and of nobody else."""
    kept = {name: value for name, value in os.environ.items() if name not in _CONFS}
    quiet = {"KINETO_LOG_LEVEL": "99", "TOKENIZERS_PARALLELISM": "false"}
    # torch before 2.10 reads the old name only, and later ones read both.
    return {**kept, **quiet, **(dict.fromkeys(_CONFS, conf) if conf else {})}


def _watch(child: subprocess.Popen[bytes], limits: Limits) -> str:
    """Why the child has to be ended; nothing if it ended itself."""
    deadline = time.monotonic() + limits.seconds
    while child.poll() is None:
        if time.monotonic() > deadline:
            return f"the measured step was not done within {limits.seconds:g} s, and was ended"
        if _resident_bytes(child.pid) > limits.memory_bytes:
            return (
                f"the measured step took more than {show_bytes(limits.memory_bytes)} of the host's memory, and was "
                "ended (PLANNER_VALIDATION_MEMORY_BYTES)"
            )
        time.sleep(_LOOK_SECONDS)
    return ""


def _resident_bytes(process: int) -> int:
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _end(child: subprocess.Popen[bytes]) -> None:
    """And whatever it started: the child is the leader of its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _ended(code: int, last_line: str) -> str:
    if code == -signal.SIGKILL:
        return "the measuring process was killed (SIGKILL), as the kernel does where a host's memory runs out"
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return f"the measuring process ended with {how}: {last_line or 'without a word'}"


def _all(stream: IO[bytes]) -> bytes:
    stream.seek(0)
    return stream.read()


def _last_line(stream: IO[bytes]) -> str:
    lines = _all(stream).decode(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else ""
