"""Runs one rank of a program in a child process with limits and walls, and names every bad end of it."""

from __future__ import annotations

import importlib
import io
import os
import re
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from planner import cuda_on_paper
from planner.errors import PlannerError, ProgramError, TraceError, shorten
from planner.job.launching.launched_ranks import rank_variables
from planner.job.launching.line import LaunchLine
from planner.runtime import messages, overlay, running
from planner.runtime.child import problem_text, start_anew
from planner.runtime.fork_server import ForkServer
from planner.runtime.limits import Limit, LimitExceededError, Limits
from planner.runtime.messages import PROBLEM, Answer, AnswerWriter, Task
from planner.runtime.running import Heard
from planner.runtime.terminal import take_terminal, terminal_variables
from planner.runtime.user_cache import kept_folders
from planner.runtime.walled_program import WalledProgram
from planner.tracing import rank_trace
from planner.tracing.program import rank_orders
from planner.tracing.program.absent_files import say_local
from planner.tracing.program.program_errors import MOST_CHARACTERS, MOST_LINES, describe_crash, is_our_fault
from planner.tracing.program.rank_orders import ABOUT, CRASH, TRACE, ProgramOrder, RankRun, malformed_error
from planner.units import GIB, show_bytes

_PRELOAD = "planner.tracing.program.rank_process:preload"


USUAL_LIMITS = Limits(seconds=1800.0, memory_bytes=16 * GIB, tasks=512, answer_bytes=2 * GIB)
_MOST_TRACEBACK = 2 * MOST_LINES * MOST_CHARACTERS
_DISCARDED_BYTES = 4 * GIB
"""Of files that the program writes; holes in them do not count."""
_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "WANDB_MODE": "disabled",
    "TOKENIZERS_PARALLELISM": "false",
}
"""So that libraries take what is on this machine at once, where their first try would wait for a network."""


_UNLOADED = "a compiled extension cannot be loaded here: describe it with --kernels (docs/run.md)"
_LACKING = "install the version of the package that the program wants: it needs the same here as on the cluster"
_LACKING_GPU = re.compile(r"invalid device ordinal \(cuda:(\d{1,3}) of (\d{1,3})\)")
"""As planner/paper/native/device.cpp and planner/cuda_on_paper/cudart.cpp say it."""
_REMEDIES = {
    "ENGINEHEUR_DESCRIPTOR: cudnn Finalize failed": "torch's own cuDNN (before 9.8) says its workspaces to a GPU "
    "alone: `planner torch 2.7` makes an environment with a newer one, which is asked in its place from then on",
    "cannot open shared object file": _UNLOADED,
    "undefined symbol": _UNLOADED,
    "No module named": _LACKING,
    "cannot import name": _LACKING,
    "gives a program no network": "get what it wants before, where planner runs, and tell it of the local copy",
    "nvrtc: error: invalid value for --gpu-architecture": "this torch cannot compile kernels for this GPU, and could "
    "not on a real one: --torch with the release that the job has (2.7 for a V100), or another --gpu",
}


class CrashedError(ProgramError):
    """The program raised an error of its own; `text` is its traceback."""

    def __init__(self, problem: str, text: str, **fields: str) -> None:
        super().__init__(problem, **fields)
        self.text = text


def run_rank(
    order: ProgramOrder,
    limits: Limits = USUAL_LIMITS,
    server: ForkServer | None = None,
    walled: WalledProgram | None = None,
    heard: Heard = lambda _: None,
) -> RankRun:
    """One rank's run, in a fresh interpreter or in one that the `server` forks; behind walls if it is `walled`. `heard`
    gets what the program prints, as it comes; the last lines of that are a note of an error.

    Raises CrashedError for an error of the program, ProgramError for one that exceeds its limits, ends its process or
    neither trains nor infers, TraceError for what the paper GPU cannot do, WallsError where there are no walls.
    """
    here = {**terminal_variables(), **os.environ} if walled is None else {}
    environment = {**_OFFLINE, **here, **order.line.environment, **rank_variables(order.line, order.rank)}
    arch = order.target or order.gpu.arch
    on_paper = cuda_on_paper.PaperGpu(order.gpu.product, arch, order.gpu.total_bytes, order.line.gpus)
    environment |= {} if server is not None else cuda_on_paper.start_variables()
    environment |= cuda_on_paper.gpu_variables(on_paper)
    task = Task("planner.tracing.program.rank_process:answer_rank", (order, environment, walled))
    if walled is None:
        _refuse_absent(order)
        return _read_result(
            running.run(task, limits, environment=environment, server=server, heard=heard), limits, order
        )
    answer = running.run(task, limits, walls=walled.walls_with(environment), heard=heard)
    if messages.is_fault(answer):
        raise ProgramError(
            f"the program's process ended with a fault in planner's own code: {messages.fault_line(answer)}",
            allowed="a program that leaves planner's own modules alone",
            remedy="if it does, report this line, and the program if you may",
            place=order.line.program,
        )
    return _read_result(answer, limits, order)


