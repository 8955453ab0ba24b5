"""POST /v1/plans: programs as tarballs or in shared folders, behind walls, kept like plans."""

from __future__ import annotations

import asyncio
import dataclasses
import gzip
import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from hostile_tarballs import FOUND_BEFORE
from plan_makers import (
    JOB,
    MOST_SECONDS,
    CountedEvents,
    FakePool,
    FakeWorker,
    ServiceStack,
    StackRunner,
    never,
    on_stack,
    when,
)
from request_contexts import about_body
from starlette.testclient import TestClient

from planner.errors import PlannerError, ProgramError
from planner.report.statement import from_json
from planner.runtime.limits import Limit, LimitExceededError, Limits
from planner.runtime.walls import WallsError
from planner.service.errors import BusyError, ProgramCrashedError, RunEndedError, TraceLimitError
from planner.service.http.problems import RequestError
from planner.service.http.run_requests import read_job_or_program
from planner.service.orders import START_SECONDS, RunRequest, WorkerResult, build_run_order
from planner.service.scheduling import plan_tasks
from planner.service.scheduling.plan_scheduler import count_runners
from planner.service.scheduling.worker_pool import Workers
from planner.settings import Settings
from planner.truth.calibration.interval import Calibration
from planner.units import MIB

Asgi = Callable[..., TestClient]


def packed(**asked: Any) -> dict[str, str]:
    """The headers of a tarball."""
    return {"Content-Type": "application/gzip", "X-Planner-Run": json.dumps(asked)}


PROGRAM = b"""
import torch

model = torch.nn.Linear(256, 1024, device="cuda")
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(4):
    model(torch.ones(8, 256, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    open("kept.txt", "w").write("a checkpoint")
"""


def tarball(files: dict[str, bytes], *more: tarfile.TarInfo) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w:gz") as tar:
        for name, content in files.items():
            about = tarfile.TarInfo(name)
            about.size = len(content)
            tar.addfile(about, io.BytesIO(content))
        for each in more:
            tar.addfile(each)
    return written.getvalue()


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname = kind, target
    return found


def request(content: bytes, **asked: object) -> RunRequest:
    header = json.dumps({"command": "python t.py", **asked})
    return read_job_or_program(content, about_body("application/gzip", header))


@pytest.mark.skipif(os.geteuid() != 0, reason="walls are refused to root alone, unless that is meant")
def test_a_script_is_not_run_where_there_are_no_walls() -> None:
    context = json.loads(about_body("application/gzip", '{"command": "bash run.sh"}'))
    context["walls"]["as_root"] = False

    with pytest.raises(WallsError, match="code of users is not run here: the service runs as root"):
        read_job_or_program(tarball({"run.sh": b"python t.py"}), json.dumps(context))


def test_a_program_is_run_kept_and_bound_to_its_job(client: httpx.Client) -> None:
    sent = tarball({"./train.py": PROGRAM})
    asked = {"command": "python train.py", "team": "nlp", "name": "tiny"}

    answer = client.post("/v1/plans", content=sent, headers=packed(**asked))

    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert (found["schema"], found["verdict"], found["command"]) == ("planner.plan/2", "fits", ["python", "train.py"])
    # The parameters, their gradients and AdamW's two moments, 257 x 1,024 of float32 each.
    at_peak = found["rank_classes"][0]["at_peak"]
    assert (at_peak["parameter"], at_peak["optimizer_state"]) == (1_052_672, 2_105_344)
    assert client.get(answer.headers["Location"]).text == answer.text
    (listed,) = client.get("/v1/plans", params={"team": "nlp", "limit": 1}).json()["plans"]
    assert (listed["plan_id"], listed["name"], listed["ranks"]) == (found["plan_id"], "tiny", 1)
    measured = {"plan_id": found["plan_id"], "measured": [{"rank": 0, "device_bytes": 10**9}]}
    assert client.put("/v1/jobs/slurm/run-1", json=measured).json()["plan_id"] == found["plan_id"]
    refused = client.post("/v1/validations", json={"plan_id": found["plan_id"]})
    assert (refused.status_code, "is the run of a program" in refused.json()["problem"]) == (422, True)

    crashed = client.post("/v1/plans", content=tarball({"train.py": b"1 / 0"}), headers=packed(**asked))
    assert (crashed.status_code, crashed.headers["content-type"]) == (422, "application/problem+json")
    assert "ZeroDivisionError: division by zero" in crashed.json()["problem"]
    assert 'File "train.py", line 1' in crashed.json()["traceback"]


