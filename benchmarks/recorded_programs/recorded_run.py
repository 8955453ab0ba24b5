"""What the families of recorded programs share: a run, how planner starts it, and where its files come from."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
import tarfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Generic, NamedTuple, TypeVar

from planner.units import MIB

ROOT = Path(__file__).parents[2]
TRUTH = Path(os.environ.get("PLANNER_TRUTH", ROOT.parent / "shared" / "truth"))
_HEADER_NUMBERS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """A run that printed the peaks of a rank; a family adds where its program is."""

    name: str
    """Its own within the family: its line in the table, from 0, or its file."""
    title: str = ""
    torch: str = ""
    """As `2.9`; empty where nothing says it."""
    gpu: str = ""
    """What `--gpu` takes; empty where nothing says it, or nothing is known of it."""
    product: str = ""
    ranks: int = 0
    allocated: tuple[float, float] = (0, 0)
    """Lowest and highest in MiB, as printed; (0, 0) was not printed."""
    reserved: tuple[float, float] = (0, 0)
    parameters: int = 0
    """Of its model, as its log has them; 0 where it does not."""
    step_seconds: float = 0.0
    """Of an iteration, as it was printed; 0 where it was not."""
    obstacle: str = ""
    """Why it cannot be run; empty if it can."""
    inferred: str = ""
    """What of torch, GPU and ranks its own log does not say, but a page or a log beside it; such a run is not drawn."""
    rank: int = 0
    """Whose figures these are; rank 0 is run before it."""

    @property
    def stratum(self) -> tuple[str, str, int]:
        """What a draw spreads over."""
        return self.torch, self.product, self.ranks


class NotPublishedError(Exception):
    """What a run needs, and nobody has published."""


@dataclass(frozen=True, slots=True)
class Figure:
    """What was printed, lowest and highest of all logs in MiB, and what it is on paper."""

    name: str
    recorded: tuple[float, float]
    planned_bytes: int
    decimals: int = 0
    """Of the MiB that were printed: whole ones are cut, others rounded."""

    @property
    def planned(self) -> float:
        """In MiB, as the program would print it."""
        mib = self.planned_bytes / MIB
        return round(mib, self.decimals) if self.decimals else mib // 1

    @property
    def error(self) -> float:
        """How far from the nearer end of what was printed, in percent; 0 between both."""
        low, high = self.recorded
        end = low if self.planned < low else max(high, 1e-9)
        return 0.0 if low <= self.planned <= high else (self.planned - end) / end * 100

    @property
    def missed_bytes(self) -> int:
        """By how much it is above what was printed."""
        low, high = self.recorded
        end = min(max(self.planned, low), high)
        return round((self.planned - end) * MIB)

    def cells(self) -> list[str]:
        """What was printed, what it is here, and the error."""
        ends = [f"{end:.{self.decimals}f}" for end in dict.fromkeys(self.recorded)]
        error = f"{self.error:+.3f} %" if self.error else "0"
        return [" to ".join(ends), f"{self.planned_bytes / MIB:.{self.decimals or 1}f}", error]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """`planner run OPTIONS -- COMMAND`, in a folder."""

    folder: Path
    command: Sequence[str]
    steps: int
    options: Sequence[str] = ()
    environment: dict[str, str] = field(default_factory=dict)
    paths: Sequence[str] = ()
    """Folders of packages, before those of the interpreter."""


Run = TypeVar("Run", bound=RecordedRun)
Program = TypeVar("Program")


class Family(ABC, Generic[Run, Program]):
    """Runs of one repository: which there are, what each ran, and how it is written to a disk."""

    name: str
    decimals = 0
    """Of the MiB that its programs print."""

    missing = ""
    """What has to be there before its runs can be read."""

    @abstractmethod
    def __init__(self, checkouts: Path | None) -> None:
        """Finds its table, and its repository in the folder of checkouts."""

    @abstractmethod
    def read_runs(self) -> list[Run]:
        """All runs of the table, those that cannot be run too."""

    @abstractmethod
    def read_program(self, run: Run) -> Program:
        """What ran, settings included; its `repr` says all of it.

        Raises:
            NotPublishedError: it needs what is not there.
        """

    def read_other_program(self, run: Run, program: Program) -> Program | None:
        """What else may have run, where that program's model is not the run's; None if nothing says more."""
        del run, program
        return None

    @abstractmethod
    def write(self, run: Run, program: Program, folder: Path, python: str) -> Launch:
        """The program and made-up data in a folder, with packages of an interpreter where data needs some."""

    def read_written(self, run: Run, folder: Path, python: str) -> dict[str, Any]:
        """What of the files that a run has written is kept with its answer."""
        del run, folder, python
        return {}

    def read_figures(self, run: Run, result: Mapping[str, Any]) -> list[Figure]:
        """What an answer has for what the run printed: here peaks since the program last reset the counters."""
        counted = result["answer"]["counted"]
        pairs = {"allocated": run.allocated, "reserved": run.reserved}
        return [
            Figure(name, recorded, counted[f"max_{name}_bytes"], self.decimals)
            for name, recorded in pairs.items()
            if recorded[1]
        ]

    def read_error(self, run: Run, result: Mapping[str, Any]) -> str:  # noqa: ARG002
        """Why an answer has no figures of a run; empty where planner's errors say it."""
        return ""


