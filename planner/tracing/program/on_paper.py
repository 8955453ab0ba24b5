"""Runs the program of one rank in this process, to the end of enough iterations: the child's heart."""

from __future__ import annotations

import ast
import gc
import importlib
import os
import runpy
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

from planner import (
    cuda_on_paper,
    paper,  # before torch
    upstream,
)
from planner.errors import PlannerError, ProgramError
from planner.job.launching.launched_ranks import extra_arguments
from planner.job.launching.line import Launcher
from planner.paper import values
from planner.paper.device import Paper
from planner.runtime.launcher_parsers import accelerate_variables
from planner.runtime.own_code import take_for_own
from planner.timing.step_time import price_for_clock
from planner.tracing.batch_sizes import Shapes
from planner.tracing.pipeline_folding import PipelineFolding
from planner.tracing.program import (
    cuda,
    program_files,
    program_host,
    run_length,
    storages,
)
from planner.tracing.program.assumptions import About, Assumptions
from planner.tracing.program.compiling import ProgramCompiling
from planner.tracing.program.gpu_statistics import LiveMemory, ManagementLibrary
from planner.tracing.program.host_memory import HostMemory
from planner.tracing.program.input_sizes import InputSizes
from planner.tracing.program.look_ahead import LookAhead
from planner.tracing.program.micro_batches import find_left_out
from planner.tracing.program.node_commands import node_commands
from planner.tracing.program.packages.libraries import found_packages
from planner.tracing.program.peers import World
from planner.tracing.program.program_errors import describe_crash, is_our_fault
from planner.tracing.program.rank_orders import Crash, ProgramOrder, RankRun
from planner.tracing.program.size_schedules import say_schedules, sizes_by_step
from planner.tracing.program.started_ranks import Become, StartedRanks
from planner.tracing.program.step_look_ahead import StepLookAhead
from planner.tracing.program.stopping import FORWARDS, ROUNDS_OF_A_FAILED, Kind, Progress, Stopping, iterations_text
from planner.tracing.program.training_steps import EACH, StepsAt, counted_anew, counting, driving_loops, run_changed
from planner.tracing.program.value_answers import AnswersByTable, BroadcastNumbers, PipelineNeighbours
from planner.tracing.program.watching import WHOLE_EVERY, Watcher, assign_uncalled_modules
from planner.tracing.rank_trace import Trace
from planner.training import absent_peers, dtensor_speed

