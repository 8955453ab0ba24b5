"""Ranks that a program starts itself: this process is one of them, and the others are absent, as all peers are."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing import process as processes
from pathlib import Path, PurePath
from types import CodeType, FunctionType, ModuleType
from typing import Any, NoReturn

from planner.errors import ProgramError, SpecError
from planner.job.launching.launchers import LAUNCHER_MODULES
from planner.job.launching.line import Launcher, LaunchLine, parse
from planner.job.launching.schedulers import Starter, Tasks
from planner.runtime.own_code import is_programs
from planner.runtime.scripts import Script, ScriptRun, run_here, run_script
from planner.tracing.program import program_files
from planner.tracing.program.assumptions import About, Assumptions, current_place
from planner.tracing.program.rank_orders import MoreGpusError, ProgramOrder

Become = Callable[[LaunchLine, Mapping[str, str]], NoReturn]
"""This process becomes a rank of another launch line, with these variables."""
_REACHES_GPU = re.compile(r"cuda|nccl|init_process_group|Accelerator|Trainer")
"""Beginnings of names and texts in a function that trains on a GPU, or joins the ranks that do."""
_STARTS_PROGRAMS = re.compile(r"python|torchrun|accelerate|deepspeed|srun|mpi|[.](?:py|sh)\b|\$")
_PYTHON = re.compile(r"python[0-9.]*|torchrun|.+[.]py")
_SUBMITIT_LOCALLY, _SUBMITTED = "submitit.local._local", "submitit.core._submit"
"""Modules by which submitit 1.5 starts a job's processes on this machine, and what each of these runs, on any."""
_MOST_FUNCTIONS = 500
_RANK = ("RANK", "LOCAL_RANK")
_CHANGE = "let a launcher start the ranks: torchrun --nproc-per-node N behind --, or accelerate launch"


