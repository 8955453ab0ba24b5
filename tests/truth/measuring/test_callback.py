"""Training code says in three lines what memory it takes, and nothing of that can disturb the training."""

from __future__ import annotations

import copy
import json
import logging
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from planner_serve import until
from quiet_server import QuietServer

from planner.truth.measuring import job_reports
from planner.truth.measuring.job_reports import job_of, plan_of
from planner.truth.measuring.memory_report import (
    MemoryReport,
    lightning_callback,
    report_memory,
    trainer_callback,
)

REPOSITORY = Path(__file__).parents[3]
FIGURES = ("requested", "allocated", "active", "reserved")
RAY_ENTRYPOINT = {
    "RAY_JOB_CONFIG_JSON_ENV_VAR": '{"metadata": {"job_submission_id": "raysubmit_y", "planner.plan_id": "pl-x"}}'
}
SETTINGS = ("FILE", "SERVER", "TOKEN", "PLAN_ID", "TEAM", "QUEUE", "JOB_ID", "JOB_SYSTEM", "REPORT_FILE")


class Gpu:
    """An allocator that counts: all four figures alike."""

    def __init__(self) -> None:
        self.current = self.peak = 0

    def take(self, count: int) -> None:
        self.current += count
        self.peak = max(self.peak, self.current)

    def use(self, count: int) -> None:
        """Taken and given back."""
        self.take(count)
        self.current -= count

    def read(self) -> Mapping[str, int]:
        ends = {f"{name}_bytes.all.current": self.current for name in FIGURES}
        return {**ends, **{f"{name}_bytes.all.peak": self.peak for name in FIGURES}, "num_alloc_retries": 2}