_CONFS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""The first wins: torch 2.13, c10/core/AllocatorConfig.cpp."""

_MOST_SEARCHED = 40
"""Files of a program that are searched for schedules and their loops, which takes a second."""

_COLLECTED = (
    "Cyclic garbage is collected before the first forward and at the end of every optimizer step, not in between."
)
_BY_HAND = (
    "No optimizer of torch.optim steps: an iteration ends where parameters were written to, or gradients cleared, after"
    " a backward."
)
_INFERS = (
    "No backward and no step of an optimizer was seen: it is planned as a program that infers, each forward of a module"
    " that it calls itself as an iteration."
)
_SPEAKS_OF_TRAINING = "Its own files speak of training, which it did not come to."
_COLLECTED_OFTEN = (
    f"Cyclic garbage is collected before every forward: what is young, and every {WHOLE_EVERY}th time all of it."
)
_NOT_COLLECTED = "The program has switched garbage collection off: cycles stay until it collects them itself."


@dataclass(frozen=True, slots=True)
class Endings:
    """What ends the process of a rank; none of it returns."""

    finish: Callable[[RankRun], NoReturn]
    refuse: Callable[[PlannerError], NoReturn]
    become: Become | None = None
    """It goes on as a rank of another launch line; None where that is not possible."""


class ProgramRun:
    """One program at work."""

    def __init__(self, order: ProgramOrder, gpu: Paper, endings: Endings) -> None:
        self._order, self._gpu, self._finish = order, gpu, endings.finish
        self._process = os.getpid()
        self._started_in = Path.cwd()
        self._began = time.perf_counter()
        self.recorder = recorder = gpu.recorder
        self.assumptions = Assumptions()
        prices = partial(price_for_clock, gpu=order.gpu.name, arch=order.gpu.arch, gpus_per_node=order.line.gpus)
        self.memory = LiveMemory(recorder, _read_conf, order.gpu.total_bytes, order.gpu.outside_bytes, prices)
        self.memory.when_read = self._look_at_reading
        self.answers = AnswersByTable(recorder, self.assumptions, strict=order.strict, otherwise=order.otherwise)
        self.management = ManagementLibrary(order.gpu.product, order.line.gpus, self.memory, self.assumptions)
        self.told = {**order.heard}
        self.neighbours = PipelineNeighbours(self.assumptions, self.told)
        self.compiling = ProgramCompiling(recorder, order.seconds, as_asked=order.is_of_a_spec)
        self._stopping = Stopping(order.steps, order.patience_seconds, order.seconds, self._count_sizes)
        self.steps_at = StepsAt(
            order.steps_at,
            order.usual,
            self._rounds,
            lambda: self.watcher.moments.iterations,
            self.memory.highest_since,
            self._end_at_steps,
            reached=lambda: self.inputs.forget(),
        )
        self._awaits_steps: tuple[int, float] | None = None
        self.ranks = StartedRanks(order, self.assumptions, endings.become, self._end_rank)
        self.host = HostMemory()
        recorder.host = self.host
        self.ahead = LookAhead(
            order.batches,
            self._rounds,
            lambda: self.watcher.moments.trains,
            self.assumptions,
            order.micro_batches,
        )
        self.inputs = InputSizes(self._forward_had, lambda: self.watcher.moments.rounds, self.steps_at.sizes_now)
        self.watcher = Watcher(
            recorder,
            self._look,
            self._look_at_the_time,
            self._look_at_forwards,
            self.host.pass_moment,
            self.inputs,
        )
        self._most_held = 0
        self.world = World(self.assumptions, BroadcastNumbers(self.told))

    def change_loops(self) -> dict[Path, ast.Module]:
        """The program's files in which loops may count to other steps than their own."""
        order = self._order
        is_asked = self.steps_at.is_asked
        if not order.steps_at and (order.steps or order.until_read or order.batches == 0):
            return {}
        files = program_files.own_files(order.line, most=_MOST_SEARCHED)
        loops = driving_loops(files)
        sizes = [] if is_asked else sizes_by_step(files, loops)
        if sizes:
            self.steps_at.ahead = StepLookAhead(sizes)
            self.steps_at.length = run_length.steps_to_run(files, order.line.arguments)
        return counted_anew(files, loops, self.steps_at, sizes) if is_asked or sizes else {}

    def end_whole(self, how: str) -> None:
        """The program has come to its own end. Raises ProgramError if it has neither trained nor inferred."""
        self.watcher.notice_step_by_hand()
        if self.steps_at.is_asked:
            self.steps_at.check()
        moments = self.watcher.moments
        if not moments.ends() and moments.count(Kind.BACKWARD):
            self.assumptions.add(
                About.HOST,
                "No optimizer of torch.optim steps, and no step by hand was seen: the program was followed to its end,"
                " without iterations.",
            )
        elif not moments.ends() and not moments.forwards:
            raise ProgramError(
                f"the program {how} without a step of an optimizer, and without a forward of a module",
                allowed="a program that trains (backwards, steps of optimizers of torch.optim or derived from it) or"
                " infers (forwards of an nn.Module)",
                remedy="run it until it trains: check its arguments, its data and its number of steps",
            )
        if moments.trains:
            self._report(f"the program {how}", None, is_whole=self.steps_at.is_asked or not self.steps_at.counts)
            return
        self._report_forwards(f"the program {how}", is_whole=True)

    def end_failed(self, error: BaseException) -> None:
        """The program has raised an error: if it had trained before, that is its end. Returns if it had not."""
        rounds = self._rounds()
        if rounds < ROUNDS_OF_A_FAILED:
            return
        crash = describe_crash(error)
        place = f" ({crash.place})" if crash.place else ""
        self._report(f"the program failed after {iterations_text(rounds)}: {crash.said}{place}", None, failed=(crash,))

    def _end_rank(self) -> None:
        """The function of a rank that the program starts itself has returned: that is its end, if it was more than a
        preparation."""
        if self.watcher.moments.trains or self.watcher.moments.forwards:
            self.end_whole("ran to its end")

    def _look(self) -> None:
        """A forward, a backward or a step is about to begin: it may be enough."""
        self.steps_at.skip()
        if self._order.ends_at_a_place or self.steps_at.counts:
            if self._stopping.is_late():
                self._report("ended because its time is over (--seconds)", None)
            return
        progress = self._progress()
        if (
            progress.iterations
            and self._stopping.is_over(progress, self.memory.highest)
            and not self._waits_for_steps(progress.iterations)
        ):
            self._report(self._stopping.reason, self.watcher.moments.moment_after(progress.iterations))

    def _look_at_the_time(self) -> None:
        """An evaluation is at work, and may be a long one."""
        self.steps_at.skip()
        if self._order.ends_at_a_place or self.steps_at.counts:
            return
        if self._stopping.is_out_of_patience(self._progress(), evaluates=True):
            self._report(f"{self._stopping.reason}, within an evaluation", None)

    def _waits_for_steps(self, iterations: int) -> bool:
        """Whether it goes on to the next number of its loop, which may be that of a larger step; or, where it warms up
        before, to that loop."""
        if self._stopping.is_late() or not self.steps_at.hurry():
            return False
        since, began = self._awaits_steps = self._awaits_steps or (iterations, time.process_time())
        if (reached := self.steps_at.reached_after) is not None:
            return iterations <= max(since, reached + EACH) + 1
        return time.process_time() - began < self._stopping.longest_seconds

    def _end_at_steps(self) -> None:
        steps = ", ".join(f"{each.step:,}" for each in self.steps_at.peaks())
        found = f"{self._stopping.reason}; then its loop counted to step {steps}"
        self._report("ended after the steps that were asked for" if self.steps_at.is_asked else found, None)

    def _look_at_reading(self) -> None:
        if self._order.until_read and self._rounds() >= max(self._order.steps, 1):
            after = iterations_text(self._rounds())
            self._report(f"ended when it read the statistics of its memory after {after}, as asked for", None)

    def _look_at_forwards(self) -> None:
        """Nothing was trained so far, and no optimizer made: perhaps nothing ever is. What runs on the host alone does
        not say so."""
        self.steps_at.skip()
        forwards = self.watcher.moments.forwards
        if forwards < FORWARDS or self._speaks_of_training:
            return
        if not (self.memory.highest()[0] or self._stopping.is_late()):  # statistics of a data set, or a check
            return
        if self._stopping.has_inferred_enough(forwards, self._highest_of_forwards, waits=self.ahead.waits):
            self._report_forwards(self._stopping.reason)

    def _highest_of_forwards(self) -> tuple[int, ...]:
        """The peaks, and the most that was held when a forward began: what a generation caches grows below the peak of
        its prompt before it raises it."""
        self._most_held = max(self._most_held, self.memory.allocated_now())
        return *self.memory.highest(), self._most_held

    def _report_forwards(self, ending: str, *, is_whole: bool = False) -> None:
        self.watcher.moments.infers = True
        after = self.watcher.moments.moment_after(self._order.steps)
        if after is not None:
            ending, is_whole = self._stopping.asked, False
        self._report(ending, after, is_whole=is_whole)

    @cached_property
    def _speaks_of_training(self) -> bool:
        return program_files.speak_of_training(program_files.own_files(self._order.line, self._started_in))

    def _rounds(self) -> int:
        self.watcher.notice_step_by_hand()
        return self.watcher.moments.rounds

    def _progress(self) -> Progress:
        moments = self.watcher.moments
        return Progress(
            iterations=moments.iterations,
            evaluations=moments.evaluations(),
            checkpoints=moments.count(Kind.SAVE),
            idle=self.watcher.idle_optimizers(),
            waits=self.ahead.waits,
        )

    def _count_sizes(self) -> int:
        return 1 if (varying := self.inputs.varying()) is None else varying.different

    def _forward_had(self, shapes: Shapes, is_trained: bool) -> None:
        moments = self.watcher.moments
        iteration = moments.rounds + is_trained if moments.trains else moments.forwards
        self.ahead.forward_ended(shapes, iteration, evaluates=not is_trained)

    def _report(
        self, ending: str, after: int | None, *, is_whole: bool = False, failed: tuple[Crash, ...] = ()
    ) -> None:
        """`after`: the moment, by its index, that is not reported any more. Returns in children of the process alone,
        which have nothing to report."""
        if os.getpid() != self._process:
            return
        self.ranks.refuse_waiting()
        recorder, moments = self._gpu.recorder, self.watcher.moments
        until = None if after is None else moments.seen_at(after)
        recorder.settle()
        last = recorder.now() if until is None else until
        phases = tuple(moments.phases())
        # Each is placed before what is there already: of several at one position the first comes last.
        for index, phase, iteration in reversed(phases):
            if after is None or index < after:
                recorder.mark_at(moments.log[index].position, phase, iteration)
        assign_uncalled_modules(recorder)
        self.memory.settle()
        over = [index for index in moments.ends() if after is None or index < after]
        ends = [moments.log[index].position for index in over]
        order = self._order
        left_out = find_left_out(moments, phases, order.micro_batches, order.micro_batches_left_out)
        # What comes after an iteration begins with its batch, which is put on the device before its forward.
        begun = [recorder.first_allocation(end, until) for end, until in pairwise([*ends, last])]
        cuts = sorted({*moments.cuts(after), *begun})
        events, repeats = recorder.repeating_events(last, cuts, ends, left_out)
        collected = _COLLECTED_OFTEN if moments.infers else _COLLECTED
        for sentence, is_true in (
            (_BY_HAND, self.watcher.steps_by_hand),
            (collected if gc.isenabled() else _NOT_COLLECTED, True),
            (_INFERS, moments.infers),
            (_SPEAKS_OF_TRAINING, moments.infers and self._speaks_of_training),
        ):
            if is_true:
                self.assumptions.add(About.HOST, sentence)
        for sentence in self.compiling.assumed():
            self.assumptions.add(About.COMPILING, sentence)
        schedules: tuple[str, ...] = ()
        is_looked_ahead = self.steps_at.ahead is not None and not is_whole
        steps_to_run = len(over) if is_whole else 0
        if not (is_whole or moments.infers or self._order.steps_at):  # what later steps may have that were not seen
            files = program_files.own_files(self._order.line, self._started_in, _MOST_SEARCHED)
            ahead = self.steps_at.ahead
            schedules = ahead.say_unjudged() if ahead else say_schedules(sizes_by_step(files))
            steps_to_run = run_length.steps_to_run(files, self._order.line.arguments)
        self._finish(
            RankRun(
                rank=self._order.rank,
                nodes=self.ranks.nodes,
                processes_per_node=self.ranks.per_node,
                devices=cuda.used_devices(),
                trace=Trace(
                    tuple(events),
                    repeats=tuple(repeats),
                    work=recorder.work(last, left_out, recurs=moments.count(Kind.ASIDE) > 0),
                    unknown_workspaces=self._gpu.unknown_workspaces(),
                    other_kernels=self._gpu.other_kernels,
                    other_cudnn=cuda_on_paper.other_cudnn(),
                    host=self.host.events(phases, after),
                    host_assumed=tuple(self.host.assumed),
                    assumed=self.compiling.assumed(),
                    drawn=self.ahead.drawn(),
                    **self.watcher.division,
                    seconds=time.perf_counter() - self._began,
                ),
                ending=ending,
                iterations=len(over),
                is_whole=is_whole,
                failed=failed,
                infers=moments.infers,
                seen={
                    "eval": moments.evaluations(last),
                    **{kind.value: moments.count(kind, last) for kind in (Kind.SAVE, Kind.LOAD)},
                },
                idle_optimizers=self.watcher.idle_optimizers(),
                counted=self.memory.counted(),
                assumptions=self.assumptions.all(),
                communicators=self.world.communicators(),
                talkers=self.world.talkers(),
                branches=tuple(self.answers.branches.values()),
                allocator_conf=self.memory.conf,
                memory_fraction=self.memory.fraction,
                told=self.told,
                schedules=schedules,
                varying=self.inputs.varying(uncaused=is_looked_ahead and not schedules),
                steps_to_run=steps_to_run,
                steps_at=self.steps_at.peaks(),
                usual=int(self.steps_at.usual) if self.steps_at.counts else 0,
            )
        )


