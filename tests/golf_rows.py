"""Runs of openai/parameter-golf as their logs recorded them: what ran, on what, with which settings, and its peaks.

The table of the runs is PLANNER_TRUTH/rows-3/parameter_golf_memory.csv; scripts and logs come out of a copy of the
repository with the heads of its pull requests (PLANNER_GOLF: a git directory).
"""

from __future__ import annotations

import base64
import csv
import functools
import io
import lzma
import os
import random
import re
import subprocess
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from planner.hardware import catalog

_ROOT = Path(__file__).parents[1]
ROWS = Path(os.environ.get("PLANNER_TRUTH", _ROOT.parent / "shared" / "truth")) / "rows-3" / "parameter_golf_memory.csv"
_RULER = re.compile(r"^={79,}$", re.MULTILINE)
_TORCH = re.compile(r"(?:[Pp]y[Tt]orch|torch)\W{0,3}(?:version)?[\s:=v]*\"?(2\.\d+)\.\d+")
_SMI = re.compile(r"\|\s+\d+\s+(NVIDIA [\w \-]+?)\s+(?:On|Off|WDDM|TCC)\s[^\n]*\n[^\n]*?/\s*(\d+)MiB")
_PAIR = re.compile(r"\b([a-zA-Z][a-zA-Z0-9_]*)\s*[:=]\s*([^\s:=]+)")
_ASSIGNED = re.compile(r"""\b([A-Z][A-Z0-9_]{2,})["']?\s*=\s*["']?(-?\d[\w.,+-]*\w|\d|[A-Za-z]\w*)(?![\w/:\\])""")
_THOUSANDS = re.compile(r"\d{1,3}(,\d{3})+")
_FIRST_STEP = re.compile(r"^\s*(?:step[: ]\s*\d|warmup_step:\s*\d)", re.MULTILINE)
_TAKEN = re.compile(r"""(?:^\s*(?:self\.)?(\w+)\s*(?::[^=\n]+)?=[^\n]*?)?["']([A-Z][A-Z0-9_]{2,})["']""", re.MULTILINE)
_PACKED = re.compile(r"""b85decode\(\s*(?:rb|br|b|r)?(["'])(.*?)\1""", re.DOTALL)
_NOT_OURS = {
    "WARMUP_STEPS",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "RUN_ID",
    "SEED",
    "OMP_NUM_THREADS",
    "DATA_DIR",
    "LOGFILE",
}
"""What launchers set, and what says where something lies."""
_PLACES = ("_PATH", "_DIR", "_FILES", "_ID")
_ARCHITECTURES = {
    "NVIDIA GeForce RTX 3060": "sm_86", "NVIDIA RTX A6000": "sm_86", "NVIDIA GeForce RTX 4060 Ti": "sm_89",
    "NVIDIA GeForce RTX 4070": "sm_89", "NVIDIA GeForce RTX 4080": "sm_89", "NVIDIA GeForce RTX 5060 Ti": "sm_120",
    "NVIDIA GeForce RTX 5080": "sm_120",
}  # fmt: skip
"""Of GPUs that the catalog has not: a run needs their memory, which nvidia-smi said, and this."""
OLDEST_TORCH = (2, 6)
_USUAL_WARMUP = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One run: where its script and its log are, what it ran on, and what it printed, in whole MiB."""

    number: int
    """Its line in the table, from 0."""
    commit: str
    script: str
    log: str
    torch: str
    """As `2.9`; empty where nothing says it."""
    gpu: str
    """What `--gpu` takes; empty where nothing says it, or nothing is known of it."""
    product: str
    world: int
    allocated: int
    reserved: int

    @property
    def stratum(self) -> tuple[str, str, int]:
        """What a draw spreads over."""
        return self.torch, self.product, self.world


@dataclass(frozen=True, slots=True)
class Program:
    """What is run: the script's text, the files beside it, and what its log says that it was given."""

    code: str
    beside: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    vocabulary: int = 1024
    warmup_steps: int = 0
    is_launched: bool = True
    """By torchrun, which makes a group of ranks even where there is one; else by Python."""
    has_flash_attention: bool = True


