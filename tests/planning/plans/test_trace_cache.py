"""A trace that was made before is found again, wherever and however often it is asked for."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from planner.job.schema import Cluster, Decoder, Gpu, Job, Model, Train
from planner.planning.plan import plan_job
from planner.planning.trace_source import TraceCache, TraceSource
from planner.report.statement import Plan, Seconds
from planner.runtime.user_cache import NONE, inductor_folder
from planner.tracing import job_program
from planner.tracing.isolated import shell_put_aside
from planner.tracing.job_program import trace

JOB = Job(
    model=Model(decoder=Decoder(layers=1, hidden=32, heads=2, kv_heads=2, ffn=64, vocab=64)),
    train=Train(micro_batch_size=1, sequence_length=16),
    cluster=Cluster(gpu=Gpu(total_bytes=80 << 30, arch="sm_90")),
)


@pytest.fixture
def cache(tmp_path: Path) -> TraceCache:
    return TraceCache(tmp_path / "traces")


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """The jobs that were traced, in this process."""
    found: list[Job] = []
    real = job_program.trace

    def watched(job: Job, rank: int) -> object:
        found.append(job)
        return real(job, rank)

    monkeypatch.setattr(job_program, "trace", watched)
    return found


def planned(job: Job, cache: TraceCache) -> Plan:
    made = plan_job(job, source=TraceSource(cache=cache)).plan
    return dataclasses.replace(made, seconds=Seconds(trace=0, replay=0, total=0))


def test_the_same_job_is_traced_once_and_has_the_same_plan(cache: TraceCache, traced: list[Job]) -> None:
    assert planned(JOB, cache) == planned(JOB, cache)
    assert traced == [JOB]


@pytest.mark.parametrize("content", [b"", b"no trace", None], ids=["empty", "other", "cut off"])
def test_a_damaged_one_is_made_again(cache: TraceCache, traced: list[Job], content: bytes | None) -> None:
    first = planned(JOB, cache)
    (path,) = cache.folder.iterdir()
    path.write_bytes(path.read_bytes()[:-20] if content is None else content)

    assert planned(JOB, cache) == first
    assert traced == [JOB, JOB]
    assert cache.load(JOB, 0) is not None


def test_the_ones_used_longest_ago_go_first(cache: TraceCache) -> None:
    made = trace(JOB)
    jobs = [dataclasses.replace(JOB, train=dataclasses.replace(JOB.train, sequence_length=n)) for n in (8, 16, 32)]
    for age, each in zip((300, 200, 100), jobs, strict=True):
        cache.store(each, 0, made)
        path = cache._path(each, 0)
        os.utime(path, (path.stat().st_atime, path.stat().st_mtime - age))
    assert cache.load(jobs[0], 0) == made
    other = dataclasses.replace(JOB, train=dataclasses.replace(JOB.train, sequence_length=64))
    dataclasses.replace(cache, most_bytes=3 * path.stat().st_size).store(other, 0, made)

    assert [cache.has(each, 0) for each in (*jobs, other)] == [True, False, True, True]


def test_a_folder_that_cannot_be_written_costs_nothing_but_time(tmp_path: Path, traced: list[Job]) -> None:
    (tmp_path / "file").touch()
    cache = TraceCache(tmp_path / "file")

    assert planned(JOB, cache) == planned(JOB, cache)
    assert traced == [JOB, JOB]


def test_several_may_write_and_read_it_at_a_time(cache: TraceCache) -> None:
    made, found = trace(JOB), []

    def use() -> None:
        for _ in range(20):
            cache.store(JOB, 0, made)
            found.append(cache.load(JOB, 0))

    threads = [threading.Thread(target=use) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    assert found == [made] * 80
    assert len(list(cache.folder.iterdir())) == 1


def test_the_users_own_is_where_caches_are_or_nowhere(tmp_path: Path) -> None:
    assert TraceCache.of_user({"XDG_CACHE_HOME": str(tmp_path)}) == TraceCache(tmp_path / "planner/traces")
    assert TraceCache.of_user({"PLANNER_CACHE": "/scratch/traces"}) == TraceCache(Path("/scratch/traces"))
    assert TraceCache.of_user({"PLANNER_CACHE": NONE}) is None


def test_what_inductor_compiled_lies_below_the_folder_that_is_named_for_traces(tmp_path: Path) -> None:
    assert inductor_folder({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "planner/inductor"
    assert inductor_folder({"PLANNER_CACHE": "/scratch/traces"}) == Path("/scratch/traces/inductor")
    assert inductor_folder({"PLANNER_CACHE": NONE}) is None


DECODER = """
model: {decoder: {layers: 1, hidden: 32, heads: 2, kv_heads: 2, ffn: 64, vocab: 64}}
train: {micro_batch_size: 1, sequence_length: 16}
cluster: {gpu: H100-SXM-80GB}
"""
SHELL = {
    "CUBLAS_WORKSPACE_CONFIG": ":65536:8", "PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "TORCH_BLAS_PREFER_CUBLASLT": "1",
    "DISABLE_ADDMM_CUDA_LT": "1", "CUDA_VISIBLE_DEVICES": "3", "CUDA_LAUNCH_BLOCKING": "1", "NCCL_BUFFSIZE": "1",
    "NVIDIA_TF32_OVERRIDE": "0", "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "7", "RANK": "3", "LOCAL_RANK": "3",
    "WORLD_SIZE": "16", "USE_TORCH": "0", "ACCELERATE_MIXED_PRECISION": "fp16", "MODEL_WIDTH": "4096",
}  # fmt: skip
"""What a job's own shell may have set."""


