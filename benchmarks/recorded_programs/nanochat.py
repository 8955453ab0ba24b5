"""Reports of karpathy/nanochat: `scripts/base_train.py` at a commit, with the peak that it printed to 0.01 MiB.

The table is PLANNER_TRUTH/rows-3/nanochat_reports.csv; programs come out of a copy of the repository with the heads of
its pull requests (CHECKOUTS/nanochat). The interpreter of a row's torch needs tiktoken, rustbpe, pyarrow, pandas and
wandb, as the program does. Text and tokenizer are made up; an evaluation has two batches instead of hundreds.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from recorded_run import TRUTH, FamilyOfTable, Launch, RecordedRun, call_by, minor_version

ROWS = TRUTH / "rows-3" / "nanochat_reports.csv"
_SCRIPT = "scripts/base_train.py"
_GPUS = {
    "H100 80GB": "H100-SXM-80GB",
    "H100": "H100-SXM-80GB",
    "H100 NVL": "H100-NVL-94GB",
    "H20": "{total_bytes: 96GB, arch: sm_90}",  # its data sheet's size: the catalog has none
}
_CORRECTED_DEPTHS = {"6ee8fd6": "24"}
"""The table says 26; the command of that run, in dev/LEADERBOARD.md of the commit, has --depth=24."""
_LOCKED_TORCH = re.compile(r'^name = "torch"\nversion = "([\d.]+)', re.MULTILINE)
_VOCABULARY = re.compile(r"--vocab[-_]size.*?default=(\d+)")
_STEPS, _EVALUATED_BATCHES = 4, 2
_BOS_TOKENS = (
    "<|bos|>", "<|user_start|>", "<|user_end|>", "<|assistant_start|>", "<|assistant_end|>",
    "<|python_start|>", "<|python_end|>", "<|output_start|>", "<|output_end|>",
)  # fmt: skip
"""The special tokens of nanochat/tokenizer.py, the last ones of its vocabulary."""
_PATTERN = r"[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}|\s+"
_ROW_GROUPS, _DOCUMENTS, _LETTERS = 8, 256, "abcdefghijklmnopqrstuvwxyz"
"""Ranks read row groups in turn, over and over: each of eight has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(RecordedRun):
    """One run, with what its columns say that it was given, by the options' names without dashes."""

    commit: str
    settings: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Program:
    """What is run: the code of a commit, the words after the script's name, and its tokenizer's size."""

    commit: str = field(repr=False)
    code: str
    """Names of what its Python files contain: commits that change others run the same program."""
    words: tuple[str, ...]
    vocabulary: int


class Nanochat(FamilyOfTable[Report, Program]):
    """All rows, in the order of the table."""

    name = "nanochat"
    decimals = 2
    table = ROWS

    def read_runs(self) -> list[Report]:
        return [self._read_report(number, row) for number, row in self.read_rows()]

    def _read_report(self, number: int, row: dict[str, str]) -> Report:
        commit, settings = read_commit(row), read_settings(row)
        is_there = bool(commit) and self.repository.has(commit)
        torch = minor_version(row["torch"])
        if torch == "?" and is_there:
            locked = _LOCKED_TORCH.search(self.repository.read_text(commit, "uv.lock"))
            torch = minor_version(locked[1]) if locked else "?"
        product = re.sub(r"^\d+x", "", row["gpus"])
        obstacle = "" if product in _GPUS else "its GPU is not known"
        return Report(
            name=str(number),
            title="{} depth {depth} batch {device_batch_size}".format(row["commit"], **dict(settings)),
            torch="" if torch == "?" else torch,
            gpu=_GPUS.get(product, ""),
            product=product,
            ranks=int(row["world"]),
            allocated=(float(row["peak_allocated_MiB"]),) * 2,
            obstacle=obstacle if is_there else "its code is not published",
            commit=commit,
            settings=settings,
        )

    def read_program(self, run: Report) -> Program:
        code = self.repository.read_text(run.commit, _SCRIPT)
        tokenizer = _VOCABULARY.search(self.repository.read_text(run.commit, "scripts/tok_train.py"))
        assert tokenizer is not None
        files = self.repository.list_files(run.commit, (_SCRIPT, "nanochat/"), ".py")
        return Program(run.commit, files, tuple(write_words(code, run.settings, run.ranks)), int(tokenizer[1]))

    def write(self, run: Report, program: Program, folder: Path, python: str) -> Launch:
        base = folder / f"base-{program.vocabulary}"
        if not (base / "tokenizer" / "token_bytes.pt").exists():
            call_by(python, write_data, base, program.vocabulary)
        own = folder / "programs" / program.commit.replace("/", "-")
        if not own.exists():
            own.mkdir(parents=True)
            self.repository.write_tree(program.commit, own)
        launched = ["torchrun", "--standalone", f"--nproc_per_node={run.ranks}"] if run.ranks > 1 else ["python"]
        return Launch(
            folder=own,
            command=[*launched, "-m", _SCRIPT.removesuffix(".py").replace("/", "."), *program.words],
            steps=_STEPS,
            environment={"NANOCHAT_BASE_DIR": str(base)},
        )


