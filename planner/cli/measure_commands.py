"""`planner measure`, `compare`, `validate` and `gpu-truth`: a step on real devices, beside its plan."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.cli.job_input import job_of
from planner.cli.options import DONE, OUR_FAULT, WRONG_INPUT, add_command, add_format, add_set, job_argument
from planner.distribution import refuse_without
from planner.errors import MeasureError, SpecError
from planner.hardware.facts import VARIABLE
from planner.progress import show_progress

if TYPE_CHECKING:
    from planner.cli.options import Commands


_MEASUREMENTS = Path("measurements.jsonl")


def add_measure(commands: Commands) -> None:
    """Adds the parser of `planner measure`."""
    parser = add_command(
        commands, "measure", run_measure, job_argument(needed=False),
        help="run a job's program, or any program as it is, for real and write down what it took",
        usage="planner measure JOB --device DEVICE [options]\n       planner measure [options] -- COMMAND ...",
        description="Appends a line of JSON to a file for each rank. With a job: runs the program of one rank on a "
        "real device, its peers absent; running out of memory is a result. With a command (torchrun ... train.py): "
        "starts it as it stands on this machine's GPUs, and ends with the command's exit code.",
    )  # fmt: skip
    parser.add_argument(
        "--device", default="", help="cuda, cuda:1, or cpu; of a program cuda (default), or cpu: started without GPUs"
    )
    parser.add_argument("--rank", type=int, help="of a job, which rank to be (default: 0)")
    parser.add_argument(
        "--output", type=Path, default=_MEASUREMENTS, metavar="FILE",
        help="where the lines are appended (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--snapshot", type=Path, metavar="PATH",
        help="also the allocator's history (cuda): FILE.pickle.xz; of a program a folder, a file for each rank",
    )  # fmt: skip


def run_measure(arguments: argparse.Namespace) -> int:
    """`planner measure`: 0, a program's own exit code, or SpecError or MeasureError."""
    if arguments.command:
        return _measure_program(arguments)
    if not arguments.job:
        raise SpecError(
            "nothing says what to measure",
            allowed="JOB (a spec, a bundle, or -), or the command of a program behind --",
            remedy="planner measure -- torchrun --nproc-per-node 8 train.py",
        )
    if not arguments.device:
        raise SpecError("a job is measured, and no device is said", allowed="cuda, cuda:1, cpu", place="--device")
    from planner.truth.measuring import measurement_lines, program
    from planner.truth.measuring.measure import make_setting, measure

    job = job_of(arguments, is_traced=False)
    setting = make_setting(job, arguments.device, arguments.rank or 0)
    program.check_writable(arguments.output)
    with show_progress() as progress:
        progress(f"measuring on {arguments.device}")
        line = measure(job, setting, snapshot=arguments.snapshot)
    measurement_lines.append(arguments.output, [line])
    print(f"{line.case or 'the step'}: one line more in {arguments.output}", file=sys.stderr)
    return DONE


def _measure_program(arguments: argparse.Namespace) -> int:
    """Without progress: the terminal is the program's."""
    from planner.job.launching.line import Launcher, parse
    from planner.job.launching.schedulers import Starter
    from planner.truth.measuring import measurement_lines
    from planner.truth.measuring.program import World, check_gpus, check_writable, measure_program

    if arguments.job or arguments.set:
        given = arguments.job or "--set"
        raise SpecError(f"{given} stands beside a command", allowed="a job, or a command behind --", place="JOB")
    if arguments.rank is not None:
        raise SpecError("a program is measured in all its ranks", allowed="--rank beside a job", place="--rank")
    if arguments.device not in ("", "cuda", "cpu"):
        raise SpecError(
            f"a program chooses its GPUs itself, and --device is {arguments.device[:40]!a}",
            allowed="cuda, cpu",
            remedy="set CUDA_VISIBLE_DEVICES",
            place="--device",
        )
    # Read as `planner run` reads it: its errors are the same.
    line, variable = parse(arguments.command, inherited=os.environ), ""
    if line.launcher is Launcher.PYTHON and line.tasks is not None:
        variable = {Starter.SRUN: "SLURM_PROCID", Starter.MPI: "OMPI_COMM_WORLD_RANK"}.get(line.tasks.starter, "")
    world = World(size=line.world_size, variable=variable)
    if arguments.device != "cpu":
        check_gpus()
    output: Path = arguments.output
    check_writable(output, arguments.snapshot)
    ended = measure_program(arguments.command, world, output.parent, snapshots=arguments.snapshot)
    measurement_lines.append(output, ended.measurements)
    missing = [rank for rank in ended.measurements if rank.error]
    for rank in missing:
        print(f"planner: rank {rank.rank} left no figures: {rank.error}", file=sys.stderr)
    measured = len(ended.measurements) - len(missing)
    print(f"planner: figures of {measured} of {world.size} ranks in {output}", file=sys.stderr)
    return ended.exit_code


