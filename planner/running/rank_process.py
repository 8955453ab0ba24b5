"""Runs one rank of a program in a child process with limits, and names every way in which that can end badly."""

from __future__ import annotations

import errno
import json
import os
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from planner.errors import PlannerError, ProgramError, shorten
from planner.running.assumptions import About, Assumption
from planner.running.branches import Branch
from planner.running.order import Announced, BroadcastNumber, ProgramOrder, RankRun
from planner.running.outside.importers import program_line
from planner.running.rank_environment import variables_of
from planner.running.steps_at import PeaksAt
from planner.running.walled_program import WalledProgram
from planner.runtime import answers, overlay, running
from planner.runtime.channel import AnswerWriter
from planner.runtime.fork_server import ForkServer
from planner.runtime.limits import Limit, LimitExceededError, Limits
from planner.runtime.task import MEMORY, Answer, Task
from planner.runtime.user_cache import kept_folders
from planner.tracing import trace_text
from planner.units import GIB, show_bytes

USUAL_LIMITS = Limits(seconds=1800.0, memory_bytes=16 * GIB, tasks=512, answer_bytes=2 * GIB)
_ABOUT, _TRACE, _CRASH = "about", "trace", "crash"
_FROZEN = "<frozen"
_LISTED = ("assumptions", "branches", "announced", "numbers", "steps_at")
_MOST_LINES, _MOST_CHARACTERS = 10, 1000
"""Of a program's own error: its last lines, each whole as long as a person reads it."""
_DISCARDED_BYTES = 4 * GIB
"""Of files that the program writes; holes in them do not count."""
_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "WANDB_MODE": "disabled",
    "TOKENIZERS_PARALLELISM": "false",
}
"""So that libraries take what is on this machine at once, where their first try would wait for a network."""


class CrashedError(ProgramError):
    """The program raised an error of its own; `text` is its traceback."""

    def __init__(self, problem: str, text: str, **said: str) -> None:
        super().__init__(problem, **said)
        self.text = text


PRELOAD = "planner.running.preload:load"
"""For a fork server whose children are ranks."""


def run_rank(
    order: ProgramOrder,
    limits: Limits = USUAL_LIMITS,
    server: ForkServer | None = None,
    walled: WalledProgram | None = None,
) -> RankRun:
    """One rank's run, in a fresh interpreter or in one that the `server` forks; behind walls if it is `walled`.

    Raises CrashedError for an error of the program, ProgramError for one that exceeds its limits, ends its process or
    neither trains nor infers, TraceError for what the paper GPU cannot do, WallsError where there are no walls.
    """
    own = {**order.line.environment, **variables_of(order.line, order.rank)}
    if walled is None:
        _refuse_absent(order)
        environment = {**_OFFLINE, **os.environ, **own}
        task = Task("planner.running.rank_process:answer_rank", (order, environment, None))
        answer = running.run(task, limits, environment=environment, server=server)
    else:
        environment = {**_OFFLINE, **own}
        task = Task("planner.running.rank_process:answer_rank", (order, environment, walled))
        answer = running.run(task, limits, walls=walled.walls_with(environment))
    return _result_of(answer, limits, order)


def _refuse_absent(order: ProgramOrder) -> None:
    folder = Path(order.line.folder)
    if not folder.is_dir() or not (order.line.is_module or (folder / order.line.program).is_file()):
        raise ProgramError(
            "there is no such program",
            allowed="a path from the folder where planner runs",
            remedy="start planner where the command would be started",
            place=order.line.program,
        )


def _result_of(answer: Answer, limits: Limits, order: ProgramOrder) -> RankRun:
    if isinstance(answer.exceeded, LimitExceededError):
        raise _limit_error(answer.exceeded, order)
    if MEMORY in answer.parts:
        raise _limit_error(LimitExceededError(Limit.MEMORY, limits), order)
    error = answers.error_of(answer)
    if error is not None:
        raise error
    if _CRASH in answer.parts:
        raise _crash_error(answer.parts[_CRASH], order)
    answers.raise_failure(answer)
    if answer.exit_code or _TRACE not in answer.parts or _ABOUT not in answer.parts:
        raise _ended_error(answer, order)
    return _read_run(answer.parts)