def draw_rows(rows: Sequence[Row], count: int, seed: int) -> list[Row]:
    """So many of the rows that can be run: of those of one torch, GPU and world as many as the root of their number.

    A draw in proportion would be 8 H100 with one torch; one by strata would hardly have a row of those.
    """
    sizes = Counter(each.stratum for each in rows)
    drawn = random.Random(seed)
    keys = {each.number: drawn.random() ** (sizes[each.stratum] ** 0.5) for each in rows}
    return sorted(sorted(rows, key=lambda each: -keys[each.number])[:count], key=lambda each: each.number)


def can_be_run(row: Row) -> bool:
    """Whether all is known that a run of it needs, with a torch that planner knows."""
    return bool(row.script and row.gpu and row.world and row.torch) and _version(row.torch) >= OLDEST_TORCH


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


class Repository:
    """Files of the copy of the repository."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _git(self, *arguments: str, given: bytes = b"") -> bytes:
        command = ["git", f"--git-dir={self._folder}", *arguments]
        return subprocess.run(command, capture_output=True, check=True, input=given).stdout

    def read_blob(self, name: str) -> str:
        """A file by the name of its content, or as `COMMIT:PATH`."""
        return next(self.read_blobs([name]))

    def read_blobs(self, names: Sequence[str]) -> Iterator[str]:
        """Files in the order of their names, by one process of git."""
        found = io.BytesIO(self._git("cat-file", "--batch", given="\n".join(names).encode()))
        for _ in names:
            size = int(found.readline().split()[-1])
            yield found.read(size).decode("utf-8", "replace").replace("\r\n", "\n")
            found.read(1)

    def read_text(self, commit: str, path: str) -> str:
        """A file of a commit; empty if there is none."""
        return self.read_blob(f"{commit}:{path}") if self._git("ls-tree", "--name-only", commit, path) else ""

    def read_beside(self, commit: str, folder: str) -> dict[str, str]:
        """The Python files of a folder, and what they may read, by their names."""
        found = self._git("ls-tree", "--name-only", commit, f"{folder}/").decode().splitlines()
        names = [each for each in found if each.endswith((".py", ".json"))]
        return {PurePosixPath(each).name: self.read_blob(f"{commit}:{each}") for each in names}


def read_rows(repository: Repository) -> Iterator[Row]:
    """All rows that printed one figure."""
    with ROWS.open(encoding="utf-8", newline="") as file:
        rows = [(number, row) for number, row in enumerate(csv.DictReader(file)) if row["values"] == "1"]
    for (number, row), log in zip(rows, repository.read_blobs([row["blob"] for _, row in rows]), strict=True):
        said = _TORCH.match(f"torch {row['torch']}") or _TORCH.search(log)
        product, gpu = _find_gpu(log, row["gpu"])
        yield Row(
            number=number,
            commit=row["commit"],
            script=row["script"],
            log=row["blob"],
            torch=said.group(1) if said else "",
            gpu=gpu,
            product=product,
            world=int(row["world"] or 0),
            allocated=int(row["alloc"]),
            reserved=int(row["res"]),
        )


def _find_gpu(log: str, column: str) -> tuple[str, str]:
    """Its product, and what `--gpu` takes for it."""
    shown = _SMI.search(log)
    product = shown.group(1) if shown else re.sub(r"\s+(On|Off|WDDM|capability)$", "", column.strip())
    known = catalog.by_any_name(product) if product else []
    if len(known) == 1:
        return product, known[0].name
    if shown and product in _ARCHITECTURES:
        return product, f"{{total_bytes: {shown.group(2)}MiB, arch: {_ARCHITECTURES[product]}}}"
    return product, ""


def read_program(row: Row, repository: Repository) -> Program:
    """What ran: the code that the log shows, or else the script at the commit; settings as the log says them."""
    log = repository.read_blob(row.log)
    script = repository.read_blob(f"{row.commit}:{row.script}")
    shown = next((part for part in _RULER.split(log) if "import torch" in part and _compiles(part)), "")
    head = _FIRST_STEP.split(log.replace(shown, "") if shown else log, maxsplit=1)[0]
    folder = str(PurePosixPath(row.script).parent)
    readme = repository.read_text(row.commit, f"{folder}/README.md")
    code = shown or unpack(script)
    beside = repository.read_beside(row.commit, folder)
    # A script may only start a module that lies beside it, which then reads the settings.
    started = [beside.get(f"{name}.py", "") for name in re.findall(r"^from (\w+) import", code, re.MULTILINE)]
    code = "\n".join((code, *started))
    settings = read_command(code, readme) | read_settings(code, head)
    said = {name.lower(): value for name, value in _PAIR.findall(head)}
    named = re.search(r"(?:fineweb_|sp)(\d{4,5})\b|bpe_v(\d{4,5})", f"{said.get('tokenizer_path', '')} {head}")
    default = re.search(r"""["']VOCAB_SIZE["'],\s*["']?(\d+)""", code)
    vocabularies = [settings.get("VOCAB_SIZE"), said.get("vocab_size"), *(named.groups() if named else ()),
                    default and default[1], "1024"]  # fmt: skip
    return Program(
        code=shown or script,
        beside=beside,
        settings=settings,
        vocabulary=next(int(number) for text in vocabularies if (number := _number(text or ""))),
        warmup_steps=int(_number(said.get("warmup_steps", str(_USUAL_WARMUP))) or 0),
        is_launched=row.world > 1 or not _is_started_by_python(readme),
        # Version 3 is for Hopper alone; without it some scripts take another way, which their logs say.
        has_flash_attention=" H" in f" {row.product.removeprefix('NVIDIA ')}" and "fa3=False" not in log,
    )


def _is_started_by_python(readme: str) -> bool:
    """Whether the page beside the script starts it so; most do not say, and the repository's own says torchrun."""
    return "torchrun" not in readme and re.search(r"\bpython3? (?:-u )?\S*train_gpt\w*\.py", readme) is not None


