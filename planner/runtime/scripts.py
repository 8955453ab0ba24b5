"""Runs a launch script with bash itself, behind walls or under an overlay, and tells which commands it comes to.

Commands that start programs are stand-ins (stand_in.sh) that write down how they were called; everything else is bash's
own and the machine's. Nothing that the script writes stays, and it reaches no network and no other process.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from planner.errors import PlannerError, SpecError, shorten
from planner.runtime import messages, overlay, running
from planner.runtime.child import temporary_folder
from planner.runtime.limits import Limit, Limits
from planner.runtime.messages import AnswerWriter, Task
from planner.runtime.walled_program import WalledProgram
from planner.units import GIB, MIB

LIMITS = Limits(seconds=20.0, memory_bytes=2 * GIB, tasks=128, answer_bytes=16 * MIB)
"""For one script with all that it starts."""
UNKNOWN = re.compile("\ue000([^\ue000\ue001]*)\ue001")
"""A value that is not known here, by what would have given it; the marks are no characters of any script. stand_in.sh
prints them too."""
_SPACE = "\ue002"
"""Of a mark's text: a shell does not split a word there."""
_MARKS = str.maketrans("", "", "\ue000\ue001\ue002")
_WRITTEN_BYTES = 64 * MIB
_MOST_CALLS, _MOST_WORDS, _MOST_FILES = 1000, 4096, 100
LONGEST_VALUE = 120_000
"""Bytes: Linux starts nothing with a word or a variable of 128 KiB (execve(2), MAX_ARG_STRLEN)."""
_MOST_TEXT_BYTES = MIB
"""Of a file that the script writes and a command names."""
_WHOLE = b"\0end"
"""Ends what a stand-in writes of a call."""
_BACKGROUND_SECONDS = 2.0
"""What a script leaves behind when it ends is waited for so long: it may be about to write down a call."""
_LONGEST_SAID = 200
_HERE = Path(__file__).parent
_OWN_VARIABLES = re.compile(r"BASH_\w*|BASH_FUNC_.*|SHLVL|_|PWD|OLDPWD|PLANNER_(?:STAND_INS|GPUS|MOUNTS|PYTHON)")
_WORDS_OF_FILES = re.compile(r"[\s=,;:'\"()]+")
_NEWCOMERS = 0x20000000 | 0x40000000 | 0x08000000
"""CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC (linux/sched.h)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A script, and what it finds when it is started."""

    place: str
    words: tuple[str, ...]
    """bash's own: a path and arguments, or `-c`, the text and what follows."""
    variables: Mapping[str, str]
    tried: Mapping[str, str] = field(default_factory=dict)
    """Variables of a second run: those that nobody has set, as marks, or those of another task."""
    root: str = ""
    """From where folders are seen; empty: where planner runs, or the folder of a program that is walled."""
    folder: str = ""
    """Where it is started."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Texts by their paths: its own, as it was read, and those that a script around it has written."""
    mounts: Mapping[str, str] = field(default_factory=dict)
    """Folders of this machine by those of the container in which it is started."""
    gpus: int = 0
    """Of a node; 0: nobody has said."""
    stand_ins: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A command as it was called."""

    words: tuple[str, ...]
    folder: str
    """As a Script has it."""
    environment: Mapping[str, str]
    """Variables that the script has set or changed."""
    given: str = ""
    """Its standard input: of sbatch alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptRun:
    """What became of a script."""

    calls: tuple[Call, ...]
    tried: tuple[Call, ...] = ()
    """Of the second run."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Texts that it has written and that commands name, by their paths."""
    root: str = ""
    """The folder from which folders are seen."""
    exit_code: int = 0
    line: str = ""
    """Its last one."""
    said: str = ""
    """The last that it has printed."""
    asks_for_gpus: bool = False
    """Whether it takes a value from how many GPUs there are, and nobody has said."""


RunScript = Callable[[Script], ScriptRun]


def mark(source: str) -> str:
    """What stands for a value that is not known, by what would have given it."""
    return f"\ue000{source.translate(_MARKS)}\ue001"


def can_be_started(text: str) -> bool:
    """Whether a system takes it as a word or a value (execve(2))."""
    try:
        return "\0" not in text and len(os.fsencode(text)) <= LONGEST_VALUE
    except UnicodeEncodeError:
        return False