class Service:
    """A real server on this machine that keeps what it is told, and answers with the codes it was given."""

    def __init__(self) -> None:
        self.codes: list[int] = []
        self.got: list[tuple[str, str | None, dict[str, Any]]] = []
        self.silent = threading.Event()
        self.silent.set()
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                service.got.append((self.path, self.headers["Authorization"], body))
                service.silent.wait()
                self.send_response(service.codes.pop(0) if service.codes else 204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Not on the screen."""

        self.server = QuietServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()


@pytest.fixture
def service() -> Iterator[Service]:
    running = Service()
    yield running
    running.silent.set()
    running.server.shutdown()
    running.server.server_close()


@pytest.fixture(autouse=True)
def _no_job_around(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*(f"PLANNER_{each}" for each in SETTINGS), "SLURM_JOB_ID", "SLURM_JOB_ACCOUNT", "SLURM_JOB_PARTITION"):
        monkeypatch.delenv(name, raising=False)
    for name in ("RAY_SUBMISSION_ID", "RAY_JOB_ID", "JOB_NAME", "TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def _a_service_on_a_busy_machine_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(job_reports.to_service.__kwdefaults__, "seconds", 600.0)


@pytest.fixture(autouse=True)
def _no_cuda_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has no GPU on paper."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)


@pytest.fixture
def gpu() -> Gpu:
    return Gpu()


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# A plain loop


def train(memory: MemoryReport, gpu: Gpu, iterations: int = 4) -> None:
    """Optimizer state of 50 is born in the first iteration, activations of 200 in each."""
    for iteration in range(iterations):
        gpu.use(200)
        gpu.take(50 if iteration == 0 else 0)
        memory.step()
    gpu.use(400)


def test_a_plain_loop_reports_its_peak_to_a_file(gpu: Gpu, tmp_path: Path) -> None:
    gpu.take(100)

    with report_memory(file=tmp_path / "rank{rank}.jsonl", read=gpu.read, id="7") as memory:
        train(memory, gpu)

    last = lines(tmp_path / "rank0.jsonl")[-1]
    rank = last["ranks"][0]
    assert rank["peak"] == {f"{name}_bytes": 550 for name in FIGURES}
    assert (rank["rank"], rank["world_size"], rank["steps"], rank["cache_releases"]) == (0, 1, 4, 2)
    assert last["started_at"] <= last["ended_at"]


def test_a_reset_by_the_training_code_is_seen_and_loses_no_peak(gpu: Gpu, tmp_path: Path) -> None:
    with report_memory(file=tmp_path / "memory.jsonl", read=gpu.read) as memory:
        gpu.use(500)
        memory.step()
        gpu.peak = gpu.current
        gpu.use(400)
        memory.step()

    (rank,) = lines(tmp_path / "memory.jsonl")[-1]["ranks"]
    assert (rank["peak"]["allocated_bytes"], rank["resets_seen"]) == (500, 1)


def test_the_first_iterations_and_every_nth_are_reported_before_the_end(gpu: Gpu, tmp_path: Path) -> None:
    file = tmp_path / "memory.jsonl"

    with report_memory(file=file, read=gpu.read, id="7", every=4) as memory:
        for reports in (1, 2, 2, 3, 3, 3, 3, 4, 4):
            gpu.use(1)
            memory.step()
            until(lambda n=reports: file.exists() and file.read_text().count("\n") == n, "no report is written")

    found = [(line["ranks"][0]["steps"], line["ended_at"] is not None) for line in lines(file)]
    assert found == [(1, False), (2, False), (4, False), (8, False), (9, True)]


ASYNC = "Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated : 1.00 GiB"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (torch.OutOfMemoryError(ASYNC), ASYNC),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors"), "CUDA error: out of memory"),
        (RuntimeError("NCCL error\nLast error:\nCuda failure 'out of memory'"), "Cuda failure 'out of memory'"),
        (MemoryError("no room"), "MemoryError: no room"),
        (RuntimeError("shapes differ"), ""),
    ],
)
def test_whatever_says_that_memory_ran_out_is_reported(error: Exception, said: str, gpu: Gpu, tmp_path: Path) -> None:
    gpu.take(1)
    with pytest.raises(type(error)), report_memory(file=tmp_path / "memory.jsonl", read=gpu.read, id="7"):
        raise error

    assert lines(tmp_path / "memory.jsonl")[-1]["ranks"][0]["out_of_memory"] == said


def test_the_rank_of_a_world_is_known_before_it_has_met(
    gpu: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    gpu.take(1)

    with report_memory(file=tmp_path / "{rank}.jsonl", read=gpu.read):
        pass

    rank = lines(tmp_path / "3.jsonl")[-1]["ranks"][0]
    assert (rank["rank"], rank["world_size"]) == (3, 8)


def test_the_gpu_is_named_as_its_driver_does_and_its_bytes_are_told(
    gpu: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch.cuda as on a GPU of 1000 bytes, of which 300 are free, where the driver tells nothing of processes."""
    properties = SimpleNamespace(
        name="NVIDIA H100 80GB HBM3", uuid="6b2e0a5c-1f", total_memory=1000, major=9, minor=0, multi_processor_count=132
    )
    answers = {
        "is_initialized": lambda: True,
        "current_device": lambda: 0,
        "get_device_properties": lambda _: properties,
        "mem_get_info": lambda _: (300, 1000),
        "memory_stats": gpu.read,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    monkeypatch.setattr("planner.truth.measuring.nvml.process_bytes", lambda _: 0)
    gpu.take(1)

    with report_memory(file=tmp_path / "memory.jsonl") as memory:
        memory.step()

    last = lines(tmp_path / "memory.jsonl")[-1]
    assert last["gpu_uuids"] == ["GPU-6b2e0a5c-1f"]
    rank = last["ranks"][0]
    assert rank["gpu"] == {"name": "NVIDIA H100 80GB HBM3", "uuid": "GPU-6b2e0a5c-1f", "total_bytes": 1000}
    assert (rank["device_bytes"], rank["device_bytes_by"]) == (700, "device")


def test_nothing_is_reset_and_no_context_is_made(gpu: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    for name in ("reset_peak_memory_stats", "reset_accumulated_memory_stats", "synchronize", "init", "_lazy_init"):
        monkeypatch.setattr(torch.cuda, name, lambda *_, name=name: called.append(name))

    for read in (gpu.read, None):
        with report_memory(file=tmp_path / "memory.jsonl", read=read) as memory:
            train(memory, gpu)

    assert called == []


# The service


def test_the_service_gets_the_job_with_its_plan(
    gpu: Gpu, service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    given = {"SERVER": f"{service.address}/", "TOKEN": "s3cret", "PLAN_ID": "pl-abc", "TEAM": "nlp"}
    for name, value in given.items():
        monkeypatch.setenv(f"PLANNER_{name}", value)
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setenv("SLURM_JOB_PARTITION", "h100")
    gpu.take(100)

    with report_memory(read=gpu.read) as memory:
        train(memory, gpu)

    path, token, body = service.got[-1]
    assert (path, token) == ("/v1/jobs/slurm/4711", "Bearer s3cret")
    assert {key: body[key] for key in ("schema", "system", "id", "plan_id", "team", "queue", "gpu_uuids")} == {
        "schema": "planner.job/1",
        "system": "slurm",
        "id": "4711",
        "plan_id": "pl-abc",
        "team": "nlp",
        "queue": "h100",
        "gpu_uuids": [],
    }
    assert body["hosts"] == [body["ranks"][0]["host"]]
    assert body["ranks"][0]["peak"]["reserved_bytes"] == 550
    assert "s3cret" not in caplog.text + json.dumps(body)


def test_an_id_with_odd_characters_stays_one_part_of_the_path(gpu: Gpu, service: Service) -> None:
    gpu.take(1)

    with report_memory(server=service.address, system="ray", id="a/b c?d", read=gpu.read):
        pass

    assert [path for path, _, _ in service.got] == ["/v1/jobs/ray/a%2Fb%20c%3Fd"]


@pytest.mark.parametrize(("code", "times"), [(503, 2), (429, 2), (401, 1), (422, 1)])
def test_a_busy_service_is_asked_once_more_and_one_that_refuses_is_not(
    gpu: Gpu, service: Service, code: int, times: int
) -> None:
    service.codes = [code, 204]
    gpu.take(1)

    with report_memory(server=service.address, id="7", read=gpu.read):
        pass

    assert len(service.got) == times


def test_a_service_that_refuses_is_complained_of_once(
    gpu: Gpu, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    service.codes = [401] * 20

    with report_memory(server=service.address, id="7", read=gpu.read, every=1) as memory:
        gpu.use(1)
        for reports in range(1, 7):
            memory.step()
            until(lambda n=reports: len(service.got) == n, "no report arrives")

    assert len(service.got) == 7
    assert caplog.messages == [
        "planner: a memory report was not delivered, training goes on: HTTP Error 401: Unauthorized"
    ]


def test_a_service_that_hangs_does_not_slow_the_training(
    gpu: Gpu, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is answered until the training is over: no step waits for it, and the end no longer than its time."""
    service.silent.clear()
    memory = report_memory(server=service.address, id="7", read=gpu.read, every=1, wait_seconds=0.2)
    gpu.take(1)

    memory.begin()
    for _ in range(100):
        memory.step()
    memory.end()
    unanswered = len(service.got)
    service.silent.set()
    for thread in threading.enumerate():
        if thread.name == "planner-report":
            thread.join()

    assert unanswered <= 1
    assert caplog.messages == ["planner: the last report was not delivered within 0.2 s"]


def test_a_service_that_is_not_there_leaves_the_file(
    gpu: Gpu, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gpu.take(1)

    with report_memory(server="http://127.0.0.1:9", file=tmp_path / "memory.jsonl", id="7", read=gpu.read):
        pass

    assert len(lines(tmp_path / "memory.jsonl")) == 1
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_without_a_job_the_service_is_not_told_and_that_is_said(
    gpu: Gpu, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    gpu.take(1)

    with report_memory(server=service.address, read=gpu.read):
        pass

    assert service.got == []
    assert "set PLANNER_JOB_ID" in caplog.text


@pytest.mark.parametrize(
    ("environment", "job"),
    [
        ({}, None),
        ({"SLURM_JOB_ID": "12"}, ("slurm", "12")),
        ({"SLURM_JOB_ID": "12", "RAY_JOB_ID": "01000000"}, ("ray", "01000000")),
        ({"RAY_JOB_ID": "01000000", "RAY_SUBMISSION_ID": "raysubmit_x"}, ("ray", "raysubmit_x")),
        ({"RAY_JOB_ID": "01000000", **RAY_ENTRYPOINT}, ("ray", "raysubmit_y")),
        ({"RAY_JOB_ID": "01000000", "RAY_JOB_CONFIG_JSON_ENV_VAR": "[{"}, ("ray", "01000000")),
        ({"RAY_JOB_ID": "01000000", "RAY_JOB_CONFIG_JSON_ENV_VAR": '{"metadata": 1}'}, ("ray", "01000000")),
        ({"JOB_NAME": "sft", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}, ("kubernetes", "sft")),
        ({"JOB_NAME": "a build of Jenkins"}, None),
        ({"TORCHELASTIC_RUN_ID": "none"}, None),
        ({"TORCHELASTIC_RUN_ID": "run7"}, ("torchelastic", "run7")),
        ({"TORCHELASTIC_RUN_ID": "run7", "SLURM_JOB_ID": "12"}, ("slurm", "12")),
        ({"PLANNER_JOB_ID": "9", "SLURM_JOB_ID": "12"}, ("other", "9")),
        ({"PLANNER_JOB_ID": "9", "PLANNER_JOB_SYSTEM": "volcano"}, ("volcano", "9")),
    ],
)
def test_the_job_is_found_in_the_environment(environment: dict[str, str], job: tuple[str, str] | None) -> None:
    assert job_of(environment) == job


def test_the_plan_is_what_the_hook_left_unless_somebody_says_another() -> None:
    assert plan_of({}) == ""
    assert plan_of(RAY_ENTRYPOINT) == "pl-x"
    assert plan_of({**RAY_ENTRYPOINT, "PLANNER_PLAN_ID": "pl-z"}) == "pl-z"


# Nothing reaches the training


def test_without_cuda_nothing_is_reported_and_that_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with report_memory(file=tmp_path / "memory.jsonl") as memory:
        for _ in range(5):
            memory.step()

    assert caplog.messages == ["planner: this process uses no CUDA memory: nothing is reported"]
    assert list(tmp_path.iterdir()) == []


def test_what_fails_inside_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    def broken() -> Mapping[str, int]:
        raise RuntimeError("the driver is gone")

    with report_memory(file=tmp_path / "memory.jsonl", read=broken) as memory:
        for _ in range(5):
            memory.step()

    assert caplog.messages == ["planner: memory is not reported, training goes on: RuntimeError: the driver is gone"]


def test_a_device_that_dies_on_the_way_leaves_what_was_known(gpu: Gpu, tmp_path: Path) -> None:
    def read() -> Mapping[str, int]:
        if gpu.current > 500:
            raise RuntimeError("an illegal memory access")
        return gpu.read()

    with report_memory(file=tmp_path / "memory.jsonl", read=read) as memory:
        gpu.use(300)
        memory.step()
        gpu.take(600)

    last = lines(tmp_path / "memory.jsonl")[-1]
    assert last["ended_at"] is not None
    assert last["ranks"][0]["peak"]["allocated_bytes"] == 300


@pytest.mark.parametrize("server", ["file:///etc/passwd", "planner:8000"])
def test_an_address_that_is_none_does_not_stop_the_training(
    gpu: Gpu, server: str, caplog: pytest.LogCaptureFixture
) -> None:
    with report_memory(server=server, id="7", read=gpu.read) as memory:
        memory.step()

    assert [message for message in caplog.messages if "http://" in message]


def test_a_misspelled_setting_is_told_before_the_training() -> None:
    with pytest.raises(TypeError, match="sever"):
        report_memory(sever="http://planner")


def test_a_bare_training_image_can_import_it(tmp_path: Path) -> None:
    """Torch is there, and nothing else that planner may need elsewhere."""
    code = """
import sys
for name in ("yaml", "transformers", "lightning", "pytorch_lightning", "ray", "pydantic", "sqlalchemy"):
    sys.modules[name] = None
from planner.truth.measuring.memory_report import lightning_callback, report_memory, trainer_callback
hooks = trainer_callback(file="memory.jsonl"), lightning_callback(file="memory.jsonl")
print([type(each).__mro__[1].__name__ for each in hooks])
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env={"PYTHONPATH": str(REPOSITORY)}
    )

    assert (ended.stdout, ended.stderr) == ("['_TrainerHooks', '_LightningHooks']\n", "")


def test_a_process_that_dies_of_memory_without_a_word_still_reports(tmp_path: Path) -> None:
    code = """
import torch
from planner.truth.measuring.memory_report import report_memory
kinds = ("requested", "allocated", "active", "reserved")
stats = {f"{name}_bytes.all.{which}": 5 for name in kinds for which in ("peak", "current")}
memory = report_memory(file="memory.jsonl", read=lambda: stats)
memory.begin()
memory.step()
raise torch.OutOfMemoryError("CUDA out of memory")
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env={"PYTHONPATH": str(REPOSITORY)}
    )

    assert ended.returncode == 1
    last = lines(tmp_path / "memory.jsonl")[-1]
    assert (last["ranks"][0]["out_of_memory"], last["ended_at"] is None) == ("CUDA out of memory", False)


# The frameworks


def test_the_trainer_calls_it_by_its_own_handler(gpu: Gpu, tmp_path: Path) -> None:
    """transformers' CallbackHandler, driven in the Trainer's order: two micro-batches an iteration."""
    transformers = pytest.importorskip("transformers.trainer_callback")
    callback = trainer_callback(file=tmp_path / "memory.jsonl", read=gpu.read)
    handler = transformers.CallbackHandler([transformers.DefaultFlowCallback(), callback], None, None, None, None)
    state, control = transformers.TrainerState(max_steps=3), transformers.TrainerControl()
    never = {"logging_strategy": "no", "eval_strategy": "no", "save_strategy": "no"}
    told = SimpleNamespace(**never, logging_first_step=False, eval_delay=0)
    gpu.take(100)

    handler.on_train_begin(told, state, control)
    for iteration in (1, 2, 3):
        handler.on_step_begin(told, state, control)
        gpu.use(200)
        handler.on_substep_end(told, state, control)
        gpu.use(200)
        handler.on_pre_optimizer_step(told, state, control)
        gpu.take(50 if iteration == 1 else 0)
        handler.on_optimizer_step(told, state, control)
        state.global_step = iteration
        handler.on_step_end(told, state, control)
        if iteration == 2:
            gpu.use(400)
            handler.on_prediction_step(told, state, control)
            handler.on_evaluate(told, state, control, {"eval_loss": 1.0})
    handler.on_train_end(told, state, control)

    assert isinstance(callback, transformers.TrainerCallback)
    last = lines(tmp_path / "memory.jsonl")[-1]
    assert (last["ranks"][0]["peak"]["allocated_bytes"], last["ranks"][0]["steps"]) == (550, 3)


def test_lightning_calls_it_in_its_documented_order(gpu: Gpu, tmp_path: Path) -> None:
    """A sanity check first, then two batches an iteration (accumulated gradients), then a validation."""
    callback = lightning_callback(file=tmp_path / "memory.jsonl", read=gpu.read)
    trainer, module = SimpleNamespace(global_step=1000), object()
    gpu.take(100)

    callback.on_fit_start(trainer, module)
    for batch in range(6):
        callback.on_train_batch_start(trainer, module, None, batch)
        gpu.use(150)
        gpu.use(200)
        if batch % 2:
            gpu.take(50 if batch == 1 else 0)
            trainer.global_step += 1
        callback.on_train_batch_end(trainer, module, None, None, batch)
    gpu.use(400)
    callback.on_fit_end(trainer, module)

    last = lines(tmp_path / "memory.jsonl")[-1]
    assert (last["ranks"][0]["peak"]["allocated_bytes"], last["ranks"][0]["steps"]) == (550, 3)


def test_an_exception_in_lightning_is_reported(gpu: Gpu, tmp_path: Path) -> None:
    callback = lightning_callback(file=tmp_path / "memory.jsonl", read=gpu.read)
    gpu.take(1)

    callback.on_fit_start(None, None)
    callback.on_exception(None, None, torch.OutOfMemoryError("CUDA out of memory"))

    assert lines(tmp_path / "memory.jsonl")[-1]["ranks"][0]["out_of_memory"] == "CUDA out of memory"


@pytest.mark.parametrize("make", [trainer_callback, lightning_callback])
def test_a_callback_survives_copies_and_pickles(make: Any, tmp_path: Path) -> None:
    callback = make(file=tmp_path / "memory.jsonl", id="7")

    sent = pickle.loads(pickle.dumps(callback))

    assert (type(sent), type(copy.deepcopy(callback))) == (type(callback), type(callback))
    assert sent.memory.document() == {}