def test_programs_are_run_where_the_operator_says_so_and_for_whom(asgi: Asgi, plan_provider: Any) -> None:
    sent: dict[str, Any] = {"content": tarball({"t.py": b""}), "headers": packed(command="python t.py")}

    assert asgi().post("/v1/plans", **sent).status_code == 403
    assert asgi(programs=True, code_token_sha256="0" * 64).post("/v1/plans", **sent).status_code == 401
    assert asgi(programs=True).post("/v1/plans", **sent).status_code == 200
    ((asked, seconds),) = plan_provider.ran
    assert (asked.line.program, asked.gpu.name, asked.tarball, seconds) == (
        "t.py",
        "H100-SXM-80GB",
        sent["content"],
        None,
    )


def test_a_program_in_a_shared_folder_is_named_by_its_path(asgi: Asgi, plan_provider: Any, tmp_path: Path) -> None:
    (tmp_path / "shared" / "job").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "shared" / "way-out").symlink_to(tmp_path / "other")
    client = asgi(programs=True, program_folders=str(tmp_path / "shared"))

    def answers(path: str) -> int:
        return int(client.post("/v1/plans", json={"command": "python t.py", "path": path}).status_code)

    shared = tmp_path / "shared"
    assert answers(f"{shared}/job") == 200
    assert plan_provider.ran[0][0].folder == str(shared / "job")
    assert [answers(f"{shared}/{each}") for each in ("way-out", "../other", "../none")] == [403, 403, 403]
    assert [answers(each) for each in ("/", "job", f"{shared}/none", f"{shared}/\0", "")] == [403, 403, 422, 403, 422]


def test_a_file_that_the_command_names_is_read_from_the_programs_files_only(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "secret.yaml").write_text("num_processes: 2")
    (tmp_path / "job" / "link.yaml").symlink_to(tmp_path / "secret.yaml")
    (tmp_path / "job" / "own.yaml").write_text("num_processes: 4")

    def world(config: str) -> int:
        about = about_body("application/json", folders=[str(tmp_path)])
        command = ["accelerate", "launch", "--config_file", config, "t.py"]
        asked = read_job_or_program(json.dumps({"command": command, "path": str(tmp_path / "job")}).encode(), about)
        assert isinstance(asked, RunRequest)
        return asked.line.world_size

    assert world("own.yaml") == 4
    for config in ("link.yaml", "../secret.yaml", str(tmp_path / "secret.yaml"), "/proc/self/environ", "none.yaml"):
        with pytest.raises(PlannerError, match="is not in the folder of the program"):
            world(config)
    sent = tarball({"./own.yaml": b"num_processes: 8"})
    assert request(sent, command="accelerate launch --config_file own.yaml t.py").line.world_size == 8
    with pytest.raises(PlannerError, match="is not in the tarball"):
        request(sent, command="accelerate launch --config_file /etc/hostname t.py")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"no tarball at all", "the body cannot be read as a tarball"),
        (gzip.compress(b"neither"), "the body cannot be read as a tarball"),
        (tarball({"t.py": b"1"})[:40], "the body cannot be read as a tarball"),
        (tarball({}), "the tarball is empty"),
        (tarball({"/etc/passwd": b"x"}), "leaves the tarball"),
        (tarball({"a/../../b": b"x"}), "leaves the tarball"),
        (tarball({}, special("t", tarfile.SYMTYPE, "/etc/passwd")), "is a link, a device or a pipe"),
        (tarball({"a": b""}, special("t", tarfile.LNKTYPE, "a")), "is a link, a device or a pipe"),
        (tarball({}, special("t", tarfile.CHRTYPE)), "is a link, a device or a pipe"),
        (tarball({"big": bytes(129 << 20)}), "unpacks to too much"),
    ],
    ids=[
        "text",
        "packed text",
        "cut off",
        "empty",
        "absolute path",
        "path above it",
        "symbolic link",
        "link",
        "device",
        "too large",
    ],
)
def test_what_is_no_tarball_of_a_program_is_refused(content: bytes, said: str) -> None:
    with pytest.raises(PlannerError, match=said):
        request(content)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"command": "make train"}, "is not a known launcher"),
        ({"command": "python $X"}, r"\$X decides a part of the launch line"),
        ({"command": "python 't.py"}, "the line cannot be read: No closing quotation"),
        ({"command": "torchrun --nproc-per-node 64 t.py", "ranks": "all"}, "are too many to be run in one request"),
        ({"ranks": "9"}, "there is no rank 9"),
        ({"gpu": "H9000"}, "there is no GPU"),
        ({"steps": "-1"}, "steps is '-1'"),
        ({"torch": "newest"}, "torch is 'newest'"),
        ({"sequence": "1"}, "there is no key"),
        ({"path": "/tmp"}, "a tarball came with a path"),
    ],
)
def test_what_cannot_be_run_is_said(asked: dict[str, str], said: str) -> None:
    with pytest.raises(PlannerError, match=said):
        request(tarball({"t.py": b"1"}), **asked)