def run_script(script: Script, walled: WalledProgram | None = None) -> ScriptRun:
    """What becomes of the script: behind walls with a program's own files if it is `walled`, else on this machine,
    where nothing that it writes stays.

    Raises SpecError for a script that exceeds its limits, or where it cannot be run, WallsError where there are none.
    """
    task = Task("planner.runtime.scripts:answer_script", (script, walled))
    walls = walled.walls_with({}) if walled is not None else None
    answer = running.run(task, LIMITS, walls=walls)
    if (exceeded := messages.exceeded_limit(answer, LIMITS)) is not None:
        raise _beyond_limits(script, exceeded.limit)
    messages.raise_failure(answer)
    try:
        return _read_run(answer.parts["run"])
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        problem = f"the script ended its process with {messages.ending(answer)}"
        raise _error(script.place, problem, "a script that ends no process but its own") from None


def _error(place: str, problem: str, allowed: str) -> SpecError:
    return SpecError(problem, allowed=allowed, remedy="write the launch line that the script comes to", place=place)


def _beyond_limits(script: Script, limit: Limit) -> SpecError:
    problem = f"exceeds its limit of {limit}"
    if limit is Limit.SECONDS:
        problem = f"does not end within {LIMITS.seconds:g} s"
    allowed = "a script that comes to its launch line: what starts programs is not started in it"
    return _error(script.place, f"the script {problem}", allowed)


def _read_run(content: bytes) -> ScriptRun:
    """The script's own commands may have written it."""
    document = json.loads(content)
    calls, tried = ([_read_call(call) for call in document[name][:_MOST_CALLS]] for name in ("calls", "tried"))
    return ScriptRun(
        calls=tuple(calls),
        tried=tuple(tried),
        files={str(path): str(text) for path, text in document["files"].items()},
        root=str(document["root"]),
        exit_code=int(document["exit_code"]),
        line=str(document["line"])[:20],
        said=shorten(str(document["said"]), _LONGEST_SAID),
        asks_for_gpus=bool(document["asks_for_gpus"]),
    )


def _read_call(document: Mapping[str, Any]) -> Call:
    environment = {str(name): _shown(value) for name, value in document["environment"].items()}
    words = tuple(_shown(word) for word in document["words"][:_MOST_WORDS])
    if not words:
        raise ValueError("a call without words")
    return Call(words=words, folder=str(document["folder"]), environment=environment, given=str(document["given"]))


def _shown(word: object) -> str:
    return str(word).replace(_SPACE, " ")


def answer_script(argument: tuple[Script, WalledProgram | None], answer: AnswerWriter) -> None:
    """The child's side: the run as JSON."""
    script, walled = argument
    if walled is not None:
        walled.enter()
    else:
        _leave_machine(script.place)
    answer.write("run", json.dumps(asdict(run_here(script))).encode())


def run_here(script: Script) -> ScriptRun:
    """What becomes of the script in this process, which is behind walls, or covered, as all that it starts.

    Raises SpecError for one that takes too long, for a folder that is not there, and where there is no bash.
    """
    try:
        return _run_twice(script, script.root or os.getcwd())
    except OSError as error:
        problem = f"bash cannot run the script here: {error}"
        raise _error(script.place, problem, "bash, and a folder that is here") from None


def _run_twice(script: Script, root: str) -> ScriptRun:
    for path, text in script.files.items():
        file = Path(root, path)
        if not file.is_file() or file.read_text(encoding="utf-8", errors="replace") != text:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    with temporary_folder("planner-script-") as own:
        run = _run_bash(script, script.variables, root, Path(own, "first"))
        if not script.tried:
            return run
        again = _run_bash(script, {**script.variables, **script.tried}, root, Path(own, "again"))
    return replace(run, tried=again.calls)