def planned_in_shell(spec: str, shell: dict[str, str], cache: str = NONE) -> dict[str, object]:
    command = [sys.executable, "-m", "planner", "plan", "-", "--format", "json"]
    variables = {**{name: value for name, value in os.environ.items() if name not in SHELL}, **shell}
    done = subprocess.run(
        command, input=spec, env={**variables, "PLANNER_CACHE": cache}, capture_output=True, text=True, check=True
    )
    document: dict[str, object] = json.loads(done.stdout)
    del document["seconds"]
    return document


def test_the_plan_of_a_spec_is_the_same_in_every_shell(tmp_path: Path) -> None:
    anew = planned_in_shell(DECODER, SHELL, str(tmp_path))

    assert [path.suffix for path in tmp_path.iterdir()] == [".trace"]
    assert planned_in_shell(DECODER, {}, str(tmp_path)) == anew
    assert planned_in_shell(DECODER, {}) == anew


def test_a_factory_sees_of_the_shell_what_one_behind_walls_does(tmp_path: Path) -> None:
    (tmp_path / "sized_by_shell.py").write_text(
        "import os\nfrom torch import nn\ndef make():\n"
        "    return nn.Linear(8, int(os.environ.get('MODEL_WIDTH', 8)), bias=False)\n"
    )
    spec = (
        "model: {factory: 'sized_by_shell:make'}\n"
        "train: {micro_batch_size: 1, inputs: {x: {shape: [8]}}, loss: {name: sum}, optimizer: {name: SGD}}\n"
        "cluster: {gpu: H100-SXM-80GB}\n"
    )

    shells = {"PYTHONPATH": str(tmp_path)}, {"PYTHONPATH": str(tmp_path), **SHELL}

    assert planned_in_shell(spec, shells[0]) == planned_in_shell(spec, shells[1])


def test_a_process_that_traces_has_what_it_needs_of_the_shell_until_the_last_thread_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    needed = {
        "TORCH_HOME": "/models", "HF_HOME": "/hf", "HF_HUB_OFFLINE": "1", "https_proxy": "http://127.0.0.1:1",
        "LD_LIBRARY_PATH": "/lib", "TMPDIR": "/tmp", "XDG_CACHE_HOME": "/cache", "VIRTUAL_ENV": "/venv", "LC_ALL": "C",
        "PYTHONPATH": "/code", "PLANNER_CACHE": "none",
    }  # fmt: skip
    for name, value in {**SHELL, **needed}.items():
        monkeypatch.setenv(name, value)
    first, second = shell_put_aside(), shell_put_aside()
    seen = []
    for step in (first.__enter__, second.__enter__, lambda: first.__exit__(None, None, None)):
        step()
        seen.append({name: os.environ[name] for name in (*SHELL, *needed) if name in os.environ})
    second.__exit__(None, None, None)

    assert seen == [{**needed, "OMP_NUM_THREADS": "1"}] * 3
    assert {name: os.environ[name] for name in SHELL} == SHELL


def test_variables_of_a_gpu_on_paper_come_back_for_each_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """An MI300X's own hipBLAS workspace, by a process whose shell names another."""
    script = (
        "import ctypes, os\n"
        "from planner import cuda_on_paper\n"
        "from planner.tracing.isolated import shell_put_aside\n"
        "getenv = ctypes.CDLL(None).getenv\n"
        "getenv.restype = ctypes.c_char_p\n"
        "for _ in range(2):\n"
        "    with shell_put_aside():\n"
        "        cuda_on_paper.take_any_gpu('gfx942')\n"
        "        print(getenv(b'CUBLAS_WORKSPACE_CONFIG').decode())\n"
        "print(os.environ['CUBLAS_WORKSPACE_CONFIG'])\n"
    )
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout.split() == [":131072:1", ":131072:1", ":16:8"]