def read_commit(row: dict[str, str]) -> str:
    """The commit of a row as git reads it; empty where its code is another's own."""
    if "not upstream" in row["commit"] or "variant" in row["source"]:
        return ""
    return f"{row['commit']}/head" if row["commit"].startswith("refs/pull/") else row["commit"]


def read_settings(row: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """What the row's columns say of its command; what they leave open is the script's default."""
    total = row["total_batch"]
    window = row["window"] if re.fullmatch("[SL]+", row["window"]) else ""
    settings = {
        "depth": _CORRECTED_DEPTHS.get(row["commit"], row["depth"]),
        "device_batch_size": row["device_batch_size"],
        "max_seq_len": row["max_seq_len"],
        "total_batch_size": total if total.isdigit() else "",
        "window_pattern": window,
        "fp8_recipe": row["fp8"] if row["fp8"] in {"tensorwise", "rowwise"} else "",
    }
    return tuple((name, value) for name, value in settings.items() if value)


def write_words(code: str, settings: Sequence[tuple[str, str]], ranks: int) -> list[str]:
    """The settings as the script of a commit takes them: until December 2025 with `_` in names, then with `-`."""
    given = dict(settings)
    # Which fraction of the validation text is evaluated changes no size.
    batch = int(given["device_batch_size"]) * int(given["max_seq_len"])
    given["eval_tokens"] = str(_EVALUATED_BATCHES * batch * ranks)
    dashed = 'add_argument("--device-batch-size"' in code
    words = [f"--{name.replace('_', '-') if dashed else name}={value}" for name, value in given.items()]
    return [*words, *(["--fp8"] if "fp8_recipe" in given else [])]


def write_data(folder: str, vocabulary: str) -> None:
    """A tokenizer whose tokens are bytes and pairs of bytes, and two files of random words in documents."""
    import pickle

    import pyarrow
    import pyarrow.parquet
    import tiktoken
    import torch

    base, size = Path(folder), int(vocabulary)
    pairs = [bytes((first, second)) for first in range(256) for second in range(256)]
    tokens = [*(bytes((byte,)) for byte in range(256)), *pairs][: size - len(_BOS_TOKENS)]
    specials = {name: len(tokens) + number for number, name in enumerate(_BOS_TOKENS)}
    encoding = tiktoken.Encoding(
        "made-up", pat_str=_PATTERN, mergeable_ranks={token: rank for rank, token in enumerate(tokens)},
        special_tokens=specials,
    )  # fmt: skip
    drawn = random.Random(1)
    words = ["".join(drawn.choices(_LETTERS, k=drawn.randint(2, 9))) for _ in range(5000)]
    texts = [" ".join(drawn.choices(words, k=drawn.randint(50, 900))) for _ in range(_ROW_GROUPS * _DOCUMENTS)]
    for data in ("base_data", "base_data_climbmix"):  # the second since March 2026
        (base / data).mkdir(parents=True, exist_ok=True)
        for number in range(2):  # the last file is for validation
            pyarrow.parquet.write_table(
                pyarrow.table({"text": texts}), base / data / f"shard_{number:05}.parquet", row_group_size=_DOCUMENTS
            )
    (base / "tokenizer").mkdir(exist_ok=True)
    with (base / "tokenizer" / "tokenizer.pkl").open("wb") as file:
        pickle.dump(encoding, file)
    lengths = [*map(len, tokens), *(0 for _ in specials)]
    torch.save(torch.tensor(lengths, dtype=torch.int32), base / "tokenizer" / "token_bytes.pt")