def test_a_program_may_name_the_torch_that_it_runs_with() -> None:
    assert request(tarball({"t.py": b"1"}), torch="2.8.1+cu128").torch == "2.8"


def test_a_command_in_the_address_is_refused_with_the_place_where_it_belongs(asgi: Asgi, plan_provider: Any) -> None:
    headers = {"Content-Type": "application/gzip"}
    asked = {"command": "env HF_TOKEN=canary python t.py"}

    answer = asgi(programs=True).post("/v1/plans", params=asked, content=tarball({"t.py": b""}), headers=headers)

    said = answer.json()
    assert (answer.status_code, said["place"], "X-Planner-Run" in said["allowed"]) == (422, "query", True)
    assert ("canary" in answer.text, plan_provider.ran) == (False, [])


def test_a_command_of_a_tarball_may_have_any_letters_and_lines() -> None:
    words = ["python", "t.py", "--note", "größer\nals eins"]
    assert request(tarball({"t.py": b"1"}), command=words).command == tuple(words)


def test_bodies_that_are_no_program_are_problems(asgi: Asgi, plan_provider: Any) -> None:
    client = asgi(programs=True, body_bytes=4096)

    def answers(**sent: Any) -> int:
        found = client.post("/v1/plans", **sent)
        assert found.headers["content-type"] == "application/problem+json"
        return int(found.status_code)

    assert answers(content=b"x" * 5000, headers=packed(command="python t.py")) == 413
    assert answers(content=b"", headers=packed(command="python t.py")) == 400
    assert answers(content=b"x", headers={"Content-Type": "text/plain"}) == 415
    assert answers(content=tarball({"t.py": b""}), headers={"Content-Type": "application/gzip"}) == 422
    for header in ("[]", "{", '"python t.py"', "[" * 10_000):
        headers = {"Content-Type": "application/gzip", "X-Planner-Run": header}
        assert answers(content=tarball({"t.py": b""}), headers=headers) == 422
    assert answers(json={"command": "python t.py", "path": "/"}, params={"gpu": "H100"}) == 422
    assert plan_provider.ran == []
    plan_provider.fault = ProgramCrashedError("it ended", "Traceback ...", place="t.py")
    crashed = client.post("/v1/plans", content=tarball({"t.py": b""}), headers=packed(command="python t.py"))
    assert (crashed.status_code, crashed.json()["traceback"]) == (422, "Traceback ...")