def _read_conf() -> str:
    return next((os.environ[name] for name in _CONFS if os.environ.get(name)), "")


def run_program(order: ProgramOrder, endings: Endings) -> None:
    """Run it. Whatever the program raises leaves this function as it is."""
    from torch.distributed import DistStoreError  # after planner.paper

    importlib.import_module("torch._dynamo")  # optimizers load it: it lists torch's functions while they are torch's
    with paper.gpu(order.target or order.gpu.arch, torch_version=order.torch) as gpu, ExitStack() as stack:
        run = ProgramRun(order, gpu, endings)
        stack.enter_context(_surrounded(order, run, endings))
        stack.enter_context(absent_peers.tell_collectives(gpu.recorder.hear_collective))
        for note in order.line.notes:
            run.assumptions.add(About.HOST, note)
        if order.writes:
            run.assumptions.add(About.HOST, "Files that the program writes stay (--allow-writes).")
        gc.freeze()  # what was there before, garbage or not, is not looked at
        gc.set_threshold(0)  # never by itself; whether it is enabled is the program's own affair
        if order.line.launcher is Launcher.ACCELERATE:
            is_alone = order.line.world_size == 1
            os.environ.update(accelerate_variables(order.line.launched_words, is_alone=is_alone))
        _take_python_path()
        if not order.line.is_module and (module := program_files.find_module(order.line, Path.cwd())) is not None:
            take_for_own(program_files.package_around(module))
        changed = run.change_loops()
        if changed:
            stack.enter_context(counting(run.steps_at, changed))
        # What the program has at its end lives until the report, as it does in a process that ends.
        left: Mapping[str, Any] = {}
        try:
            left = _run_main(order, changed, run.steps_at)
            run.ranks.run_waiting()
        except SystemExit as leaving:
            if leaving.code not in (None, 0):
                run.end_failed(leaving)
                raise
        except DistStoreError as error:
            run.end_failed(error)
            raise ProgramError(
                f"rank {order.rank} of the program waits for something that another rank would have set: "
                f"{str(error).splitlines()[0][:200]}",
                allowed="collectives of torch.distributed; keys of a store that this rank sets itself",
                remedy="run another rank (--ranks), or leave out what waits",
                place=order.line.program,
            ) from error
        except Exception as error:
            if not (isinstance(error, PlannerError) or is_our_fault(error)):
                run.end_failed(error)
            raise
        run.end_whole("ran to its end")
        del left