def _leave_machine(place: str) -> None:
    """Nothing that is written stays, no network is there, and no other process."""
    try:
        overlay.discard_writes(_WRITTEN_BYTES)
        if ctypes.CDLL(None, use_errno=True).unshare(_NEWCOMERS) != 0:
            raise PlannerError(f"unshare: {os.strerror(ctypes.get_errno())}")
    except PlannerError as error:
        problem = f"scripts are not run on this machine: {error.problem}"
        allowed = "Linux with overlayfs, as root or where users may have namespaces of their own"
        raise _error(place, problem, allowed) from None
    if child := os.fork():  # a namespace of processes begins with the next one
        _, status = os.waitpid(child, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    with contextlib.suppress(OSError):
        overlay.mount_processes()


def _run_bash(script: Script, variables: Mapping[str, str], root: str, own: Path) -> ScriptRun:
    """`own`: a folder for its stand-ins and what they write."""
    (own / ".calls").mkdir(parents=True)
    stand_in = (_HERE / "stand_in.sh").read_text(encoding="utf-8")
    (own / ".call").write_text(stand_in, encoding="utf-8")
    (own / ".call").chmod(0o755)
    for name in script.stand_ins:
        (own / name).symlink_to(".call")
    path = variables.get("PATH") or "/usr/local/bin:/usr/bin:/bin"
    environment = {
        "LANG": "C.UTF-8",
        "TERM": "xterm",
        **{name: value for name, value in variables.items() if can_be_started(name) and can_be_started(value)},
        **({"SLURM_SUBMIT_DIR": root} if variables.get("SLURM_SUBMIT_DIR") == "." else {}),
        "PATH": f"{own}:{path}",
        "BASH_ENV": str(_HERE / "bash_start.sh"),
        "PLANNER_STAND_INS": str(own),
        "PLANNER_GPUS": str(script.gpus),
        "PLANNER_MOUNTS": "\n".join(path for pair in script.mounts.items() for path in pair),
        "PLANNER_PYTHON": sys.executable,
    }
    reading, writing = os.pipe()  # which is at its end when the last of the script's processes is
    with open(own / ".said", "wb") as said, open(reading, "rb") as alive:
        started = os.fstat(said.fileno()).st_ctime_ns
        try:
            bash = subprocess.Popen(
                ["bash", *script.words],
                cwd=os.path.join(root, script.folder),
                env=environment,
                pass_fds=(writing,),
                process_group=0,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
            )
        finally:
            os.close(writing)
        try:
            exit_code = bash.wait(LIMITS.seconds)
        except subprocess.TimeoutExpired:
            raise _beyond_limits(script, Limit.SECONDS) from None
        finally:
            _end_background(bash, alive)
    written = (_call(file, environment, root, str(own)) for file in _in_order(own / ".calls"))
    calls = [call for call in written if call is not None]
    lines = (own / ".said").read_bytes()[-_MOST_TEXT_BYTES:].decode(errors="replace").strip().splitlines()
    line = own / ".line"
    return ScriptRun(
        calls=tuple(calls),
        files=_written_files(calls, root, started),
        root=root,
        exit_code=exit_code,
        line=line.read_text(encoding="utf-8", errors="replace") if line.is_file() else "",
        said=next((text for text in lines if "syntax error" in text), lines[-1] if lines else ""),
        asks_for_gpus=(own / ".asked").exists(),
    )


def _end_background(bash: subprocess.Popen[bytes], alive: IO[bytes]) -> None:
    """Wait for what a script has left behind, then end it: nothing may write to a folder that is removed."""
    if not select.select([alive], [], [], _BACKGROUND_SECONDS)[0]:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(bash.pid, signal.SIGKILL)
        select.select([alive], [], [], _BACKGROUND_SECONDS)
    bash.wait()


def _in_order(folder: Path) -> list[Path]:
    files = [file for file in folder.iterdir() if file.name.isdecimal()]
    return sorted(files, key=lambda file: (file.stat().st_mtime_ns, int(file.name)))[:_MOST_CALLS]


def _call(file: Path, before: Mapping[str, str], root: str, own: str) -> Call | None:
    """The call that a stand-in has written down; None where it was ended before it had."""
    content = file.read_bytes()
    if not content.endswith(_WHOLE):
        return None
    parts = content.decode(errors="replace").split("\0")
    folder, count = parts[0], int(parts[1])
    words = [part.replace(f"{own}/", "") for part in parts[2 : 3 + count]]
    variables = dict(pair.partition("=")[::2] for pair in parts[3 + count :] if "=" in pair)
    variables["PATH"] = variables.get("PATH", "").replace(f"{own}:", "")
    unchanged = {**before, "PATH": before["PATH"].replace(f"{own}:", "")}
    given = file.with_suffix(".given")
    return Call(
        words=tuple(words),
        folder=_seen_from(folder, root),
        environment={
            name: value.replace(f"{own}/", "")
            for name, value in variables.items()
            if unchanged.get(name) != value and not _OWN_VARIABLES.fullmatch(name)
        },
        given=given.read_text(encoding="utf-8", errors="replace") if given.is_file() else "",
    )


def _seen_from(folder: str, root: str) -> str:
    if folder == root:
        return ""
    return os.path.relpath(folder, root) if folder.startswith(f"{root.rstrip('/')}/") else folder


def _written_files(calls: Sequence[Call], root: str, since: int) -> dict[str, str]:
    """Texts that the commands name, and that were written since."""
    written: dict[str, str] = {}
    for call in calls:
        for part in {part for word in call.words for part in _WORDS_OF_FILES.split(word)[:_MOST_WORDS]}:
            path = os.path.normpath(os.path.join(root, call.folder, part))
            with contextlib.suppress(OSError, ValueError):
                found = os.stat(path)
                if not os.path.isfile(path) or found.st_ctime_ns < since or found.st_size > _MOST_TEXT_BYTES:
                    continue
                if len(written) < _MOST_FILES:
                    written[path] = Path(path).read_text(encoding="utf-8")
    return written