def program_limits(given: Limits) -> Limits:
    """Of a program that is run in the place of a trace with these limits."""
    return replace(USUAL_LIMITS, seconds=given.seconds, memory_bytes=given.memory_bytes)


def lasting_server() -> ForkServer:
    """This process's server whose children are ranks."""
    return cuda_on_paper.lasting_server(_PRELOAD)


def _refuse_absent(order: ProgramOrder) -> None:
    folder = Path(order.line.folder)
    program = folder / order.line.program
    is_written = os.path.abspath(program) in order.line.files
    if not folder.is_dir() or not (order.line.is_module or is_written or program.is_file()):
        raise ProgramError(
            "there is no such program",
            allowed="a path from the folder where planner runs",
            remedy="start planner where the command would be started",
            place=order.line.program,
        )


def _read_result(answer: Answer, limits: Limits, order: ProgramOrder) -> RankRun:
    said = "\n".join(answer.last_lines)
    try:
        run = _read_run(answer, limits, order)
    except PlannerError as error:
        if said:
            error.add_note(said)
        raise
    return replace(run, said=said) if run.failed else run


def _read_run(answer: Answer, limits: Limits, order: ProgramOrder) -> RankRun:
    if (exceeded := messages.exceeded_limit(answer, limits)) is not None:
        raise _limit_error(exceeded, order)
    error = messages.error_of(answer)
    if error is not None:
        raise error
    if CRASH in answer.parts:
        raise _crash_error(answer.parts[CRASH], order)
    messages.raise_failure(answer)
    if answer.exit_code == 0 and not answer.whole:
        raise malformed_error("the answer is not whole")
    if answer.exit_code or TRACE not in answer.parts or ABOUT not in answer.parts:
        raise ProgramError(
            f"the program ended its process on rank {order.rank} with {messages.ending(answer)}",
            remedy="run it by itself and see where it ends",
            place=order.line.program,
        )
    return rank_orders.read_run(answer.parts, order.rank)


Argument = tuple[ProgramOrder, Mapping[str, str], WalledProgram | None]


def answer_rank(argument: Argument, answer: AnswerWriter) -> None:
    """The child's side: what the run was, and its trace, as two parts; the traceback of a program that crashes."""
    order, environment, walled = argument
    os.environ.update(environment)
    if walled is not None:  # what it writes there is gone with it
        walled.enter()
    elif not order.writes:
        overlay.discard_writes(_DISCARDED_BYTES, kept=kept_folders())
    _write_files(order.line.files)
    if walled is not None:
        _refuse_absent(order)
    _answer(order, answer, may_become=walled is None)


def _write_files(files: Mapping[str, str]) -> None:
    """What the launch script has written for the program."""
    for path, text in files.items():
        with suppress(OSError, ValueError):  # the program says what it lacks
            os.makedirs(os.path.dirname(path), exist_ok=True)
            Path(path).write_text(text, encoding="utf-8")


def answer_launched(order: ProgramOrder, answer: AnswerWriter) -> None:
    """As :func:`answer_rank`, of a launch line that the program itself has started: this process was its."""
    _write_files(order.line.files)
    _refuse_absent(order)
    _answer(order, answer, may_become=True)


