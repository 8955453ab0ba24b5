"""sbatch and srun through both Lua scripts, on a real slurmctld and slurmd that the test starts."""

from __future__ import annotations

import contextlib
import getpass
import itertools
import os
import re
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from planner.admission import slurm
from planner.admission.client import Client, PlanFound
from planner.admission.policy import Policy
from planner.admission.specs import bundle_of_file
from planner.service.local_ray import free_ports, instance_folder

DEPLOY = Path(__file__).parents[2] / "deploy" / "slurm"
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "sinfo", "squeue", "scancel")
_SECONDS = itertools.count(1, 2)
JobFile = Callable[..., Path]
Run = Callable[..., subprocess.CompletedProcess[str]]

SLURM_CONF = """\
ClusterName=planner
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
JobSubmitPlugins=lua
CliFilterPlugins=lua
GresTypes=gpu
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
NodeName=n1 NodeHostname=localhost NodeAddr=127.0.0.1 Sockets=1 CoresPerSocket=2 ThreadsPerCore=1 \
RealMemory=4000 Gres=gpu:h100:8
PartitionName=main Nodes=n1 Default=YES MaxTime=INFINITE State=UP
"""


def _shipped_command() -> str:
    """How cli_filter.lua starts planner before a site edits it."""
    found = re.search(r'^local PLANNER = "([^"]*)"', (DEPLOY / "cli_filter.lua").read_text(), re.M)
    assert found is not None
    return found[1]


@dataclass(frozen=True)
class Slurm:
    """A cluster of one node with eight files for GPUs."""

    folder: Path

    @property
    def verdicts(self) -> Path:
        return self.folder / "verdicts"

    def set_up(self, policy: Mapping[str, str], **controller: str) -> None:
        """The scripts as a site would edit them. Slurm reads both anew for each submission."""
        lines = [f"{name} = {value}" for name, value in policy.items()]
        (self.folder / "admission.ini").write_text(
            "\n".join(["[admission]", *lines, "[slurm]", f"verdicts = {self.verdicts}", ""])
        )
        self._install(
            "cli_filter.lua",
            PLANNER=_shipped_command().replace("/usr/bin/python3", sys.executable),
            POLICY=str(self.folder / "admission.ini"),
        )
        self._install("job_submit.lua", VERDICTS=str(self.verdicts), **controller)

    def _install(self, script: str, **settings: str) -> None:
        text = (DEPLOY / script).read_text()
        for name, value in settings.items():
            text, found = re.subn(rf'^local {name} = "[^"]*"', f'local {name} = "{value}"', text, flags=re.M)
            assert found == 1, name
        new = self.folder / f"{script}.new"
        new.write_text(text)
        # slurmctld looks at whole seconds to see whether a script is newer than what it has.
        later = time.time() + next(_SECONDS)
        os.utime(new, (later, later))
        new.replace(self.folder / script)

    def run(self, *command: str, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "PLANNER_"))}
        return subprocess.run(
            list(command), capture_output=True, text=True, timeout=300, cwd=cwd,
            env={**environment, "SLURM_CONF": str(self.folder / "slurm.conf"), **more},
        )  # fmt: skip

    def job(self, job_id: str) -> dict[str, str]:
        said = self.run("scontrol", "show", "job", job_id, cwd=self.folder).stdout
        return dict(line.strip().split("=", 1) for line in said.splitlines() if "=" in line)