def answer_rank(argument: tuple[ProgramOrder, Mapping[str, str], WalledProgram | None], answer: AnswerWriter) -> None:
    """The child's side: what the run was, and its trace, as two parts; the traceback of a program that crashes."""
    order, environment, walled = argument
    os.environ.update(environment)
    if walled is not None:  # what it writes there is gone with it
        walled.enter()
        _refuse_absent(order)
    elif not order.writes:
        overlay.discard_writes(_DISCARDED_BYTES, kept=kept_folders())
    os.chdir(order.line.folder or ".")
    from planner.running.on_paper import run_program
    from planner.running.outside import stand_ins

    def finish(run: RankRun) -> NoReturn:
        answer.write(_TRACE, trace_text.dumps(run.trace).encode())
        about = {name: value for name, value in _fields_of(run).items() if name != "trace"}
        answer.write(_ABOUT, json.dumps(about).encode())
        os._exit(0)

    try:
        run_program(order, finish)
    except (PlannerError, MemoryError, SystemExit):
        raise
    except BaseException as error:
        if _is_our_fault(error):
            raise
        crash = {
            "said": _first_line(error),
            "place": program_line(error),
            "sought": stand_ins.SOUGHT if isinstance(error, ImportError) else [],
            "no_room": isinstance(error, OSError) and error.errno == errno.ENOSPC,
            "text": _last_lines(_own_traceback(error)),
        }
        answer.write(_CRASH, json.dumps(crash).encode())


def _fields_of(run: RankRun) -> dict[str, Any]:
    """The fields of a run as plain values, its trace as it is."""
    found = {name: getattr(run, name) for name in run.__dataclass_fields__}
    listed = {name: [asdict(each) for each in found[name]] for name in _LISTED}
    return {**found, **listed}


def _first_line(error: BaseException) -> str:
    """Of what Python says last of it: its class, and the beginning of its message."""
    lines = "".join(traceback.format_exception_only(error)).splitlines()
    return shorten(next((line for line in lines if type(error).__name__ in line), lines[0]), _MOST_CHARACTERS)


def _last_lines(text: str) -> str:
    lines = text.strip().splitlines()
    left = len(lines) - _MOST_LINES
    kept = [shorten(line, _MOST_CHARACTERS) for line in lines[-_MOST_LINES:]]
    return "\n".join([f"... {left} lines before these", *kept] if left > 0 else kept)


def _own_traceback(error: BaseException) -> str:
    """From the program's first line on: what led there is planner's and runpy's."""
    frames = error.__traceback__
    while frames is not None and _is_ours(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames))


def _is_ours(path: str) -> bool:
    return path.startswith((str(Path(__file__).parents[1]), _FROZEN))


def _read_run(parts: Mapping[str, bytes]) -> RankRun:
    try:
        about = json.loads(parts[_ABOUT])
        about["assumptions"] = tuple(
            Assumption(About(each["about"]), str(each["text"]), str(each["place"]), int(each["count"]))
            for each in about["assumptions"]
        )
        about["counted"] = {str(name): int(value) for name, value in about["counted"].items()}
        about["announced"] = tuple(Announced(int(each["stage"]), str(each["content"])) for each in about["announced"])
        about["numbers"] = tuple(_read_number(each) for each in about["numbers"])
        about["communicators"] = tuple(map(int, about["communicators"]))
        about["branches"] = tuple(Branch(str(each["place"]), bool(each["answer"])) for each in about["branches"])
        about["steps_at"] = tuple(
            PeaksAt(*(int(each[name]) for name in ("step", "allocated_bytes", "reserved_bytes")))
            for each in about["steps_at"]
        )
        about["schedules"] = tuple(str(each) for each in about["schedules"])
        about["libraries"] = tuple(str(each) for each in about["libraries"])
        about["talkers"] = tuple(tuple(map(int, each)) for each in about["talkers"])
        return RankRun(trace=trace_text.loads(parts[_TRACE].decode()), **about)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        # The program could write there itself: nothing is believed of what came.
        raise ProgramError(f"the program's process brought no trace: {error}") from None


