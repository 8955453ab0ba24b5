"""`make answers`: what planner answers to examples, programs, faulty specs and HTTP requests, one file for each.

    python benchmarks/answers.py [--out FOLDER] [--against FOLDER] [--only examples|programs|specs|http ...] [--resume]

Written before and after a change that must change no behaviour, two folders are equal. `--against` compares with a
folder that was written earlier: exit code 1, and a short diff, where they differ. Nothing is answered from kept traces.
What varies by nature is masked by MASKS, each with its reason.
"""

from __future__ import annotations

import argparse
import difflib
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from tests.fakes.bad_jobs import read_bad_jobs  # noqa: E402

PARTS = ("http", "specs", "programs", "examples")
SECONDS = 1800
"""Longer than any command here takes."""
Answer = tuple[str, Callable[[], str]]
"""The name of a file, and what makes its text."""


MASKS = {
    # name: what is not compared, by what it is replaced, why it varies
    "root": (re.escape(str(ROOT)), "<ROOT>", "two checkouts lie in two folders"),
    "temporary": (r"/tmp/[\w./+-]*\w", "<TEMPORARY>", "folders made for one answer"),
    "python": (re.escape(sys.prefix), "<PYTHON>", "where this Python stands"),
    "progress": (r"(?m)^planner: .*\(\d+ s\)\n", "", "said only by what takes long"),
    "durations in text": (r"traced in .* s in all|planned in \d+ s", "<SECONDS>", "how long planning took"),
    "durations": (r'"seconds": \{[^}]*\}', '"seconds": <SECONDS>', "how long planning took"),
    "moments": (r"(?!2026-01-)\d{4}-\d\d-\d\dT[\d:.]{8,}(Z|\+00:00)?", "<MOMENT>", "of storing; those sent are past"),
    "plan ids": (r"\bpl-[a-z2-7]{26}\b", "<PLAN>", "hash over versions, the number of answers and the catalog"),
    "trace ids": (r"\b[0-9a-f]{64}\b", "<TRACE>", "as above"),
    "answers": (r'(allocator.rules"?[:=]? ?"?)\d+\b', r"\1<ANSWERS>", "raised with a change of answers"),
    "catalog": (r'(catalog"?[:=]? ?"?)[0-9a-f]{12}\b', r"\1<CATALOG>", "another digest with any GPU that is added"),
    "check ids": (r'("check_id": )"[^"]+"', r'\1"<CHECK>"', "drawn at random"),
}


def masked(text: str) -> str:
    """Without what varies by nature."""
    for pattern, instead, _ in MASKS.values():
        text = re.sub(pattern, instead, text)
    return text


def as_lines(text: str) -> str:
    """JSON a key a line, in its own order, so that a difference is a line."""
    try:
        return json.dumps(json.loads(text), indent=1, ensure_ascii=False)
    except ValueError:
        return text


def command(words: Sequence[str], folder: Path = ROOT, given: str = "") -> str:
    """What `planner` said and how it ended, in a process of its own."""
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "PLANNER_CACHE": "none", "PLANNER_PYTHON": "here",
        "OMP_NUM_THREADS": "1", "COLUMNS": "120", "PYTHONWARNINGS": "ignore", "HF_HUB_OFFLINE": "1",
        "PYTHONHASHSEED": "0",
    }  # fmt: skip
    ended = subprocess.run(
        [sys.executable, "-m", "planner", *words],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False,
        input=given,
    )  # fmt: skip
    said = as_lines(ended.stdout)
    return f"planner {' '.join(words)}\nexit code {ended.returncode}\n--- stdout\n{said}\n--- stderr\n{ended.stderr}"


TIGHT = """\
model: {decoder: {layers: 2, hidden: 256, heads: 4, kv_heads: 4, ffn: 1024, vocab: 8192}}
train: {micro_batch_size: 8, sequence_length: 512}
cluster: {nodes: 1, gpus_per_node: 1, gpu: {total_bytes: 1200MiB, arch: sm_90}}
"""
AS_TEXT = ("gpt2-xl", "llama-3-8b-pp4", "nemotron-4b-ddp", "own-model")


def examples() -> Iterator[Answer]:
    """The plan of every example, and the report of some. Advice has a deadline: of a small job only."""
    for path in sorted((ROOT / "examples").glob("*.yaml")):
        words = ["plan", "--no-advice", str(path.relative_to(ROOT))]
        yield f"{path.stem}.json", partial(command, [*words, "--format", "json"])
        if path.stem in AS_TEXT:
            yield f"{path.stem}.text", partial(command, words)
    for kind in ("text", "json"):
        yield f"advice.{kind}", partial(command, ["plan", "-", "--format", kind], given=TIGHT)