def test_a_run_that_is_not_waited_for_goes_on_and_equal_ones_are_one(run_stack: StackRunner) -> None:
    asked = request(tarball({"t.py": b"1"}))

    async def story(stack: ServiceStack) -> None:
        go = asyncio.Event()
        stack.pool.does = lambda _: when(go)
        first = await stack.plan_provider.plan(asked, seconds=0.01, keep=True)
        waiting = asyncio.create_task(stack.plan_provider.plan(asked, seconds=MOST_SECONDS, keep=False))
        await stack.waited_for_by(1)
        go.set()
        second = await waiting
        assert first.is_pending
        assert not second.is_pending
        assert (first.plan_id, stack.pool.asked) == (second.plan_id, ["run"])
        assert stack.history.plans.text(first.plan_id) == second.text
        assert (await stack.plan_provider.plan(asked, seconds=MOST_SECONDS, keep=False)).plan_id == first.plan_id
        assert stack.pool.asked == ["run", "run"]  # what a folder holds may have changed

    run_stack(story, programs=True)


@on_stack(programs=True, trace_queue=1)
async def test_programs_that_sleep_keep_no_spec_waiting(stack: ServiceStack) -> None:
    async def sleeps(method: str) -> None:
        await (never(method) if method == "run" else asyncio.sleep(0))

    stack.pool.does = sleeps
    for steps in ("1", "2"):  # one runs, the other fills the queue of runs
        asked = request(tarball({"t.py": b"1"}), steps=steps)
        assert (await stack.plan_provider.plan(asked, seconds=0.01, keep=True)).is_pending

    assert (await stack.plan_provider.plan(JOB)).stored
    assert (stack.tracers.unready(), stack.tracers.levels()["waiting"]) == (None, 1)
    await stack.tracers.finish(0)


TWO_TOKENS = f"{'a' * 64},{'b' * 64}"


def asked_by(tenant: str, steps: int) -> RunRequest:
    return dataclasses.replace(request(tarball({"t.py": b"1"}), steps=steps), tenant=tenant)


async def never_for(stack: ServiceStack, *requests: RunRequest) -> None:
    """These are asked for, and never done."""
    stack.pool.does = never
    for each in requests:
        assert (await stack.plan_provider.plan(each, seconds=0.01, keep=True)).is_pending
    stack.pool.does = None


@pytest.mark.parametrize(
    ("workers", "tokens", "runners"),
    [(1, "", (1, 1)), (8, "a" * 64, (4, 4)), (1, TWO_TOKENS, (2, 1)), (8, TWO_TOKENS, (4, 2)), (6, TWO_TOKENS, (3, 2))],
)
def test_of_several_tokens_each_has_at_most_half_of_the_workers_that_run_programs(
    workers: int, tokens: str, runners: tuple[int, int]
) -> None:
    assert count_runners(Settings(programs=True, token_sha256=tokens), workers) == runners
    assert count_runners(Settings(programs=True, token_sha256="c" * 64, code_token_sha256=tokens), workers) == runners
    assert count_runners(Settings(token_sha256=tokens), workers) == (0, 0)


@on_stack(programs=True, trace_workers=4, token_sha256=TWO_TOKENS)
async def test_programs_that_sleep_leave_workers_to_other_tokens(stack: ServiceStack) -> None:
    await never_for(stack, *(asked_by("one", steps) for steps in range(1, 6)))

    made = await stack.plan_provider.plan(asked_by("other", 1), seconds=60, keep=False)

    assert (made.stored, stack.tracers.levels()["busy"], stack.tracers.levels()["waiting"]) == (True, 1, 4)
    await stack.tracers.finish(0)