@pytest.fixture(scope="module")
def cluster(program: Callable[[str], str]) -> Iterator[Slurm]:
    found = {name: program(name) for name in PROGRAMS}
    with instance_folder() as folder, contextlib.ExitStack() as stack:
        controller, node = free_ports(2)
        (folder / "munge.key").write_bytes(os.urandom(128))
        (folder / "munge.key").chmod(0o600)
        for name in ("state", "spool", "dev"):
            (folder / name).mkdir()
        for index in range(8):
            (folder / "dev" / f"gpu{index}").touch()
        settings = SLURM_CONF.format(folder=folder, controller=controller, node=node, user=getpass.getuser())
        (folder / "slurm.conf").write_text(settings)
        (folder / "gres.conf").write_text(f"NodeName=n1 Name=gpu Type=h100 File={folder}/dev/gpu[0-7]\n")
        slurm_cluster = Slurm(folder)
        slurm_cluster.set_up({})
        munge = [
            f"--{name}={folder}/munge.{end}"
            for name, end in {"key-file": "key", "socket": "socket", "pid-file": "pid", "seed-file": "seed",
                              "log-file": "log"}.items()
        ]  # fmt: skip
        _start(stack, folder, [found["munged"], "--foreground", "--force", *munge])
        _until("munged listens", (folder / "munge.socket").exists, folder)
        _start(stack, folder, [found["slurmctld"], "-D", "-f", str(folder / "slurm.conf")])
        _start(stack, folder, [found["slurmd"], "-D", "-f", str(folder / "slurm.conf"), "-N", "n1"])
        idle = lambda: "idle" in slurm_cluster.run("sinfo", "-h", "-o", "%T", cwd=folder).stdout  # noqa: E731
        _until("the node is idle", idle, folder)
        yield slurm_cluster


def _start(stack: contextlib.ExitStack, folder: Path, command: list[str]) -> None:
    log = stack.enter_context((folder / f"{Path(command[0]).name}.out").open("wb"))
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)

    def end() -> None:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    stack.callback(end)


def _until(what: str, holds: Callable[[], bool], folder: Path, seconds: float = 300) -> None:
    until = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until:
            logs = "\n".join(path.read_text(errors="replace")[-1500:] for path in folder.glob("*.log"))
            pytest.fail(f"{what}: not after {seconds:g} s\n{logs}")
        time.sleep(0.1)


@pytest.fixture
def site(cluster: Slurm, service: Any) -> Callable[..., None]:
    """Sets the cluster up for a test: a service that answers, a policy that refuses, unless the test says otherwise."""

    def set_up(controller: Mapping[str, str] | None = None, **policy: str) -> None:
        usual = {"server": service.url, "token": service.token, "refuse_uncalibrated": "yes", "wait_seconds": "20"}
        cluster.set_up({**usual, **policy}, **(controller or {}))

    set_up()
    return set_up


@pytest.fixture
def keep_verdicts(cluster: Slurm) -> Iterator[Callable[[], None]]:
    """Starts the process that keeps the controller's folder, as its unit does; once the policy is set."""
    with contextlib.ExitStack() as stack:

        def start() -> None:
            for old in cluster.verdicts.glob("pl-*"):
                old.unlink()  # of another test's policy
            command = [
                sys.executable, "-m", "planner.admission.slurm", "--policy", str(cluster.folder / "admission.ini"),
                "verdicts", str(cluster.verdicts), "--every", "0.2",
            ]  # fmt: skip
            _start(stack, cluster.folder, command)
            _until("the folder is kept", cluster.verdicts.is_dir, cluster.folder)

        yield start


@pytest.fixture
def sbatch(cluster: Slurm, tmp_path: Path) -> Run:
    def run(*more: str, comment: str = "", script: str = "true", **variables: str) -> subprocess.CompletedProcess[str]:
        asked = f"#SBATCH --comment='{comment}'\n" if comment else ""
        (tmp_path / "job.sh").write_text(f"#!/bin/sh\n{asked}{script}\n")
        return cluster.run("sbatch", "--output=/dev/null", "--gpus=1", *more, "job.sh", cwd=tmp_path, **variables)

    return run


@pytest.fixture
def srun(cluster: Slurm, tmp_path: Path) -> Run:
    def run(comment: str) -> subprocess.CompletedProcess[str]:
        return cluster.run("srun", "--gpus=1", f"--comment={comment}", "echo", "hello", cwd=tmp_path)

    return run


def job_id(ended: subprocess.CompletedProcess[str]) -> str:
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.split()[-1]