PROGRAMS = ROOT / "tests" / "data" / "answered_programs.yaml"


def programs() -> Iterator[Answer]:
    """Programs on paper, each in a folder of its own."""
    told = yaml.safe_load(PROGRAMS.read_text(encoding="utf-8"))
    for name, (line, *options) in told["commands"].items():
        yield f"{name}.json", partial(program, told["files"], line, options)


def program(files: Mapping[str, str], line: str, options: Sequence[str]) -> str:
    """What `planner run` says of one command line, beside the tests' programs and these files."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made, "programs")
        shutil.copytree(
            ROOT / "tests" / "tracing" / "running" / "programs", folder, ignore=shutil.ignore_patterns("__pycache__")
        )
        shutil.copy(ROOT / "examples" / "programs" / "fine_tune.py", folder / "example_fine_tune.py")
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
        return command(["run", "--format", "json", *options, "--", *line.split()], folder)


def specs() -> Iterator[Answer]:
    """Every faulty spec of the tests, also those whose fault is seen only when the model is built or traced."""
    folder = Path(tempfile.mkdtemp())
    for prefix, table in (("", "seen_while_loading.yaml"), ("after_loading-", "seen_after_loading.yaml")):
        for name, job in read_bad_jobs(table).items():
            yield f"{prefix}{name}.text", partial(command, ["plan", "--no-advice", job.write(folder).name], folder)


HEADERS = ("content-type", "location", "retry-after", "preference-applied", "www-authenticate", "cache-control")
TOKEN, TOKEN_SHA256 = "correct horse battery staple", "c4bbcb1fbec99d65bf59d85c8cb62ee2db963f0fe106f483d9afa73bd4e39a8a"
TOO_LARGE = {"decoder": {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocab": 128256}}
MEASURED = {"rank": 0, "host": "node-17", "allocated_bytes": 5, "reserved_bytes": 7}


def exchanges(job: dict[str, Any], in_yaml: str) -> Sequence[tuple[str, str, str, dict[str, Any]]]:
    """Name, method, path and what else is sent, in the order of time. PLAN is the id of the job's plan."""
    bind = {"plan_id": "PLAN", "team": "nlp", "hosts": ["node-17"], "started_at": "2026-01-02T03:04:05Z"}
    end = {"ended_at": "2026-01-02T04:04:05+00:00", "outcome": "finished", "measured": [MEASURED]}
    words = {"gpus": "4xH100", "fsdp": "rest", "seq": "4k", "batch": 2, "lora": "r=16"}
    as_yaml = {"content-type": "application/yaml"}
    return (
        ("plan", "POST", "/v1/plans", {"json": job}),
        ("plan-of-yaml", "POST", "/v1/plans", {"content": in_yaml, "headers": as_yaml}),
        ("plan-waited-for", "POST", "/v1/plans", {"json": job, "headers": {"Prefer": "wait=7"}}),
        ("plan-later", "POST", "/v1/plans", {"json": job, "headers": {"Prefer": "respond-async, wait=1"}}),
        ("plan-unknown-key", "POST", "/v1/plans", {"json": {**job, "modle": {}}}),
        ("plan-wrong-type", "POST", "/v1/plans", {"json": {**job, "train": {"micro_batch_size": "many"}}}),
        ("plan-not-json", "POST", "/v1/plans", {"content": b"{", "headers": {"content-type": "application/json"}}),
        ("plan-of-text", "POST", "/v1/plans", {"content": b"x", "headers": {"content-type": "text/html"}}),
        ("plan-of-a-path", "POST", "/v1/plans", {"json": {**job, "model": {"hf_config": "/etc/passwd"}}}),
        ("plan-busy", "POST", "/v1/plans", {"json": {**job, "metadata": {"name": "busy"}}}),
        ("plan-too-late", "POST", "/v1/plans", {"json": {**job, "metadata": {"name": "late"}}}),
        ("plan-own-fault", "POST", "/v1/plans", {"json": {**job, "metadata": {"name": "fault"}}}),
        ("one-plan", "GET", "/v1/plans/PLAN", {}),
        ("no-plan", "GET", "/v1/plans/pl-none", {}),
        ("plans", "GET", "/v1/plans?limit=2&team=nlp&verdict=fits", {}),
        ("plans-of-a-wrong-limit", "GET", "/v1/plans?limit=0", {}),
        ("timeline", "GET", "/v1/plans/PLAN/timeline", {}),
        ("timeline-of-no-rank", "GET", "/v1/plans/PLAN/timeline?rank=77", {}),
        ("check", "POST", "/v1/checks", {"json": job, "headers": {"X-Planner-System": "slurm"}}),
        ("check-too-large", "POST", "/v1/checks", {"json": {**job, "model": TOO_LARGE}}),
        ("check-without-a-model", "POST", "/v1/checks", {"json": {"cluster": job["cluster"]}}),
        ("bind", "PUT", "/v1/jobs/slurm/4711", {"json": bind}),
        ("bind-end", "PUT", "/v1/jobs/slurm/4711", {"json": end}),
        ("bind-nothing", "PUT", "/v1/jobs/slurm/4712", {"json": {}}),
        ("bind-other-system", "PUT", "/v1/jobs/cron/1", {"json": bind}),
        ("job", "GET", "/v1/jobs/slurm/4711", {}),
        ("no-job", "GET", "/v1/jobs/slurm/1", {}),
        ("jobs", "GET", "/v1/jobs", {}),
        ("capacity", "GET", "/v1/capacity", {}),
        ("capacity-on", "GET", "/v1/capacity?on=H100-SXM-80GB", {}),
        ("capacity-without-a-zone", "GET", "/v1/capacity?since=2026-01-31T12:00:00", {}),
        ("spec-of-words", "POST", "/v1/specs", {"json": {"model": "Qwen/Qwen3-8B", "words": words}}),
        ("spec-of-nothing", "POST", "/v1/specs", {"json": {}}),
        ("search", "POST", "/v1/searches", {"json": {"job": job}}),
        ("validation", "POST", "/v1/validations", {"json": {"job": job}}),
        ("validations", "GET", "/v1/validations", {}),
        ("calibration", "GET", "/v1/calibration", {}),
        ("replay-of-no-snapshot", "POST", "/v1/replays", {"content": b"no pickle"}),
        ("run-of-no-tarball", "POST", "/v1/plans", {"content": b"x", "headers": {"content-type": "application/gzip"}}),
        ("models", "GET", "/v1/models", {}),
        ("gpus", "GET", "/v1/gpus", {}),
        ("torches", "GET", "/v1/torches", {}),
        ("alive", "GET", "/livez", {}),
        ("ready", "GET", "/readyz", {}),
        ("metrics", "GET", "/metrics", {}),
        ("openapi", "GET", "/openapi.json", {}),
        ("page", "GET", "/", {}),
        ("nothing", "GET", "/v1/nothing", {}),
        ("wrong-method", "DELETE", "/v1/plans", {}),
    )


