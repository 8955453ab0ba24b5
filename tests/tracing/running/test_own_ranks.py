"""Programs that start their own ranks: each is planned as one of them, and nothing is started for real."""

from __future__ import annotations

from pathlib import Path

import pytest
from program_runs import STEP, Program, Run, judge

from planner.errors import ProgramError, SpecError
from planner.job.launching.line import parse
from planner.tracing.program.rank_orders import MoreGpusError

TRAINS = """
import os, torch, torch.distributed as dist
def train(rank, world):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29555")
    dist.init_process_group("nccl", rank=rank, world_size=world)
    torch.cuda.set_device(rank % torch.cuda.device_count())
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).cuda())
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        model(torch.ones(8 + rank, 64, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    with open(os.path.join(os.path.dirname(__file__), "trained"), "a") as file:
        file.write(f"{rank}/{world} ")
"""
STARTS = {
    "spawn": "mp.spawn(train, args=(gpus,), nprocs=gpus)",
    "contexts": "context = mp.spawn(train, args=(gpus,), nprocs=gpus, join=False)\n    while not context.join(): pass",
    "start_processes": "mp.start_processes(train, args=(gpus,), nprocs=gpus, start_method='fork')",
    "processes": """processes = [mp.Process(target=train, args=(rank, gpus)) for rank in range(gpus)]
    for process in processes: process.start()
    for process in processes: process.join()""",
    "processes of a context": """processes = []
    for rank in range(gpus):
        processes.append(mp.get_context("spawn").Process(target=train, kwargs=dict(rank=rank, world=gpus)))
        processes[-1].start()
    while any(process.is_alive() for process in processes): pass""",
    "processes that nobody waits for": """for rank in range(gpus):
        mp.Process(target=train, args=(rank, gpus)).start()""",
    "processes of a class": """class Worker(mp.Process):
        def __init__(self, rank):
            super().__init__()
            self.rank = rank
        def run(self):
            train(self.rank, gpus)
    workers = [Worker(rank) for rank in range(gpus)]
    for worker in workers: worker.start()
    for worker in workers: worker.join(); assert worker.exitcode == 0""",
}


@pytest.mark.parametrize("how", STARTS)
def test_its_ranks_are_those_of_the_plan(run: Run, program: Program, tmp_path: Path, how: str) -> None:
    lines = f"import torch.multiprocessing as mp\nif __name__ == '__main__':\n    {STARTS[how]}\n"
    path = program(TRAINS + lines.replace("gpus", "torch.cuda.device_count()"))

    found = run(f"python {path}", rank=5, gpus=8)

    assert (found.nodes, found.processes_per_node, found.communicators, found.iterations) == (1, 8, (8,), 3)
    assert (tmp_path / "trained").read_text() == "5/8 "
    assert "the program starts 8 ranks itself" in " ".join(each.text for each in found.assumptions)


LAUNCHED = TRAINS.replace("rank=rank, world_size=world", "").replace(
    'os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29555")\n', "pass\n"
)
LAUNCHED += "train(int(os.environ['LOCAL_RANK']), int(os.environ['WORLD_SIZE']))\n"
COMMANDS = {
    "torchrun": "subprocess.run(['torchrun', '--nproc-per-node', '8', 'launched.py'], check=True)",
    "torchrun of all GPUs": "subprocess.check_call(['torchrun', '--nproc-per-node=gpu', 'launched.py'])",
    "a module": "subprocess.Popen([sys.executable, '-m', 'torch.distributed.run', '--nproc_per_node', '8',"
                " 'launched.py'], env=dict(os.environ)).wait()",
    "a shell": "subprocess.call('cd . && OMP_NUM_THREADS=1 torchrun --nproc-per-node 8 launched.py', shell=True)",
    "os.system": "os.system('torchrun --nproc-per-node 8 launched.py')",
    "os.execvp": "os.execvp('torchrun', ['torchrun', '--nproc-per-node', '8', 'launched.py'])",
    "os.posix_spawnp": "os.posix_spawnp('torchrun', ['torchrun', '--nproc-per-node', '8', 'launched.py'], os.environ)",
    "accelerate": "subprocess.run(['accelerate', 'launch', '--multi_gpu', 'launched.py'])",
    "a file that it has written": "open('written.py', 'w').write(open('launched.py').read());"
                                  " subprocess.run(['torchrun', '--nproc-per-node', '8', 'written.py'])",
    "numbered ranks": """[subprocess.Popen([sys.executable, 'launched.py'], env={**os.environ, 'RANK': str(rank),
    'LOCAL_RANK': str(rank), 'WORLD_SIZE': '8', 'LOCAL_WORLD_SIZE': '8', 'MASTER_ADDR': '127.0.0.1',
    'MASTER_PORT': '29500'}) for rank in range(8)]""",
}  # fmt: skip