def test_sbatch_of_a_job_that_fits_carries_its_plan_and_is_bound_to_it(
    site: Any, keep_verdicts: Any, cluster: Slurm, service: Any, sbatch: Run, job_file: JobFile
) -> None:
    site()
    keep_verdicts()
    job_file()
    ended = sbatch(comment="planner:small.yaml for the paper")

    assert ended.stderr.startswith("planner: small fits: rank 0 needs 2.")
    job = job_id(ended)
    plan_id = re.fullmatch(r"planner:(pl-[a-z2-7]{26}) for the paper", cluster.job(job)["Comment"])
    assert plan_id is not None
    assert cluster.job(job)["AdminComment"] == f"planner: fits, {plan_id[1]}"
    bound = lambda: service.history.jobs.get("slurm", job)  # noqa: E731
    _until("the job is bound", lambda: bound() is not None, cluster.folder, 15)
    assert bound().plan_id == plan_id[1]


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize("how", ["sbatch", "srun"])
def test_a_job_that_does_not_fit_is_refused_before_it_is_sent(
    sbatch: Run, srun: Run, job_file: JobFile, how: str
) -> None:
    job_file("large", "1.9GiB")
    ended = sbatch(comment="planner:large.yaml") if how == "sbatch" else srun("planner:large.yaml")

    assert (ended.returncode, ended.stdout) == (1, "")
    assert "planner: refused: large does not fit: rank 0 needs 2." in ended.stderr
    assert "planner: the smallest change that fits: train.recompute: full" in ended.stderr
    assert "planner: nothing was submitted" in ended.stderr


def test_a_site_may_only_warn_of_what_nobody_measured(
    site: Any, keep_verdicts: Any, srun: Run, job_file: JobFile
) -> None:
    site(refuse_uncalibrated="no")
    keep_verdicts()
    job_file("large", "1.9GiB")
    ended = srun("planner:large.yaml")

    assert (ended.returncode, ended.stdout) == (0, "hello\n"), ended.stderr
    assert "planner: warning: large does not fit: rank 0 needs 2." in ended.stderr


def test_a_service_that_is_down_under_both_policies(site: Any, cluster: Slurm, sbatch: Run, job_file: JobFile) -> None:
    job_file()
    for unreachable, code in (("admit", 0), ("refuse", 1)):
        site(server="http://127.0.0.1:1", unreachable=unreachable)
        ended = sbatch(comment="planner:small.yaml")
        assert ended.returncode == code, ended.stderr
        assert "the planner service at http://127.0.0.1:1 cannot be reached" in ended.stderr
        if code == 0:
            job = cluster.job(job_id(ended))
            assert job["Comment"] == "planner:unreachable"
            assert job["AdminComment"] == "planner: the job was not checked: unreachable"


@pytest.mark.parametrize(("pending", "code"), [("admit", 0), ("refuse", 1)])
def test_a_plan_that_takes_too_long(
    site: Any, cluster: Slurm, service: Any, sbatch: Run, job_file: JobFile, pending: str, code: int
) -> None:
    service.plan_provider.slow.add("slow")
    job_file("slow")
    site(pending=pending, wait_seconds="1")
    ended = sbatch(comment="planner:slow.yaml")

    assert ended.returncode == code, ended.stderr
    assert "the plan is not ready after 1 s" in ended.stderr
    if code == 0:
        assert cluster.job(job_id(ended))["Comment"] == "planner:pending"


def test_the_controller_refuses_unchecked_jobs_where_the_site_wants_it(
    site: Any, sbatch: Run, job_file: JobFile
) -> None:
    job_file()
    site({"UNDECIDED": "refuse"}, server="http://127.0.0.1:1")
    ended = sbatch(comment="planner:small.yaml")

    assert ended.returncode == 1
    assert "planner: refused: the job was not checked: unreachable" in ended.stderr


def test_a_spec_that_cannot_be_used_is_none_for_a_controller_that_insists_on_one(
    site: Any, sbatch: Run, tmp_path: Path
) -> None:
    (tmp_path / "broken.yaml").write_text("model: 7\n")
    site({"UNPLANNED": "refuse"})
    ended = sbatch(comment="planner:broken.yaml")

    assert (ended.returncode, ended.stdout) == (1, "")
    assert "planner: warning: the job's spec cannot be used: " in ended.stderr
    assert "planner: refused: the job was not checked: unplannable" in ended.stderr