@on_stack(programs=True, trace_workers=1, trace_queue=4, token_sha256=TWO_TOKENS)
async def test_one_token_has_half_of_the_queue_of_runs(stack: ServiceStack) -> None:
    await never_for(stack, *(asked_by("one", steps) for steps in range(1, 4)))

    with pytest.raises(BusyError) as caught:
        await stack.plan_provider.plan(asked_by("one", 4), seconds=60, keep=False)

    assert caught.value.allowed == "2 at once and 4 that wait, of which one token may have 3"
    assert (await stack.plan_provider.plan(asked_by("other", 1), seconds=60, keep=False)).stored
    await stack.tracers.finish(0)


def test_the_tenant_with_the_least_work_under_way_comes_first() -> None:
    done: list[str] = []
    pool = FakePool()
    asked = {"first of one": "one", "second of one": "one", "third of one": "one", "first of another": "another"}
    gates = {name: asyncio.Event() for name in asked}

    async def work(name: str) -> WorkerResult:
        await gates[name].wait()
        done.append(name)
        return WorkerResult()

    async def story() -> None:
        pool.does = work
        counters: Any = CountedEvents()
        workers = Workers(lambda: FakeWorker(pool), 2, counters, most_wait_seconds=60.0)
        workers.start()
        while workers.alive < 2:
            await asyncio.sleep(0)
        calls = []
        for name, tenant in asked.items():
            calls.append(asyncio.create_task(workers.call(name, seconds=60.0, tenant=tenant)))
            await asyncio.sleep(0)
        for name in ("second of one", "first of another", "third of one", "first of one"):
            gates[name].set()
            while name not in done:
                await asyncio.sleep(0)
        await asyncio.gather(*calls)
        workers.close()

    asyncio.run(asyncio.wait_for(story(), 60))
    assert pool.asked == ["first of one", "second of one", "first of another", "third of one"]


@on_stack(programs=True)
async def test_a_run_is_ended_by_a_request_whether_it_runs_or_waits(stack: ServiceStack) -> None:
    stack.pool.does = never
    asked = [request(tarball({"t.py": b"1"}), steps=str(steps)) for steps in (1, 2)]
    pending = [await stack.plan_provider.plan(each, seconds=0.01, keep=True) for each in asked]
    waits = [asyncio.create_task(stack.plan_provider.plan(each, seconds=MOST_SECONDS, keep=False)) for each in asked]
    await stack.waited_for_by(2)

    assert [await stack.plan_provider.end_run(each.plan_id) for each in pending] == [True, True]
    for each in waits:
        with pytest.raises(RunEndedError, match="was ended by a request"):
            await each
    await stack.settled()
    assert (stack.pool.asked, stack.pool.stopped, stack.tracers.levels()["workers"]) == (["run"], 1, 2)
    assert not await stack.plan_provider.end_run(pending[0].plan_id)
    stack.pool.does = None
    assert (await stack.plan_provider.plan(asked[0], seconds=MOST_SECONDS, keep=False)).plan_id == pending[0].plan_id


@on_stack()
async def test_a_plan_is_not_ended_as_a_run(stack: ServiceStack) -> None:
    stack.pool.does = never
    pending = await stack.plan_provider.plan(JOB, seconds=0.01, keep=True)

    assert not await stack.plan_provider.end_run(pending.plan_id)
    await stack.tracers.finish(0)


@on_stack(programs=True, program_seconds=0.1)
async def test_all_ranks_of_a_run_have_one_limit_of_time(stack: ServiceStack) -> None:
    sixteen = request(tarball({"t.py": b"1"}), command="torchrun --nproc-per-node 16 t.py", ranks="all")
    order = build_run_order(sixteen, Calibration.none(), Settings(program_seconds=600.0), b"key")
    assert order.seconds(1.0) == 600.0 + START_SECONDS

    async def takes_too_long(_: str) -> WorkerResult:
        return WorkerResult(exceeded=LimitExceededError(Limit.SECONDS, Limits(), 630.0))

    stack.pool.does = takes_too_long
    with pytest.raises(TraceLimitError) as caught:
        await stack.plan_provider.plan(sixteen, seconds=MOST_SECONDS, keep=False)
    assert (caught.value.problem, caught.value.allowed) == (
        "the ranks of the program were not all run within 0.1 s",
        "at most 0.1 s for all ranks of a run together (PLANNER_PROGRAM_SECONDS)",
    )