class StartedRanks:
    """Of one program; `nodes` and `per_node` are those of its world as far as it is known. `end` ends the run of a rank
    whose function has returned, if it has trained or inferred."""

    def __init__(
        self, order: ProgramOrder, assumptions: Assumptions, become: Become | None, end: Callable[[], None]
    ) -> None:
        self._order, self._assumptions, self._become, self._end = order, assumptions, become, end
        self.nodes, self.per_node = order.line.nodes, order.line.processes_per_node
        self._waiting: list[processes.BaseProcess] = []
        self._is_looking = False
        self._others: set[int] = set()

    def spawn(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """What stands for torch.multiprocessing's `spawn` and `start_processes`: one process is this one, of several
        this one is the rank that is planned."""
        del real

        def start(
            fn: Callable[..., Any], args: Any = (), nprocs: int = 1, join: bool = True, *_: Any, **__: Any
        ) -> Any:
            ranks = _Joined(lambda: self._run_rank(nprocs, "torch.multiprocessing", lambda rank: fn(rank, *args)))
            if not join:
                return ranks
            ranks.join()
            return None

        return start

    def defer(self, process: processes.BaseProcess) -> None:
        """The process is to be one of the ranks: which one this is, is known when the program waits for the first."""
        self._waiting.append(process)
        vars(process).update(_popen=_Joined(self.run_waiting), _parent_pid=os.getpid())

    def run_waiting(self) -> None:
        """The program waits for what it has started, or is at its end, which does."""
        waiting, self._waiting = self._waiting, []

        def run(rank: int) -> None:
            vars(processes)["_current_process"] = waiting[rank]
            waiting[rank].run()

        if waiting:
            self._run_rank(len(waiting), "multiprocessing.Process", run)

    def refuse_waiting(self) -> None:
        """Enough was seen of a program that trains beside processes that it started and does not wait for."""
        if self._waiting:
            named = self._waiting[0]
            raise ProgramError(
                f"the program trains beside {len(self._waiting)} processes of its own that reach the GPU"
                f" ({_process_name(named)}), whose memory is not known",
                allowed="processes that work on the host; ranks that the program starts and waits for",
                remedy=_CHANGE,
                place=self._order.line.program,
            )

    def _run_rank(self, count: int, how: str, run: Callable[[int], Any]) -> None:
        rank = self._take_rank(count, how)
        try:
            run(rank)
        except SystemExit as leaving:
            if leaving.code not in (None, 0):
                raise
        if count > 1:
            self._end()

    def _take_rank(self, count: int, how: str) -> int:
        """Which one of `count` ranks of this node it is, and that is known from here on."""
        if count == 1:
            return 0
        line = self._refuse_many(count)
        self._assumptions.add(
            About.HOST,
            f"the program starts {count} ranks itself ({how}): each is planned as one, and none is started",
            current_place(),
        )
        self.nodes, self.per_node = line.nodes, count
        return self._order.rank % count

    def _refuse_many(self, count: int) -> LaunchLine:
        """The line that may start so many on a node."""
        line, place = self._order.line, current_place() or self._order.line.program
        if not line.may_start_ranks:
            raise ProgramError(
                f"each of the {line.world_size} ranks that {line.launcher} starts, starts {count} more itself",
                allowed="ranks that a launcher starts, or the program",
                remedy="start the program by python alone",
                place=place,
            )
        if count <= line.gpus:
            return line
        said = f"the program starts {count} ranks on a node"
        if line.node_gpus:
            raise ProgramError(
                f"{said}, which has {line.node_gpus} GPUs",
                allowed="a rank for each GPU, or fewer",
                remedy=f"--gpus {count}, or fewer ranks",
                place=place,
            )
        raise MoreGpusError(
            f"{said}, and nobody has said that it has so many GPUs",
            count,
            allowed="a rank for each GPU, or fewer",
            remedy=f"--gpus {count}",
            place=place,
        )

    def look_at_command(self, words: Sequence[str], folder: str, environment: Mapping[str, str]) -> bool:
        """Before the program starts a command: whether it is one of the other ranks, which is not started. A command
        that launches ranks, or a program that trains, becomes this process; any other one works on the host."""
        if self._is_looking:  # what runs a script to see what it starts
            return False
        self._is_looking = True
        try:
            launched = self._launch_events(words, folder, environment)
        finally:
            self._is_looking = False
        if launched is None:
            return False
        own = next((name for name in _RANK if environment.get(name, "").isdigit()), "")
        if launched.launcher is Launcher.PYTHON and own and environment[own] != os.environ.get(own):
            return self._look_at_rank(launched, int(environment[own]), environment)
        self._go_on_as(launched, environment)

    def _launch_events(self, words: Sequence[str], folder: str, environment: Mapping[str, str]) -> LaunchLine | None:
        """What the command launches; None if it does not reach the GPU."""
        line = self._order.line

        def text_of(path: str) -> str:
            try:
                with open(os.path.join(folder, path), encoding="utf-8") as file:
                    return file.read()
            except (OSError, UnicodeDecodeError) as error:
                raise SpecError(f"cannot be read: {error}", place=path) from None

        try:
            launched = parse(
                words, text_of, environment, nodes=line.nodes, node_gpus=line.node_gpus,
                run_script=partial(_run_script, folder, is_covered=not self._order.writes),
            )  # fmt: skip
        except SpecError as error:
            if _starts_ranks(words):
                raise ProgramError(
                    f"the program starts {' '.join(words)[:200]}: {error.problem}",
                    allowed=error.allowed,
                    remedy=error.remedy,
                    place=current_place() or line.program,
                ) from error
            self._refuse_unknown(words, folder, environment)
            return None
        launched = replace(launched, folder=os.path.join(folder, launched.folder))
        if launched.program == _SUBMITIT_LOCALLY:
            tasks = Tasks(starter=Starter.SUBMITIT, per_node=int(environment["SUBMITIT_LOCAL_NTASKS"]))
            launched = replace(launched, program=_SUBMITTED, tasks=tasks, processes_per_node=tasks.per_node)
        if launched.launcher is Launcher.PYTHON and launched.tasks is None:
            files = program_files.own_files(launched, Path(launched.folder), surely=True)
            is_installed = any("site-packages" in path.parts for path in files)
            if is_installed or not program_files.speak_of_training(files):
                return None
        return launched

    def _refuse_unknown(self, words: Sequence[str], folder: str, environment: Mapping[str, str]) -> None:
        """Raises ProgramError for a command that nobody knows, before a program that trains."""
        at = next((at for at, word in enumerate(words) if at and _PYTHON.fullmatch(PurePath(word).name)), 0)
        if at and self._launch_events(words[at:], folder, environment) is not None:
            raise ProgramError(
                f"the program starts {' '.join(words)[:200]}, and {words[0][:80]} is not known",
                allowed="torchrun, accelerate launch, deepspeed, srun, mpirun, submitit, or python with the program",
                remedy=f"give the launch line that it stands for behind --, with {' '.join(words[at:])[:200]}",
                place=current_place() or self._order.line.program,
            )

    def _look_at_rank(self, launched: LaunchLine, rank: int, environment: Mapping[str, str]) -> bool:
        """One that the program starts with a number of its own (as Lightning does)."""
        line = self._order.line
        said = [environment.get(name, "") for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE")]
        known = next((int(count) // (1 if count == said[0] else line.nodes) for count in said if count.isdigit()), 0)
        self._others.add(rank)
        if rank == self._order.rank:
            self._go_on_as(launched.with_ranks(line.nodes, known or max(line.gpus, rank + 1)), environment)
        self._take_rank(known or max(self._others) + 1, "each by a command of its own")
        return True

    def _go_on_as(self, launched: LaunchLine, environment: Mapping[str, str]) -> NoReturn:
        line, said = self._order.line, " ".join((launched.launcher, *launched.launcher_words, launched.program))
        if launched.program == _SUBMITTED or not line.may_start_ranks:
            self._refuse_many(launched.processes_per_node)
        if self._become is None:
            raise ProgramError(
                f"the program starts {said} itself",
                allowed="a program that is one rank, or starts its ranks by torch.multiprocessing",
                remedy=f"torchrun --nproc-per-node {launched.processes_per_node} with the script that is submitted"
                if launched.program == _SUBMITTED
                else f"give that command, where planner runs it behind walls: {said}",
                place=current_place() or line.program,
            )
        if launched.program == _SUBMITTED:
            _name_submission(launched)
        note = f"the program itself starts {said} ({current_place() or line.program}): what that runs is planned"
        self._become(replace(launched, notes=(*line.notes, note, *launched.planned, *launched.notes)), environment)


def _name_submission(launched: LaunchLine) -> None:
    """Gives what submitit has pickled the name by which its process finds it: submitit does so once the job has a
    number (submitit 1.5, core/core.py). Of a job array it is the first one."""
    paths: Any = importlib.import_module("submitit.core.utils").JobPaths
    assert launched.tasks is not None
    variables, folder = launched.tasks.variables(0), launched.arguments[-1]
    array = variables.get("SLURM_ARRAY_TASK_ID")
    pickled = [
        path for path in paths.get_first_id_independent_folder(folder).glob("*.pkl")
        if re.fullmatch("[0-9a-f]{32}", path.stem)
    ]  # fmt: skip
    first = sorted(pickled, key=lambda path: path.stat().st_mtime_ns)[-int(variables.get("SLURM_ARRAY_TASK_COUNT", 1))]
    paths(folder, f"1_{array}" if array else "1").move_temporary_file(first, "submitted_pickle")


class _Joined:
    """Stands for processes that are waited for (multiprocessing's Popen, torch's ProcessContext): waiting runs them, in
    this process."""

    pid = 0
    processes = ()

    def __init__(self, run: Callable[[], None]) -> None:
        self._run, self._is_over = run, False

    def join(self, *_: Any, **__: Any) -> bool:
        if not self._is_over:
            self._is_over = True
            self._run()
        return True

    def wait(self, *_: Any, **__: Any) -> int:
        self.join()
        return 0

    poll = wait

    @property
    def sentinel(self) -> int:
        """Of a pipe whose other end is closed: ready."""
        self.join()
        ready, end = os.pipe()
        os.close(end)
        return ready

    def pids(self) -> list[int]:
        return []

    def terminate(self) -> None: ...

    kill = interrupt = close = terminate


def reaches_gpu(process: processes.BaseProcess) -> bool:
    """Whether what the process would run says so: the program's own functions from its target on, by the names and
    texts in them. One that does so without a word is found out when it does."""
    waiting: list[Any] = [vars(process).get("_target"), type(process).run]
    seen: set[CodeType] = set()
    while waiting and len(seen) < _MOST_FUNCTIONS:
        function = waiting.pop()
        while hasattr(function, "func"):  # a partial
            function = function.func
        function = getattr(function, "__func__", function)
        if isinstance(function, type) and "site-packages" not in str(getattr(function, "__module__", "")):
            waiting += [member for member in vars(function).values() if isinstance(member, FunctionType)]
        elif isinstance(function, FunctionType) and is_programs(function.__code__) and function.__code__ not in seen:
            seen.add(function.__code__)
            words, named = _collect_words(function.__code__)
            if any(map(_REACHES_GPU.match, words)):
                return True
            for name in named:
                value = function.__globals__.get(name)
                if isinstance(value, ModuleType):
                    waiting += [member for key, member in vars(value).items() if key in named]
                else:
                    waiting.append(value)
    return False


def _collect_words(code: CodeType) -> tuple[list[str], set[str]]:
    """Names and texts in a function and in those within it, and its names alone."""
    words, named = [*code.co_names], set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, str):
            words.append(constant)
        elif isinstance(constant, CodeType):
            inner, inner_named = _collect_words(constant)
            words += inner
            named |= inner_named
    return words, named


def _starts_ranks(words: Sequence[str]) -> bool:
    first, *rest = (PurePath(word).name for word in words[:3])
    is_module = rest[:1] == ["-m"] and words[2] in LAUNCHER_MODULES
    return first in ("torchrun", "deepspeed") or [first, *rest[:1]] == ["accelerate", "launch"] or is_module


def _run_script(folder: str, script: Script, *, is_covered: bool) -> ScriptRun:
    """A script that the program starts in this folder; one whose text names nothing that starts programs is the
    program's own to run."""
    if "-c" in script.words and not _STARTS_PROGRAMS.search(" ".join(script.words)):
        return ScriptRun(calls=())
    script = replace(script, root=os.path.abspath(folder))
    return run_here(script) if is_covered else run_script(script)


def _process_name(process: processes.BaseProcess) -> str:
    target = vars(process).get("_target") or type(process)
    return str(getattr(target, "__qualname__", target))