def add_compare(commands: Commands) -> None:
    """Adds the parser of `planner compare`."""
    parser = add_command(
        commands, "compare", run_compare,
        help="set a plan and a measurement, or a recorded snapshot, side by side",
        description="Sets what was predicted beside what was measured: peaks, phases, categories.",
    )  # fmt: skip
    parser.add_argument(
        "job",
        metavar="PLAN|RUN|JOB",
        help="what planner plan or planner run --format json wrote, or a job (- for stdin)",
    )
    parser.add_argument(
        "measured", type=Path, metavar="MEASUREMENTS|SNAPSHOT", help="what planner measure wrote, or a snapshot"
    )
    parser.add_argument("--case", default="", help="only measurements of this case")
    parser.add_argument("--rank", type=int, help="only measurements of this rank")
    add_format(parser)
    add_set(parser)


def run_compare(arguments: argparse.Namespace) -> int:
    """`planner compare`: 0, or what planning and reading raise."""
    from planner.truth import plan_comparison

    predicted = None
    if not arguments.set and arguments.job != "-":
        predicted = plan_comparison.read_stored_plan(Path(arguments.job))
    if predicted is None:
        from planner.planning.plan import compare_job

        with show_progress() as progress:
            comparisons = compare_job(job_of(arguments), arguments.measured, arguments.case, arguments.rank, progress)
    else:
        comparisons = plan_comparison.run_compare(
            predicted, arguments.measured, case=arguments.case, rank=arguments.rank
        )
    print(plan_comparison.format_comparisons(comparisons, as_json=arguments.format == "json"), end="")
    return DONE


def add_validate(commands: Commands) -> None:
    """Adds the parser of `planner validate`."""
    parser = add_command(
        commands, "validate", run_validate, job_argument(),
        help="run a job's step on the GPUs of this machine, beside its plan",
        description="Predicts a job, runs its step through a Ray of its own (or the cluster at RAY_ADDRESS), and sets "
        "the two side by side: the same code as behind POST /v1/validations; nothing is stored.",
    )  # fmt: skip
    parser.add_argument("--gpu", default="", help="the GPU of this machine, by its name in the catalog, for the job's")
    parser.add_argument("--mode", default="auto", help="auto, absent_peers or real_peers (default: %(default)s)")
    parser.add_argument("--device", default="cuda", help="cuda or cpu (default: %(default)s)")
    parser.add_argument("--ranks", default="", help="such as 0,8 (default: one of each rank class)")
    parser.add_argument("--seconds", type=float, default=900.0, help="the longest that one step may take")
    parser.add_argument("--rehearse", action="store_true", help="pretend the GPUs, and run the step on the CPU")
    parser.add_argument("--format", default="text", choices=("text", "json"), help="json prints one object only")


def run_validate(arguments: argparse.Namespace) -> int:
    """`planner validate`: 0 if it was measured, even if memory ran out; 2 if the measurement cannot be believed, or
    PlannerError if there is none."""
    refuse_without(("ray", "torch", "transformers"), extra="service", user="a validation")
    from planner.job.loading import job_on_gpu
    from planner.service.validation import validation_run
    from planner.service.validation.requests import build_request

    body: dict[str, Any] = {"mode": arguments.mode, "device": arguments.device}
    if arguments.ranks:
        body["ranks"] = [int(part) if part.strip().isdigit() else part for part in arguments.ranks.split(",")]
    job = job_of(arguments, is_traced=False)
    request = build_request(body, job_on_gpu(job, arguments.gpu, place="--gpu") if arguments.gpu else job)
    result = validation_run.validate_here(request, seconds=arguments.seconds, rehearsal=arguments.rehearse)
    print(validation_run.format_result(result, as_json=arguments.format == "json"), end="")
    if result.problem:
        print(result.problem, file=sys.stderr)
        return WRONG_INPUT
    return DONE


def add_gpu_truth(commands: Commands) -> None:
    """Adds the parser of `planner gpu-truth`."""
    parser = add_command(
        commands, "gpu-truth", run_gpu_truth,
        help="calibrate plans for the GPU of this machine",
        description="Measures ten usual steps on a GPU, each in a process of its own, plans the same, and writes what "
        "that teaches as facts into DIR. Plans for that GPU and torch are calibrated where PLANNER_FACTS names DIR. "
        "Nothing else is to run on the GPU meanwhile.",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder for the facts")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1 (default: %(default)s)")
    parser.add_argument("--only", default="", help="steps whose name has this text")


def run_gpu_truth(arguments: argparse.Namespace) -> int:
    """`planner gpu-truth`: 0, or 1 if some steps could not be measured; FactsError or MeasureError if none could."""
    refuse_without(("torch", "transformers"), extra="plan", user="measuring")
    from planner.planning.gpu_truth import learn_gpu, usual_steps

    steps = [step for step in usual_steps() if arguments.only in step.metadata.name]
    if not steps:
        names = ", ".join(step.metadata.name for step in usual_steps())
        raise MeasureError(f"no step has {arguments.only!r} in its name", allowed=names, place="--only")
    learnt, failed = learn_gpu(arguments.out, steps, lambda line: print(line, file=sys.stderr), device=arguments.device)
    print(learnt.describe(), end="")
    print(f"{VARIABLE}={arguments.out.resolve()} has plans calibrated by it", file=sys.stderr)
    return OUR_FAULT if failed else DONE