@pytest.mark.parametrize(("unplanned", "code"), [("admit", 0), ("refuse", 1)])
def test_a_job_without_a_spec(site: Any, sbatch: Run, unplanned: str, code: int) -> None:
    site({"UNPLANNED": unplanned})
    ended = sbatch()

    assert ended.returncode == code, ended.stderr
    assert ("the job asks for GPUs and names no spec" in ended.stderr) == (unplanned == "refuse")


@pytest.mark.parametrize(("missing", "code"), [("admit", 0), ("refuse", 1)])
@pytest.mark.parametrize("note", ["small.yaml", "pl-" + "a" * 26, "../../etc/passwd"])
def test_who_goes_around_the_filter_meets_the_controller(
    site: Any, cluster: Slurm, tmp_path: Path, note: str, missing: str, code: int
) -> None:
    """From a machine without it, the comment is whatever somebody wrote there."""
    site({"MISSING": missing})
    settings = (cluster.folder / "slurm.conf").read_text().replace("CliFilterPlugins=lua\n", "")
    (tmp_path / "slurm.conf").write_text(settings)
    (tmp_path / "job.sh").write_text("#!/bin/sh\ntrue\n")
    ended = cluster.run(
        "sbatch", f"--comment=planner:{note}", "job.sh", cwd=tmp_path, SLURM_CONF=str(tmp_path / "slurm.conf")
    )

    assert ended.returncode == code, ended.stderr
    if missing == "refuse":
        said = f"no verdict of {note} lies here" if note.startswith("pl-") else "the job's spec was not checked"
        assert f"planner: refused: {said}" in ended.stderr


def test_the_plan_of_a_job_that_does_not_fit_is_refused_by_the_controller_too(
    site: Any, keep_verdicts: Any, cluster: Slurm, service: Any, job_file: JobFile, tmp_path: Path
) -> None:
    site()
    keep_verdicts()
    made = Client(service.url, service.token).plan(bundle_of_file(job_file("large", "1.9GiB")), 30)
    assert isinstance(made, PlanFound)
    plan_id = made.plan["plan_id"]
    _until("its verdict is there", (cluster.verdicts / plan_id).exists, cluster.folder)
    (tmp_path / "slurm.conf").write_text(
        (cluster.folder / "slurm.conf").read_text().replace("CliFilterPlugins=lua\n", "")
    )
    (tmp_path / "job.sh").write_text("#!/bin/sh\ntrue\n")
    ended = cluster.run(
        "sbatch", f"--comment=planner:{plan_id}", "job.sh", cwd=tmp_path, SLURM_CONF=str(tmp_path / "slurm.conf")
    )

    assert ended.returncode == 1
    assert "planner: refused: large does not fit: rank 0 needs 2." in ended.stderr
    assert "planner: the smallest change that fits: train.recompute: full" in ended.stderr


A_NODE_OF_A100 = (
    "metadata: {name: eight}\n"
    "model: {decoder: {layers: 4, hidden: 256, heads: 4, kv_heads: 4, ffn: 1024, vocab: 8192}}\n"
    "train: {micro_batch_size: 1, sequence_length: 512}\n"
    "parallel: {dp_replicate: {degree: 8}}\n"
    "cluster: {nodes: 1, gpus_per_node: 8, gpu: A100-SXM-80GB}\n"
)