def http() -> Iterator[Answer]:
    """The application in this process, with a store of its own, planning in the process too."""
    from planner import paper  # noqa: F401  before anything imports torch

    logging.disable()  # one of the requests is for a fault
    with tempfile.TemporaryDirectory() as folder:
        yield from _exchanged(f"sqlite:///{folder}/history.sqlite")


def _exchanged(database: str) -> Iterator[Answer]:
    from starlette.testclient import TestClient

    from planner.job.bound.lower_bound import lower_bound
    from planner.job.loading import load_document
    from planner.planning.plan import plan_job
    from planner.report.statement import to_json
    from planner.service.errors import BusyError, DeadlineError
    from planner.service.history.store import History
    from planner.service.http.dependencies import Dependencies
    from planner.service.http.interface import interface
    from planner.service.http.openapi import EXAMPLE_JOB, EXAMPLE_YAML
    from planner.service.plan_provider import PlanAnswer
    from planner.settings import Settings
    from planner.tracing import rank_trace

    faults = {"busy": BusyError("many wait", retry_after_seconds=9), "late": DeadlineError("not ready"),
              "fault": RuntimeError("a secret")}  # fmt: skip

    class Local:
        """Plans at once, and stores what was planned."""

        async def plan(self, job: Any, *, seconds: float | None, keep: bool) -> Any:  # noqa: ARG002
            if job.metadata.name in faults:
                raise faults[job.metadata.name]
            planned = plan_job(job)
            history.plans.put(planned.plan)
            history.traces.put(planned.plan.trace_id, {0: rank_trace.dumps(planned.traces[0].trace)})
            text = json.dumps(to_json(planned.plan))
            return PlanAnswer(plan_id=planned.plan.plan_id, trace_id=planned.plan.trace_id, text=text)

        async def run(self, asked: Any, *, seconds: float | None, keep: bool) -> Any:
            raise NotImplementedError

        def bound(self, job: Any) -> Any:
            return lower_bound(job)

    with History.open(database) as history:
        settings = Settings(database=database, token_sha256=TOKEN_SHA256)
        application = interface(Dependencies(settings=settings, history=history, plan_provider=Local()))
        client = TestClient(application, raise_server_exceptions=False)
        plan_id = plan_job(load_document(EXAMPLE_JOB)).plan.plan_id

        def answer(method: str, path: str, sent: dict[str, Any], token: str = TOKEN) -> str:
            if sent.get("json", {}).get("plan_id") == "PLAN":
                sent = {**sent, "json": {**sent["json"], "plan_id": plan_id}}
            headers = {"authorization": f"Bearer {token}", **sent.get("headers", {})}
            got = client.request(method, path.replace("PLAN", plan_id), **{**sent, "headers": headers})
            names = sorted(name for name in got.headers if name in HEADERS or name.startswith("x-planner"))
            kept = "\n".join(f"{name}: {got.headers[name]}" for name in names)
            return f"{method} {path}\n{got.status_code}\n{kept}\n\n{body(path, got.text)}"

        for name, method, path, sent in exchanges(EXAMPLE_JOB, EXAMPLE_YAML):
            yield f"{name}.text", partial(answer, method, path, sent)
        yield "wrong-token.text", partial(answer, "POST", "/v1/plans", {"json": EXAMPLE_JOB}, "wrong")