def _read_number(each: Mapping[str, Any]) -> BroadcastNumber:
    ranks, values = (tuple(map(int, each[name])) for name in ("ranks", "values"))
    return BroadcastNumber(ranks, int(each["source"]), int(each["number"]), values)


def _is_our_fault(error: BaseException) -> bool:
    """Whether it was raised in planner's own code; what Python's frozen modules raise is their caller's."""
    paths = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    called = [path for path in paths if not path.startswith(_FROZEN)]
    return bool(called) and _is_ours(called[-1])


def _crash_error(content: bytes, order: ProgramOrder) -> ProgramError:
    try:
        crash = json.loads(content)
        said, text, place = (str(crash[name]) for name in ("said", "text", "place"))
        sought = [str(each) for each in crash["sought"]]
        no_room = bool(crash["no_room"])
    except (ValueError, KeyError, TypeError):
        return ProgramError("the program ended with an error that cannot be read", place=order.line.program)
    return CrashedError(
        f"the program ended with an error of its own on rank {order.rank}: {said}",
        text,
        allowed="a program that trains or infers when it is started by this command",
        remedy=_no_room_remedy(order) if no_room else _remedy(said, sought),
        place=place or order.line.program,
    )


def _remedy(said: str, sought: Sequence[str]) -> str:
    """What to change for a program that raised an error; `sought`: packages that it looked for in vain."""
    if sought:
        return f"--with the one that the job has, of {', '.join(sought)}: the program looked for it here"
    if "cannot open shared object file" in said or "undefined symbol" in said:
        return "a compiled extension cannot be loaded here: describe it with --kernels (docs/outside-kernels.md)"
    if "No module named" in said or "cannot import name" in said:
        return "install the version of the package that the program wants: it needs the same here as on the cluster"
    return "its traceback stands above; if it runs on a GPU, planner lacks something: report the traceback"


def _no_room_remedy(order: ProgramOrder) -> str:
    if order.writes:
        return "make room where it writes, or leave out --allow-writes"
    return f"its files may take {show_bytes(_DISCARDED_BYTES)} in all: save less often, or --allow-writes"


def _ended_error(answer: Answer, order: ProgramOrder) -> ProgramError:
    return ProgramError(
        f"the program ended its process on rank {order.rank} with {answers.ending(answer)}",
        remedy="run it by itself and see where it ends",
        place=order.line.program,
    )


def _limit_error(exceeded: LimitExceededError, order: ProgramOrder) -> ProgramError:
    limits, place = exceeded.limits, order.line.program
    match exceeded.limit:
        case Limit.SECONDS:
            return ProgramError(
                f"the program was not done with its first iterations within {limits.seconds:g} s",
                allowed=f"at most {limits.seconds:g} s from its start (--seconds)",
                remedy="see whether it waits for something, take less data or --steps, or allow it more time",
                place=place,
            )
        case Limit.TASKS:
            return ProgramError(
                f"the program starts more than {limits.tasks} processes and threads", remedy="start fewer", place=place
            )
        case Limit.ANSWER:
            return ProgramError(
                f"the trace of the program is larger than {show_bytes(limits.answer_bytes)}",
                remedy="fewer iterations (--steps), or a shorter evaluation",
                place=place,
            )
        case Limit.MEMORY:
            return ProgramError(
                f"the program takes more than {show_bytes(limits.memory_bytes)} of the host's memory",
                allowed=f"at most {show_bytes(limits.memory_bytes)} resident",
                remedy="load less data, or build the model under `with torch.device('cuda')`, where it takes no memory",
                place=place,
            )