@contextmanager
def _surrounded(order: ProgramOrder, run: ProgramRun, endings: Endings) -> Iterator[None]:
    losses = run.answers.watching_losses
    with (
        cuda.whole(run.memory, run.management),
        node_commands(order.gpu, order.line.gpus),
        storages.on_paper(run.assumptions),
        storages.left_unwritten(run.assumptions),
        program_host.kept_inside(run.ranks, run.assumptions, run.host.start_workers, endings.refuse),
        values.read_by(run.answers),
        storages.with_holes(run.watcher.saves, run.host.as_if_read),
        run.ahead.watch(),
        run.host.watch(),
        run.watcher.watch(),
        PipelineFolding(run.recorder).watch() if order.folds_pipelines else nullcontext(),
        run.world.entered(),
        dtensor_speed.cache_mesh_work(),
        dtensor_speed.make_chunks_lazily(),
        found_packages(order, run.management, run.assumptions, run.recorder, run.watcher.begin_step),
        run.neighbours.present(),
        absent_peers.take_every_step(),
        run.compiling.watch(),
        upstream.patch_targets(
            "program losses",
            wrapped={"torch.nn.functional:cross_entropy": losses, "torch.nn.functional:nll_loss": losses},
        ),
    ):
        yield


def _take_python_path() -> None:
    """What Python does at its start with PYTHONPATH, where this process was started without it: behind walls."""
    folders = map(os.path.abspath, filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    new = [folder for folder in folders if folder not in sys.path]
    sys.path[:0] = new
    spec = PathFinder.find_spec("sitecustomize", new)
    if spec is not None and spec.loader is not None:
        module = sys.modules["sitecustomize"] = module_from_spec(spec)
        spec.loader.exec_module(module)


def _refuse_absent_module(name: str) -> None:
    spec = find_spec(name)
    if spec is None:
        problem = "there is no such module"
    elif spec.submodule_search_locations is not None and find_spec(f"{name}.__main__") is None:
        problem = "it is a package without a __main__, which python -m cannot run"
    else:
        return
    raise ProgramError(
        problem,
        allowed="a module that python -m runs in the folder where planner runs",
        remedy="start planner where the command would be started, or give the package's own command",
        place=f"python -m {name}",
    )


def _run_main(order: ProgramOrder, changed: Mapping[Path, ast.Module], steps: StepsAt) -> Mapping[str, Any]:
    """As `python` would: the program is `__main__`, its folder (of a module: this one) first in the path. What its
    module has at the end."""
    line = order.line
    arguments = [*extra_arguments(line, order.rank), *line.arguments]
    sys.argv = [line.program, *arguments]
    if line.is_module:
        sys.path.insert(0, os.getcwd())
        _refuse_absent_module(line.program)
        return runpy.run_module(line.program, run_name="__main__", alter_sys=True)
    sys.path.insert(0, str(Path(line.program).resolve().parent))
    if (tree := changed.get(Path.cwd() / line.program)) is not None:
        return run_changed(line.program, tree, steps)
    return runpy.run_path(line.program, run_name="__main__")