@pytest.mark.parametrize("how", COMMANDS)
def test_a_launcher_that_it_starts_is_followed(run: Run, program: Program, tmp_path: Path, how: str) -> None:
    (tmp_path / "launched.py").write_text(LAUNCHED)
    starts = program(f"import os, subprocess, sys\nos.chdir(os.path.dirname(__file__))\n{COMMANDS[how]}\n")

    found = run(f"python {starts}", rank=3, gpus=8)

    assert (found.nodes, found.processes_per_node, found.communicators, found.iterations) == (1, 8, (8,), 3)
    assert (tmp_path / "trained").read_text() == "3/8 "


OWN_COPIES = """
import os, subprocess, sys
if "LOCAL_RANK" not in os.environ:
    copies = [subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, "LOCAL_RANK": str(rank)})
              for rank in range(1, 4)]
    assert [copy.poll() for copy in copies] == [None] * 3
"""


@pytest.mark.parametrize("rank", [0, 2])
def test_one_that_starts_copies_of_itself_is_one_of_them(run: Run, program: Program, tmp_path: Path, rank: int) -> None:
    path = program(OWN_COPIES + TRAINS + "train(int(os.environ.get('LOCAL_RANK', 0)), 4)")

    found = run(f"python {path}", rank=rank, gpus=4)

    assert (found.processes_per_node, found.iterations, (tmp_path / "trained").read_text()) == (4, 3, f"{rank}/4 ")


def spawning(count: int) -> str:
    return TRAINS + f"if __name__ == '__main__': torch.multiprocessing.spawn(train, args=({count},), nprocs={count})"


def test_more_ranks_than_it_was_shown_gpus_are_shown_as_many(program: Program) -> None:
    found = judge("python", program(spawning(2)))

    assert (found.nodes, found.gpus_per_node, found.communicators) == (1, 2, (2,))
    assert sorted(each.ranks for each in found.rank_classes) == ["0", "1"]  # their batches differ


ASKS = (
    TRAINS
    + """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("-d", "--devices", "--num-gpus", dest="gpus")
gpus = parser.parse_args().gpus
gpus = len(gpus.split(",")) if "," in gpus else int(gpus)
assert gpus <= torch.cuda.device_count()
if __name__ == '__main__': torch.multiprocessing.spawn(train, args=(gpus,), nprocs=gpus)
"""
)


@pytest.mark.parametrize("words", [["-d", "2"], ["--devices=0,1"], ["--num-gpus", "2"]])
def test_a_program_that_finds_fewer_gpus_than_its_option_names_is_shown_as_many(
    program: Program, words: list[str]
) -> None:
    found = judge("python", program(ASKS), *words)

    assert (found.nodes, found.gpus_per_node, found.communicators) == (1, 2, (2,))
    assert f"is shown 2, as its {' '.join(words)} says" in " ".join(each.text for each in found.assumptions)


def test_an_error_that_has_nothing_to_do_with_gpus_is_not_tried_again(program: Program) -> None:
    counts = "open(__file__ + '.count', 'a').write('x')\nimport torch\nraise ValueError('a fault of mine')"
    path = program(counts)

    with pytest.raises(ProgramError, match="a fault of mine"):
        judge("python", path, "--num-gpus", "2", writes=True)
    assert Path(path + ".count").read_text() == "x"


@pytest.mark.parametrize(("gpus", "told"), [(0, True), (1, False)])
def test_a_program_that_asks_how_many_gpus_there_are_hears_of_the_option(
    program: Program, gpus: int, told: bool
) -> None:
    path = program("import torch\nprint(torch.cuda.device_count())\n" + STEP)

    assert any("--gpus N says it" in note for note in judge("python", path, node_gpus=gpus).notes) is told