@pytest.mark.parametrize(
    ("options", "warnings"),
    [
        (
            ("--gpus=4",),
            ["the job asks for 4 GPUs, and the spec plans 8 GPUs",
             "the job goes to H100-SXM-80GB, and the spec plans A100-SXM-80GB"],
        ),
        (
            ("--gpus=0", "--gres=gpu:h100:8"),
            ["the job goes to h100 (H100), and the spec plans A100-SXM-80GB"],
        ),
    ],
    ids=["fewer", "others"],
)  # fmt: skip
def test_gpus_that_are_not_those_of_the_spec_are_said(
    site: Any, cluster: Slurm, tmp_path: Path, options: tuple[str, ...], warnings: list[str]
) -> None:
    site()
    with (cluster.folder / "admission.ini").open("a") as policy:
        policy.write("gpu = H100-SXM-80GB\n")
    (tmp_path / "eight.yaml").write_text(A_NODE_OF_A100)
    (tmp_path / "job.sh").write_text("#!/bin/sh\n#SBATCH --comment=planner:eight.yaml\ntrue\n")
    ended = cluster.run("sbatch", "--output=/dev/null", *options, "job.sh", cwd=tmp_path)

    assert ended.returncode == 0, ended.stderr
    first, *others = ended.stderr.splitlines()
    assert first.startswith("planner: eight fits: ranks 0-7 need ")
    assert others == [f"planner: warning: {warning}" for warning in warnings]


@pytest.mark.usefixtures("site")
def test_what_a_comment_says_is_never_run_by_a_shell(sbatch: Run, tmp_path: Path) -> None:
    for spec in ("x.yaml;touch${IFS}hit", "$(touch${IFS}hit).yaml", "`touch${IFS}hit`", "--policy=/etc/passwd", "a%1b"):
        ended = sbatch(f"--comment=planner:{spec}")
        assert ended.returncode == 0, ended.stderr
        assert "the job's spec cannot be used" in ended.stderr
    assert not (tmp_path / "hit").exists()


def test_every_program_that_a_site_installs_starts_planner_without_the_folder_it_starts_in() -> None:
    starts = [
        (path.name, words[0])
        for folder in ("deploy", "helm", "docs", "examples")
        for path in sorted((DEPLOY.parents[1] / folder).rglob("*"))
        if path.suffix in (".lua", ".sh", ".service", ".yaml", ".tpl", ".md")
        for words in re.finditer(r"python3?(?: -\w+)* -m planner(?!\.upstream|\.service\.metrics)", path.read_text())
    ]

    assert {name for name, _ in starts} >= {"cli_filter.lua", "planner-verdicts.service", "epilog_out_of_memory.sh"}
    assert [each for each in starts if " -P " not in each[1]] == []


@pytest.mark.parametrize("python_path", ["", ".", ":"], ids=["none", "the folder", "empty words"])
def test_no_module_of_the_submission_folder_runs_when_a_job_is_checked(
    site: Any, cluster: Slurm, job_file: JobFile, tmp_path: Path, python_path: str
) -> None:
    site()
    job_file("large", "1.9GiB")
    for module in ("planner/__init__.py", "planner/admission/__init__.py", "planner/admission/slurm.py", "yaml.py"):
        (tmp_path / module).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / module).write_text(
            f"open({str(tmp_path / 'hit')!r}, 'w')\nprint('admit\\nfits\\n\\nfits')\nraise SystemExit\n"
        )
    (tmp_path / "job.sh").write_text("#!/bin/sh\n#SBATCH --comment=planner:large.yaml\ntrue\n")
    variables = {"PYTHONPATH": python_path} if python_path else {}
    ended = cluster.run("sbatch", "--output=/dev/null", "--gpus=1", "job.sh", cwd=tmp_path, **variables)

    assert (ended.returncode, (tmp_path / "hit").exists()) == (1, False), ended.stderr
    assert "planner: refused: large does not fit" in ended.stderr


def test_a_planner_that_does_not_work_stops_nobody(site: Any, cluster: Slurm, sbatch: Run, job_file: JobFile) -> None:
    job_file()
    site()
    cluster._install("cli_filter.lua", PLANNER="/nowhere/python3 -m planner.admission.slurm")
    ended = sbatch(comment="planner:small.yaml")

    assert "the job is not checked: the planner's command does not work here" in ended.stderr
    assert cluster.job(job_id(ended))["Comment"] == "planner:broken"