def _answer(order: ProgramOrder, answer: AnswerWriter, *, may_become: bool) -> None:
    os.chdir(order.line.folder or ".")
    take_terminal()
    os.putenv("CUDA_VISIBLE_DEVICES", "")  # GPUs of this machine; what the program reads of it is its own
    from planner.tracing.program.on_paper import Endings, run_program

    process = os.getpid()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # what it prints is there when its process is ended

    def finish(run: RankRun) -> NoReturn:
        _flush()
        answer.write(TRACE, rank_trace.dumps(run.trace).encode())
        answer.write(ABOUT, rank_orders.write_report(run))
        os._exit(0)

    turn = os.eventfd(1)

    def refuse(error: PlannerError) -> NoReturn:
        os.eventfd_read(turn)  # of several children one answers; the others wait until they are ended
        _flush()
        answer.write(PROBLEM, problem_text(error))
        os.kill(process, signal.SIGKILL)
        os._exit(1)

    def become(line: LaunchLine, environment: Mapping[str, str]) -> NoReturn:
        launched = replace(order, line=line)
        variables = {**environment, **line.environment, **rank_variables(line, order.rank)}
        start_anew(Task("planner.tracing.program.rank_process:answer_launched", launched), answer, variables)

    try:
        run_program(order, Endings(finish, refuse, become if may_become else None))
    except (PlannerError, MemoryError, SystemExit):
        raise
    except BaseException as error:
        if is_our_fault(error):
            raise
        answer.write(CRASH, rank_orders.write_report(describe_crash(error)))
    finally:
        _flush()
        if os.getpid() != process:  # forked by the program, and none of its own: it has nothing to answer
            os._exit(0)


def _flush() -> None:
    with suppress(Exception):  # a program may have closed it
        sys.stdout.flush()


def _crash_error(content: bytes, order: ProgramOrder) -> ProgramError:
    crash = rank_orders.read_crash(content)
    if (lacking := _LACKING_GPU.search(crash.said)) is not None:
        return ProgramError(
            f"the program uses cuda:{lacking[1]}, and a node of the job has {lacking[2]} as far as is said",
            allowed=f"GPUs 0 to {int(lacking[2]) - 1}",
            remedy=f"--gpus {int(lacking[1]) + 1} (or as many as a node has), or another device in the program",
            place=crash.place or order.line.program,
        )
    absent = shorten(crash.absent, MOST_CHARACTERS)
    if crash.no_room and order.writes:
        remedy = "make room where it writes, or leave out --allow-writes"
    elif crash.no_room:
        remedy = f"its files may take {show_bytes(_DISCARDED_BYTES)} in all: save less often, or --allow-writes"
    elif order.rank and not order.writes and "No such file" in crash.said:
        remedy = "--allow-writes, if another rank has written it: what each writes is there for itself alone"
    elif crash.sought:
        remedy = f"--with the one that the job has, of {', '.join(crash.sought)}: the program looked for it here"
    elif absent:
        remedy = say_local(absent, order.line.program)
    else:
        remedy = next(
            (remedy for words, remedy in _REMEDIES.items() if words in crash.said),
            "its traceback stands above; if it runs on a GPU, planner lacks something: report the traceback",
        )
    said = shorten(crash.said, MOST_CHARACTERS)
    if absent not in said:
        said = f"{absent} is not here: {said}"
    return CrashedError(
        f"the program ended with an error of its own on rank {order.rank}: {said}",
        shorten(crash.text, _MOST_TRACEBACK),
        allowed="a program that trains or infers when it is started by this command",
        remedy=remedy,
        place=crash.place or order.line.program,
    )


def _limit_error(exceeded: LimitExceededError, order: ProgramOrder) -> ProgramError:
    limits, memory = exceeded.limits, show_bytes(exceeded.limits.memory_bytes)
    problem, allowed, remedy = {
        Limit.SECONDS: (
            f"the program was not done with its first iterations within {limits.seconds:g} s",
            f"at most {limits.seconds:g} s from its start (--seconds)",
            "see whether it waits for something, take less data or --steps, or allow it more time",
        ),
        Limit.TASKS: (f"the program starts more than {limits.tasks} processes and threads", "", "start fewer"),
        Limit.ANSWER: (
            f"the trace of the program is larger than {show_bytes(limits.answer_bytes)}",
            "",
            "fewer iterations (--steps), or a shorter evaluation",
        ),
        Limit.MEMORY: (
            f"the program takes more than {memory} of the host's memory",
            f"at most {memory} resident",
            "load less data, or build the model under `with torch.device('cuda')`, where it takes no memory",
        ),
    }[exceeded.limit]
    return ProgramError(problem, allowed=allowed, remedy=remedy, place=order.line.program)


def preload() -> None:
    """Import, and register the paper GPU's kernels. Nothing is run: autograd's threads do not survive a fork. A library
    that planner refuses is the first rank's error: it says what to change, which a server that ends cannot."""
    from planner import paper  # before torch
    from planner.tracing.program import on_paper  # noqa: F401
    from planner.upstream import checking

    importlib.import_module("torch._dynamo")
    paper.prepare()
    with suppress(TraceError):
        checking.enforce()