SUBMITS = """
import pathlib, submitit, sys
class Training:
    def __init__(self, size): self.size = size
    def __call__(self):
        import torch
        job = submitit.JobEnvironment()
        torch.distributed.init_process_group(
            "nccl", init_method="tcp://127.0.0.1:29555", rank=job.global_rank, world_size=job.num_tasks
        )
        model = torch.nn.Linear(self.size, self.size).cuda(job.local_rank)
        optimizer = torch.optim.SGD(torch.nn.parallel.DistributedDataParallel(model).parameters(), lr=0.1)
        for _ in range(3):
            model(torch.ones(4, self.size, device=job.local_rank)).sum().backward()
            optimizer.step()
        with open(pathlib.Path(__file__).parent / "trained", "a") as file:
            file.write(f"{job.cluster} {job.job_id}: {job.global_rank} of {job.num_tasks}, {self.size}")
if __name__ == "__main__":
    folder = pathlib.Path(__file__).parent / "jobs" / "%j"
"""
ON_SLURM = "executor = submitit.SlurmExecutor(folder, python=sys.executable)\n    executor.update_parameters("
SUBMITTED = {
    "on this machine": (
        "executor = submitit.AutoExecutor(folder, cluster='local')\n"
        "    executor.update_parameters(gpus_per_node=8, tasks_per_node=8)\n    executor.submit(Training(64)).result()",
        (1, 8),
        "local 1: 5 of 8, 64",
    ),
    "with commands before it": (
        "executor = submitit.LocalExecutor(folder)\n    executor.update_parameters(gpus_per_node=8, tasks_per_node=8,"
        " setup=['export A=1'])\n    executor.submit(Training(64)).result()",
        (1, 8),
        "local 1: 5 of 8, 64",
    ),
    "on Slurm": (
        f"{ON_SLURM}nodes=2, gpus_per_node=4, ntasks_per_node=4)\n    executor.submit(Training(64))",
        (2, 4),
        "slurm 1: 5 of 8, 64",
    ),
    "as an array": (
        f"{ON_SLURM}nodes=2, gpus_per_node=4, ntasks_per_node=4)\n    executor.map_array(Training.__call__,"
        " [Training(32), Training(64)])",
        (2, 4),
        "slurm 1_0: 5 of 8, 32",
    ),
}


@pytest.mark.parametrize("how", SUBMITTED)
def test_what_submitit_has_pickled_runs_as_the_ranks(run: Run, program: Program, tmp_path: Path, how: str) -> None:
    lines, ranks, trained = SUBMITTED[how]
    path = program(f"{SUBMITS}    {lines}\n")

    found = run(f"PYTHONPATH={{beside}} python {path}", rank=5, gpus=max(ranks))

    assert ((found.nodes, found.processes_per_node), found.communicators, found.iterations) == (ranks, (8,), 3)
    assert (tmp_path / "trained").read_text() == trained


def test_submitted_work_of_more_ranks_than_gpus_asks_for_them(run: Run, program: Program) -> None:
    path = program(f"{SUBMITS}    {SUBMITTED['on this machine'][0]}\n")

    with pytest.raises(MoreGpusError, match="change:  --gpus 8"):
        run(f"PYTHONPATH={{beside}} python {path}")


def test_a_launcher_that_nobody_knows_is_named(run: Run, program: Program, tmp_path: Path) -> None:
    (tmp_path / "launched.py").write_text(LAUNCHED)
    path = program(
        "import os, subprocess\nos.chdir(os.path.dirname(__file__))\n"
        "subprocess.run(['jsrun', '-n', '32', 'python', 'launched.py'])"
    )

    with pytest.raises(ProgramError, match=r"starts jsrun -n 32 python launched\.py, and jsrun is not known"):
        run(f"python {path}", gpus=8)
    assert not (tmp_path / "trained").exists()


def test_more_ranks_than_gpus(run: Run, program: Program) -> None:
    path = program(spawning(4))

    with pytest.raises(ProgramError, match="starts 4 ranks on a node, which has 2 GPUs"):
        run(f"python {path}", gpus=2)
    with pytest.raises(MoreGpusError, match="change:  --gpus 4"):
        run(f"python {path}")
    with pytest.raises(ProgramError, match="each of the 2 ranks that torchrun starts, starts 4 more itself"):
        run(f"torchrun --nproc-per-node 2 {path}")


def test_a_launcher_that_lacks_a_count_is_told_by_its_own_error(run: Run, program: Program) -> None:
    path = program("import subprocess\nsubprocess.run(['accelerate', 'launch', 'train.py'])")

    with pytest.raises(ProgramError, match=r"program.py:2: the program starts accelerate launch train.py: how many"):
        run(f"python {path}")


def test_gpus_of_a_node_decide_counts_that_a_launcher_leaves_to_the_machine() -> None:
    for command in ("torchrun --nproc-per-node gpu t.py", "accelerate launch t.py", "deepspeed t.py"):
        line = parse(command.split(), node_gpus=8)
        assert (line.nodes, line.processes_per_node, line.gpus) == (1, 8, 8)
    alone = parse(["python", "t.py"], nodes=2, node_gpus=8)
    assert (alone.world_size, alone.gpus, alone.most_ranks) == (2, 8, 16)


def test_fewer_gpus_than_ranks_are_refused() -> None:
    with pytest.raises(SpecError, match="it starts 8 ranks on a node, which has 4 GPUs"):
        parse(["torchrun", "--nproc-per-node", "8", "t.py"], node_gpus=4)
