"""Records of modded-nanogpt: scripts that trained compiled on 8 H100, each as the head of its published log shows it.

Scripts and peaks are PLANNER_TRUTH/programs/speedrun.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from recorded_run import TRUTH, Family, Launch, RecordedRun, minor_version, size_of_tokens, write_tokens

SCRIPTS = TRUTH / "programs" / "speedrun"
_SECOND_FILE = f"{'-' * 40}\n# triton_kernels.py\n{'-' * 40}\n"
"""Where a script's log shows the module that it imports, behind the script itself."""
_KIND_OF_RUN = re.compile(r"""run_id.*f['"]([\w-]+)/\{uuid""")
"""A folder of logs that was there where a script ran."""
_TRAIN_TOKENS, _TRAIN_FILES, _VALIDATION_TOKENS = 20_000_000, 8, 48_000_000
"""Scripts of 2026 evaluate a batch of 2 Mi tokens before each of up to 16 steps that they warm up with."""
_SEPARATOR = 50256
_STEPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Script(RecordedRun):
    """A run by its script; with lowest and highest peak of its logs."""

    file: str


class Speedrun(Family[Script, str]):
    """All scripts of the manifest, by their dates; a program is its log's text."""

    name = "speedrun"

    def __init__(self, checkouts: Path | None) -> None:  # noqa: ARG002
        self.missing = "" if SCRIPTS.is_dir() else f"the folder {SCRIPTS}"

    def read_runs(self) -> list[Script]:
        rows = json.loads((SCRIPTS / "manifest.json").read_text(encoding="utf-8"))["rows"]
        return sorted(
            (
                Script(
                    name=Path(row["file"]).stem, file=row["file"], torch=minor_version(row["torch"]),
                    gpu="H100-SXM-80GB", product="H100", ranks=8,
                    allocated=tuple(row["allocated_range"]), reserved=tuple(row["reserved_range"]),
                )
                for row in rows
            ),
            key=lambda script: script.file,
        )  # fmt: skip

    def read_program(self, run: Script) -> str:
        return (SCRIPTS / run.file).read_text(encoding="utf-8")

    def write(self, run: Script, program: str, folder: Path, python: str) -> Launch:  # noqa: ARG002
        write_data(folder / "data" / "fineweb10B")
        path = write_program(run.file, program, folder / "programs")
        work = folder / "work"
        for name in ("data", "logs"):
            (folder / name).mkdir(exist_ok=True)
            if not (work / name).exists():  # some scripts look beside the folder that they start in
                work.mkdir(exist_ok=True)
                (work / name).symlink_to(folder / name)
        for kind in _KIND_OF_RUN.findall(program):
            (folder / "logs" / kind).mkdir(exist_ok=True)
        return Launch(folder=work, command=["torchrun", "--standalone", "--nproc_per_node=8", str(path)], steps=_STEPS)


def write_data(folder: Path) -> None:
    """The data that the scripts of this record train and evaluate with."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, tokens in (("fineweb_train_000001.bin", _TRAIN_TOKENS), ("fineweb_val_000000.bin", _VALIDATION_TOKENS)):
        path = folder / name
        if not path.exists() or path.stat().st_size != size_of_tokens(tokens):
            write_tokens(path, tokens, _SEPARATOR)
    for number in range(2, _TRAIN_FILES + 1):
        again = folder / f"fineweb_train_{number:06}.bin"
        if not again.exists():
            again.hardlink_to(folder / "fineweb_train_000001.bin")


def write_program(file: str, program: str, folder: Path) -> Path:
    """The script as it ran, alone in a folder with the module that its log shows behind it, if any."""
    text, separator, module = program.partition(_SECOND_FILE)
    own = folder / Path(file).stem
    own.mkdir(parents=True, exist_ok=True)
    (own / file).write_text(text, encoding="utf-8")
    if separator:
        (own / "triton_kernels.py").write_text(module, encoding="utf-8")
    return own / file