class Change(NamedTuple):
    """What a commit did to a file: A, M, R or D."""

    commit: str
    kind: str
    blob: str
    old_path: str
    path: str


class Repository:
    """Files of a git directory or a checkout."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / ".git" if (folder / ".git").exists() else folder

    def _git(self, *arguments: str, given: bytes = b"") -> bytes:
        command = ["git", f"--git-dir={self._folder}", *arguments]
        return subprocess.run(command, capture_output=True, check=True, input=given).stdout

    def has(self, commit: str) -> bool:
        """Whether there is such a commit."""
        command = ["git", f"--git-dir={self._folder}", "cat-file", "-e", f"{commit}^{{commit}}"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def read_blob(self, name: str) -> str:
        """A file by the name of its content, or as `COMMIT:PATH`."""
        return next(self.read_blobs([name]))

    def read_blobs(self, names: Sequence[str]) -> Iterator[str]:
        """Files in the order of their names, by one process of git; empty where there is none."""
        output = io.BytesIO(self._git("cat-file", "--batch", given="\n".join(names).encode()))
        for _ in names:
            *_, kind, size = output.readline().split()
            if size == b"missing" or kind != b"blob":
                yield ""
                continue
            yield output.read(int(size)).decode("utf-8", "replace").replace("\r\n", "\n")
            output.read(1)

    def read_text(self, commit: str, path: str) -> str:
        """A file of a commit; empty if there is none."""
        return self.read_blob(f"{commit}:{path}")

    def list_files(self, commit: str, paths: Sequence[str], ending: str) -> str:
        """Files whose names end so, one a line, each behind the name of its content."""
        lines = self._git("ls-tree", commit, *paths).decode().splitlines()
        return "\n".join(line for line in lines if line.endswith(ending))

    def read_beside(self, commit: str, folder: str, endings: tuple[str, ...]) -> dict[str, str]:
        """The files of a folder whose names end so, by their names."""
        paths = self._git("ls-tree", "--name-only", commit, f"{folder}/").decode().splitlines()
        names = [path for path in paths if path.endswith(endings)]
        texts = self.read_blobs([f"{commit}:{name}" for name in names])
        return dict(zip((PurePosixPath(name).name for name in names), texts, strict=True))

    def read_below(self, commit: str, folder: str) -> dict[str, str]:
        """All files of a folder and those in it, by their paths."""
        paths = self._git("ls-tree", "-r", "--name-only", commit, f"{folder}/").decode().splitlines()
        return dict(zip(paths, self.read_blobs([f"{commit}:{path}" for path in paths]), strict=True))

    def read_changes(self, folder: str) -> list[Change]:
        """What the head's first parents changed in a folder, newest first, with renames."""
        options = ["--raw", "--no-abbrev", "-M50", "-l20000", "--first-parent", "-m", "--format=commit %H"]
        changes, commit = [], ""
        for line in self._git("log", *options, "HEAD", "--", folder).decode().splitlines():
            if line.startswith("commit "):
                commit = line.removeprefix("commit ")
            elif line.startswith(":"):
                about, *paths = line.split("\t")
                changes.append(Change(commit, about.split()[4][0], about.split()[3], paths[0], paths[-1]))
        return changes

    def read_history(self, path: str) -> str:
        """What every commit of any branch or pull request changed of a file, the oldest first: a line `commit HASH`,
        then the patch."""
        order = ("--all", "--reverse", "--date-order")
        return self._git("log", *order, "--format=commit %H", "--patch", "--unified=0", "--", path).decode(
            "utf-8", "replace"
        )

    def write_tree(self, commit: str, folder: Path, paths: Sequence[str] = ()) -> None:
        """The files of a commit, or only those of some paths."""
        with tarfile.open(fileobj=io.BytesIO(self._git("archive", "--format=tar", commit, "--", *paths))) as archive:
            archive.extractall(folder, filter="data")