def test_who_may_have_a_program_run_may_end_it(asgi: Asgi, plan_provider: Any) -> None:
    path = f"/v1/plans/pl-{'a' * 26}"
    assert asgi().delete(path).status_code == 403
    assert asgi(programs=True, code_token_sha256="0" * 64).delete(path).status_code == 401
    assert asgi(programs=True, token_sha256="0" * 64).delete(path).status_code == 401

    unknown = asgi(programs=True).delete(path)
    plan_provider.under_way.append(path.rpartition("/")[2])
    ended = asgi(programs=True).delete(path)

    assert (unknown.status_code, "is under way" in unknown.json()["problem"]) == (404, True)
    assert (ended.status_code, ended.json()) == (200, {"schema": "planner.run.ended/1", "plan_id": f"pl-{'a' * 26}"})


@on_stack(programs=True, trace_queue=1)
async def test_more_runs_than_may_wait_are_told_to_come_again(stack: ServiceStack) -> None:
    go = asyncio.Event()
    stack.pool.does = lambda _: when(go)
    runs = [request(tarball({"t.py": b"1"}), steps=str(steps)) for steps in range(1, 5)]
    for each in runs[:2]:
        assert (await stack.plan_provider.plan(each, seconds=0.01, keep=True)).is_pending
    with pytest.raises(BusyError):
        await stack.plan_provider.plan(runs[2], seconds=0.01, keep=True)
    go.set()


def test_what_not_everybody_may_read_is_not_read_for_a_caller(tmp_path: Path) -> None:
    """The service may be root; the program that it runs is nobody."""
    job = tmp_path / "job"
    for folder in (job / "closed", job / "sub"):
        folder.mkdir(parents=True)
    for path in ("run.sh", "closed/run.sh", "sub/run.sh", "env.yaml"):
        (job / path).write_text("export SECRET=canary\npython t.py")
    (job / "closed").chmod(0o700)

    def read(command: str, folder: Path = job) -> RunRequest:
        about = about_body("application/json", folders=[str(tmp_path)])
        return read_job_or_program(json.dumps({"command": command, "path": str(folder)}).encode(), about)

    assert read("bash sub/run.sh").line.environment == {"SECRET": "canary"}
    for path in ("run.sh", "env.yaml"):
        (job / path).chmod(0o640)
    asked = ("bash run.sh", "bash closed/run.sh", "ray job submit --runtime-env env.yaml -- python t.py")
    for command in asked:
        with pytest.raises(PlannerError, match="is a file that not everybody may read") as caught:
            read(command)
        assert "canary" not in str(caught.value)
    with pytest.raises(PlannerError, match="that everybody may read"):
        read("python t.py", job / "closed")
    (job / "env.yaml").chmod(0o644)
    with pytest.raises(PlannerError, match=r"env.yaml: must be a mapping, not a str"):
        read("ray job submit --runtime-env env.yaml -- python t.py")


@pytest.mark.parametrize("name", FOUND_BEFORE)
def test_a_tarball_whose_headers_say_what_no_file_has_is_refused(name: str) -> None:
    with pytest.raises(RequestError) as caught:
        request(FOUND_BEFORE[name])

    assert caught.value.status == 422


@on_stack(programs=True)
async def test_a_run_of_which_too_much_is_to_be_said_is_not_kept(stack: ServiceStack) -> None:
    answer = await stack.plan_provider.plan(request(tarball({"t.py": b"1"})), seconds=MOST_SECONDS, keep=False)
    assert not answer.is_pending
    found = from_json(json.loads(answer.text))
    plan_tasks.refuse_large(found)

    with pytest.raises(ProgramError, match=r"takes 2\.\d\d MiB, which is more than is kept"):
        plan_tasks.refuse_large(dataclasses.replace(found, ending="x" * (2 * MIB)))