@pytest.mark.parametrize(
    ("stated", "environment", "code"),
    [
        ({"unreachable": "refuse"}, {}, 1),
        ({"unreachable": "hold"}, {}, 1),
        ({"unreachable": "admit"}, {"PLANNER_ADMISSION_UNREACHABLE": "refuse"}, 0),
        ({}, {"PLANNER_ADMISSION_UNREACHABLE": "refuse"}, 1),
    ],
    ids=["refuse", "hold", "the file before the environment", "the environment"],
)
def test_who_refuses_while_the_service_is_away_refuses_while_planner_does_not_work(
    site: Any,
    cluster: Slurm,
    sbatch: Run,
    job_file: JobFile,
    stated: dict[str, str],
    environment: dict[str, str],
    code: int,
) -> None:
    job_file()
    site(**stated)
    policy = str(cluster.folder / "admission.ini")
    cluster._install("cli_filter.lua", PLANNER="/nowhere/python3 -m planner.admission.slurm", POLICY=policy)
    ended = sbatch(comment="planner:small.yaml", **environment)

    assert (ended.returncode, "planner: nothing was submitted" in ended.stderr) == (code, code == 1)


def test_files_of_plans_that_the_service_has_forgotten_go_and_come_back_with_them(
    answering: Any, tmp_path: Path
) -> None:
    kept, old = "pl-" + "a" * 26, "pl-" + "b" * 26
    for name in (old, f".{old}.4711", "somebody's notes"):
        (tmp_path / name).write_text("admit\nfits\n")
    clock = [0.0]
    keeper = slurm.Verdicts(tmp_path, Client(answering.url), Policy(), now=lambda: clock[0])

    def names_after(at: float, *listed: str) -> set[str]:
        clock[0], answering.answers[:] = at, []
        answering.says(200, {"plans": [{"plan_id": each, "verdict": "fits", "stored_at": "x"} for each in listed]})
        keeper.update()
        return {path.name for path in tmp_path.iterdir()}

    assert names_after(0.0, kept) == {kept, "somebody's notes"}
    assert names_after(1.0, old) == {kept, old, "somebody's notes"}  # the newest only were asked for
    assert names_after(slurm.SWEEP_SECONDS, old) == {old, "somebody's notes"}
    assert names_after(slurm.SWEEP_SECONDS + 1, kept, old) == {kept, old, "somebody's notes"}


def test_plans_that_were_stored_at_one_moment_are_all_found_whatever_page_ends_between_them(
    answering: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planner.admission.slurm._PAGE", 2)
    ids = [f"pl-{letter * 26}" for letter in "abc"]
    rows = [{"plan_id": each, "verdict": "fits", "stored_at": "2026-01-01T00:00:00.000001Z"} for each in ids]
    for page in (rows[:2], rows[1:], rows[2:]):
        answering.says(200, {"plans": page})
    slurm.Verdicts(tmp_path, Client(answering.url), Policy()).update()

    assert {path.name for path in tmp_path.iterdir()} == set(ids)
    questions = [urllib.parse.parse_qs(each.path.partition("?")[2]) for each in answering.asked]
    later = "2026-01-01T00:00:00.000002+00:00"
    assert questions == [{"limit": ["2"]}, {"limit": ["2"], "before": [later]}, {"limit": ["2"], "before": [later]}]


def test_a_plan_that_was_forgotten_holds_up_no_other(answering: Any, tmp_path: Path) -> None:
    names = {each: f"pl-{letter * 26}" for each, letter in (("gone", "a"), ("fits", "b"), ("path", "../"))}
    listed = [
        {"plan_id": names["gone"], "verdict": "exceeds", "stored_at": "x"},
        {"plan_id": names["path"], "verdict": "fits", "stored_at": "x"},
        {"plan_id": names["fits"], "verdict": "fits", "stored_at": "x"},
    ]
    answering.says(200, {"plans": listed})
    answering.says(404, {"type": "urn:planner:problem:not-found", "problem": "there is no plan"})
    slurm.Verdicts(tmp_path / "verdicts", Client(answering.url), Policy()).update()

    assert [path.name for path in (tmp_path / "verdicts").iterdir()] == [names["fits"]]