class FamilyOfTable(Family[Run, Program]):
    """Runs of a table in the truth, whose programs lie in a repository of the family's name."""

    table: Path

    def __init__(self, checkouts: Path | None) -> None:
        folder = checkouts / self.name if checkouts else None
        self._repository = Repository(folder) if folder and folder.is_dir() else None
        if not self.table.is_file():
            self.missing = f"the table {self.table}"
        elif folder is None:
            self.missing = f"a git directory {self.name} in the folder that --checkouts names"
        elif self._repository is None:
            self.missing = f"the git directory {folder}"

    @property
    def repository(self) -> Repository:
        """The copy of the repository; asked for only where nothing is missing."""
        assert self._repository is not None
        return self._repository

    def read_rows(self) -> list[tuple[int, dict[str, str]]]:
        """The rows of the table, each with its number."""
        with self.table.open(encoding="utf-8", newline="") as file:
            return list(enumerate(csv.DictReader(file)))


def minor_version(torch: str) -> str:
    """`2.7` of `2.7.0.dev20250110+cu126`: of a nightly the release after it."""
    return ".".join(torch.split(".")[:2])


def write_tokens(path: Path, tokens: int, separator: int, document_tokens: int = 1000) -> None:
    """A file of documents as speedruns read it: 256 int32 (a number of the format, its version, how many), then uint16;
    what separates documents is the highest token."""
    import numpy as np

    header = np.zeros(_HEADER_NUMBERS, dtype=np.int32)
    header[:3] = 20240520, 1, tokens
    drawn = np.random.default_rng(1).integers(0, separator, tokens, dtype=np.uint16)
    drawn[::document_tokens] = separator
    path.write_bytes(header.tobytes() + drawn.tobytes())


def size_of_tokens(tokens: int) -> int:
    """Bytes of such a file."""
    return 4 * _HEADER_NUMBERS + 2 * tokens


def call_by(python: str, function: Callable[..., None], *arguments: Any) -> None:
    """Calls a function of a module of this folder by an interpreter that has the packages that it imports."""
    module = Path(sys.modules[function.__module__].__file__ or "").stem
    code = f"import sys; from {module} import {function.__name__} as call; call(*sys.argv[1:])"
    path = os.pathsep.join((str(Path(__file__).parent), str(ROOT)))
    subprocess.run([python, "-c", code, *map(str, arguments)], check=True, env={**os.environ, "PYTHONPATH": path})