def _compiles(text: str) -> bool:
    try:
        compile(text.strip("\n"), "shown", "exec")
    except (SyntaxError, ValueError):
        return False
    return True


def _read_raw(data: bytes) -> bytes:
    return lzma.decompress(data, format=lzma.FORMAT_RAW, filters=[{"id": lzma.FILTER_LZMA2}])


@functools.cache
def unpack(script: str) -> str:
    """The source of a script that unpacks itself, else the script."""
    for _, packed in _PACKED.findall(script):
        raw = base64.b85decode(packed)
        for read in (_read_raw, lzma.decompress, zlib.decompress):
            try:
                return read(raw).decode("utf-8")
            except (lzma.LZMAError, zlib.error, UnicodeDecodeError):
                continue
    return script


def read_settings(code: str, head: str) -> dict[str, str]:
    """What the environment has to say so that the script has the settings that its log prints before its first step.

    Names of variables in the script, or of what it keeps them as, stand in logs as `name:value`, `name=value`.
    """
    said = {name.lower(): value.rstrip(",;)") for name, value in _PAIR.findall(head)}
    settings = {}
    for kept_as, variable in _TAKEN.findall(code):
        value = said.get(variable.lower(), said.get(kept_as.lower(), "") if kept_as else "")
        if variable in _NOT_OURS or "/" in value or not value:
            continue
        if value in {"True", "False"}:
            settings[variable] = str(int(value == "True"))
        elif (number := _number(value)) is not None:
            settings[variable] = str(int(number)) if number == int(number) and "e" not in value else value
    return settings


def read_command(code: str, readme: str) -> dict[str, str]:
    """What the page beside the script assigns to variables that it reads, each the first time: of models that are not
    as the script's defaults a log prints only some sizes."""
    read = {variable for _, variable in _TAKEN.findall(code)} - _NOT_OURS
    settings: dict[str, str] = {}
    for variable, value in _ASSIGNED.findall(readme):
        if variable in read and not variable.endswith(_PLACES) and not _THOUSANDS.fullmatch(value):
            settings.setdefault(variable, value)
    return settings


def _number(text: str) -> float | None:
    try:
        return float(text.replace("_", "")) if text[:1].isdigit() or text[:1] in "-." else None
    except ValueError:
        return None
