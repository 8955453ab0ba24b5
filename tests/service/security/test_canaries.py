"""What only the service may know is in nothing that it answers, logs, stores or shows, whatever its callers send."""

from __future__ import annotations

import io
import json
import os
import shutil
import sqlite3
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ordinary_user import USER, as_user
from planner_serve import Service, serving

from planner.runtime.user_cache import user_cache

pytestmark = pytest.mark.cluster

VARIABLE, FILE = "canary-of-the-environment", "canary-of-a-file"
SPY = r"""
import glob, os, re, torch

read = [repr(dict(os.environ))]
for pattern in ("FOLDER/*/*", "/proc/[0-9]*/environ", "/proc/[0-9]*/cmdline", "/tmp/*", "/tmp/*/*"):
    for path in glob.glob(pattern):
        try:
            read.append(open(path, "rb").read(1 << 20).decode("latin-1"))
        except OSError:
            pass
seen = sorted(set(re.findall("canary" "-of-[a-z-]+", " ".join(read))))
print(seen)
"""
TRAINS = """
model = torch.nn.Sequential()
model.add_module("seen_" + "_".join(seen), torch.nn.Linear(64, 64, device="cuda"))
optimizer = torch.optim.SGD(model.parameters())
for _ in range(4):
    model(torch.ones(8, 64, device="cuda")).sum().backward()
    optimizer.step()
"""
DECODER = {"decoder": {"layers": 1, "hidden": 64, "heads": 2, "kv_heads": 2, "ffn": 64, "vocab": 64}}


@dataclass(frozen=True, slots=True)
class Guarded:
    """A service that has a variable, and a file beside a program's own, which are nobody else's."""

    service: Service
    folder: Path

    @property
    def job(self) -> Path:
        return self.folder / "job"

    def logged(self) -> str:
        """What stands in the files of its processes."""
        paths = (path for path in (self.folder / "t").rglob("*") if path.is_file())
        return "\n".join([*self.service.log, *(path.read_text("latin-1") for path in paths)])

    def stored(self) -> str:
        """Every value of its database."""
        with closing(sqlite3.connect(self.folder / "store" / "plans.db")) as opened:
            tables = [name for (name,) in opened.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            rows = [row for table in tables for row in opened.execute(f"SELECT * FROM {table}")]
        return "\n".join(text_of(value) for row in rows for value in row)


def text_of(value: object) -> str:
    if not isinstance(value, bytes):
        return str(value)
    try:
        return zlib.decompress(value).decode()
    except zlib.error:
        return value.decode("latin-1")


@pytest.fixture(scope="module", params=["root", "user"])
def guarded(request: pytest.FixtureRequest) -> Iterator[Guarded]:
    folder = Path(tempfile.mkdtemp(prefix="c", dir="/var/tmp"))
    owner = 0 if request.param == "root" else USER
    try:
        for name, mode in {"job": 0o755, "store": 0o700, "t": 0o700}.items():
            (folder / name).mkdir(mode)
            os.chown(folder / name, owner, owner)
        folder.chmod(0o755)
        for path in (folder / "job" / "closed.sh", folder / "store" / "kept.txt"):
            path.write_text(f"export A={FILE}\npython spy.py\n")
            path.chmod(0o600)
            os.chown(path, owner, owner)
        (folder / "job" / "spy.py").write_text(program(folder, TRAINS))
        walls = () if request.param == "root" else as_user()
        own = {
            "HOME": str(folder / "store"), "TMPDIR": str(folder / "t"), "XDG_CACHE_HOME": str(user_cache().parent),
            "SERVICE_SECRET": VARIABLE,
        }  # fmt: skip
        variables = ("env", *(f"{name}={value}" for name, value in own.items()))
        with serving(
            f"sqlite:///{folder}/store/plans.db", *walls, *variables,
            programs=True, program_folders=str(folder), factories_as_root=request.param == "root", trace_workers=1,
        ) as started:  # fmt: skip
            yield Guarded(started, folder)
    finally:
        shutil.rmtree(folder)


def program(folder: Path, then: str) -> str:
    return SPY.replace("FOLDER", str(folder)) + then


def tarball(**files: str) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in files.items():
            about = tarfile.TarInfo(f"{name}.py")
            about.size = len(content)
            tar.addfile(about, io.BytesIO(content.encode()))
    return packed.getvalue()


def test_canaries_are_nowhere(guarded: Guarded) -> None:
    service = guarded.service

    def run(command: str, **asked: Any) -> str:
        answer = service.send("/v1/plans", json={"command": command, "path": str(guarded.job), "gpu": "T4", **asked})
        assert answer.status_code < 500, answer.text
        return answer.text

    trained = run("python spy.py")
    texts = [trained, run("bash closed.sh"), run("ray job submit --runtime-env closed.sh -- python spy.py")]
    texts += [run(f"python spy.py $SERVICE_SECRET --of {guarded.folder}/store/kept.txt")]
    for then in (TRAINS, "raise ValueError(repr(read))", "raise ValueError(str(seen))", "os._exit(seen)"):
        asked = json.dumps({"command": "python t.py", "gpu": "T4"})
        headers = {"Content-Type": "application/gzip", "X-Planner-Run": asked}
        texts.append(service.send("/v1/plans", content=tarball(t=program(guarded.folder, then)), headers=headers).text)
    models = (
        {"factory": "os:getenv", "factory_arguments": {"key": "SERVICE_SECRET"}},
        {"factory": "spy:model", "factory_path": str(guarded.job)},
        {"hf_config": f"{guarded.job}/closed.sh"},
    )
    for model in models:
        texts.append(service.post({"model": model, "cluster": {"gpu": "T4"}}).text)
        axes = {f"model.{key}": [value] for key, value in model.items()} | {"model.decoder": [None]}
        base = {"model": DECODER, "cluster": {"gpu": "T4"}}
        texts.append(service.post({"job": base, "axes": axes}, "/v1/searches").text)
    shown = ["/", "/metrics", "/readyz", "/openapi.json", "/v1/plans", "/v1/capacity", "/v1/jobs"]
    texts += [service.get(path).text for path in shown]
    stored, logged = guarded.stored(), guarded.logged()

    assert '"verdict":"fits"' in trained.replace(" ", "")
    assert "seen_" in stored
    assert "/v1/plans" in logged
    everything = "\n".join([*texts, stored, logged])
    assert [canary for canary in (VARIABLE, FILE) if canary in everything] == []