def body(path: str, text: str) -> str:
    """Of the metrics their names, labels and kinds: values are of the moment."""
    if path == "/metrics":
        return "\n".join(line if line.startswith("#") else line.rpartition(" ")[0] for line in text.splitlines())
    return as_lines(text)


MAKERS = {"http": http, "specs": specs, "programs": programs, "examples": examples}


def write(part: str, folder: Path, jobs: int, *, resume: bool) -> None:
    """Every answer of a part; with `resume` only those that are not there."""
    started = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    if not resume:
        for old in folder.iterdir():
            old.unlink()

    def write_one(answer: Answer) -> None:
        path = folder / answer[0]
        if not path.exists():
            half = path.with_suffix(".half")
            half.write_text(masked(answer[1]()).rstrip() + "\n", encoding="utf-8")
            half.rename(path)

    # Requests build on what those before them stored.
    if part == "http":
        for answer in MAKERS[part]():
            write_one(answer)
    else:
        with ThreadPoolExecutor(min(jobs, 2)) as threads:
            list(threads.map(write_one, MAKERS[part]()))
    print(f"{part}: {len(list(folder.iterdir()))} answers in {time.monotonic() - started:.0f} s", flush=True)


def differences(now: Path, before: Path, parts: Sequence[str], most: int = 12) -> list[str]:
    """Of each file that differs the first lines of its diff."""
    told = []
    for part in parts:
        names = {path.name for folder in (now, before) for path in (folder / part).glob("*") if path.suffix != ".half"}
        for name in sorted(names):
            new, old = now / part / name, before / part / name
            if not new.exists() or not old.exists():
                told.append(f"{part}/{name}: only in {old.parent if old.exists() else new.parent}")
                continue
            # Masked once more: a mask may be newer than the answers.
            was, is_now = (masked(path.read_text(encoding="utf-8")).splitlines() for path in (old, new))
            diff = list(difflib.unified_diff(was, is_now, lineterm="", n=1))[2:] if was != is_now else []
            if diff:
                more = [f"  ... {len(diff) - most} more lines"] if len(diff) > most else []
                told.append("\n".join([f"{part}/{name}:", *(f"  {line[:200]}" for line in diff[:most]), *more]))
    return told


def main(words: list[str] | None = None) -> int:
    """0, or 1 where the answers differ from those of `--against`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / ".venv" / "answers", metavar="FOLDER")
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="compare with what was written there")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--jobs", type=int, default=1, help="processes at once, at most 2")
    parser.add_argument("--resume", action="store_true", help="keep answers that are there (http: all or none)")
    given = parser.parse_args(words)
    if given.against and not given.against.is_dir():
        parser.error(f"--against: there is no folder {given.against}")
    if given.against and given.against.resolve() == given.out.resolve():
        parser.error("--against: that is the folder that is written")
    os.environ["PLANNER_CACHE"] = "none"
    sys.path.insert(0, str(ROOT))
    for part in given.only:
        write(part, given.out / part, given.jobs, resume=given.resume and part != "http")
    if not given.against:
        return 0
    told = differences(given.out, given.against, given.only)
    print("\n".join(told) if told else f"all answers are those of {given.against}")
    if told:
        print("\nIf they are meant to differ: raise ANSWERS in planner/planning/identity.py, once for a change.")
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main())
