"""Golden files of NVIDIA/Megatron-LM: its functional tests, each with what its last rank had allocated by iteration.

The table is PLANNER_TRUTH/rows-3/megatron_golden_memory.csv, the repository CHECKOUTS/megatron, TransformerEngine of
each version a folder CHECKOUTS/transformer-engine/2.16.0 (`pip install --no-deps --target`), as are mamba-ssm and
causal-conv1d, without their extensions. Golden files are edited without being measured again: the commit that last
changed a file's memory is run, with the torch of its container and those packages of its lock file. Words of the
command are those of the case; data and vocabularies are made up. What the program writes for tensorboard is compared.
Interpreters need tensorboard, pybind11, einops, onnx, onnxscript, triton, transformers, sentencepiece, nvtx, pyyaml.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
import shutil
import string
import struct
import subprocess
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from recorded_run import TRUTH, Change, FamilyOfTable, Figure, Launch, RecordedRun, Repository, call_by

from planner.job.rank_sets import RankSet
from planner.units import MIB

ROWS = TRUTH / "rows-3" / "megatron_golden_memory.csv"
_TESTS = "tests/functional_tests/test_cases"
_RECIPES = "tests/test_utils/recipes"
_GPUS = {
    "a100": ("A100", "A100-SXM-80GB"),
    "h100": ("H100", "H100-SXM-80GB"),
    "gb200": ("GB200", "{total_bytes: 184GiB, arch: sm_100}"),  # its data sheet's 372 GB of two: the catalog has none
}
_TORCH = {
    "25.03": "2.7", "25.04": "2.7", "25.05": "2.8", "25.06": "2.8", "25.09": "2.9", "25.11": "2.10", "26.02": "2.11",
    "26.04": "2.12", "26.06": "2.13",
}  # fmt: skip
"""By NVIDIA's container, of its release notes: builds before the release of that number."""
OLDEST_TORCH = (2, 6)
_OLD_TORCH = {"24.01": "2.2", "24.10": "2.5"}
_CONTAINER_ENGINE = {"25.09": "2.7.0"}
"""TransformerEngine of containers that the lock file does not add one to."""
_FLASH_ATTENTION = "2.7.4"
_KERNELS = Path(__file__).parents[1] / "fused_gradients.py"
"""Of the containers of 2025."""
_ENGINE = "transformer-engine"
_OUTSIDE = (_ENGINE, "mamba-ssm", "causal-conv1d")
_OLDEST_ENGINE = 2, 7
_COMMITTED_ENGINE = {"bee4649c15": "2.5.0", "8382eed6cc": "2.5.0"}
"""By the commit of TransformerEngine that a container is built with, where no lock file has it. The first is one before
2.2, which loads its extension itself; goldens of both differ by what the workspaces of their GPUs do."""
_ENGINE_OF_ARGUMENT = ("retain_pinned_cpu_buffers=", "2.10.0")
"""An argument that Megatron-LM passes since 2026-03-18, and the first TransformerEngine that takes it: LTS goldens of
April 2026 cannot have been measured with the container's own."""
_LOCKED = re.compile(r'^name = "([\w-]+)"\nversion = "([\w.]+)', re.MULTILINE)
_FIGURES = ("peak after the first", "peak after the second", "allocated after the first", "allocated at the end")
_ITERATIONS = 4
_OF_CHECKPOINTS = ("--async-save", "--use-persistent-ckpt-worker")
"""Who writes checkpoints, none of which is reached: a process of its own, which is started first."""
_VOCABULARIES = {
    "vocab.json": 50257, "uncased-vocab.txt": 30522, "cased-vocab.txt": 28996,
    "v01_filtered_data/vocab.txt": 30522, "vocab.txt": 28996,
}  # fmt: skip
"""Of GPT-2 and of BERT, cased and uncased: by the end of a path. The goldens say which of BERT's lay where."""
_HUB = {
    "gpt2": ("gpt2", "GPT2Tokenizer", ("vocab.json", "merges.txt")),
    "bert-large-cased": ("bert", "BertTokenizer", ("cased-vocab.txt",)),
    "bert-large-uncased": ("bert", "BertTokenizer", ("uncased-vocab.txt",)),
}
"""Tokenizers that a program takes of Hugging Face's hub, whose cache is made up: kind, class and files of each."""
_DOCUMENTS, _LENGTH = 2000, 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Golden(RecordedRun):
    """One golden file: the commit of its figures, and where its case is there."""

    commit: str
    folder: str
    packages: tuple[tuple[str, str], ...]
    """Those of `_OUTSIDE` with their versions."""
    figures: tuple[tuple[str, int], ...]
    """Others than the peak, in bytes by their names."""


@dataclass(frozen=True, slots=True)
class Program:
    """What is run: a commit, its script, the words after it, what the case sets in the environment."""

    commit: str
    script: str
    words: tuple[str, ...]
    packages: tuple[tuple[str, str], ...]
    variables: dict[str, str] = field(default_factory=dict)


class Megatron(FamilyOfTable[Golden, Program]):
    """All rows, in the order of the table."""

    name = "megatron"
    decimals = 3
    table = ROWS

    def __init__(self, checkouts: Path | None) -> None:
        super().__init__(checkouts)
        self._checkouts = checkouts or Path()

    def read_runs(self) -> list[Golden]:
        rows = self.read_rows()
        paths = [f"{_TESTS}/{row['case']}/golden_values_{row['golden']}.json" for _, row in rows]
        origins = find_origins(self.repository, paths)
        return [self._read_golden(number, row, *origins[path]) for (number, row), path in zip(rows, paths, strict=True)]

    def _read_golden(self, number: int, row: dict[str, str], commit: str, path: str) -> Golden:
        folder = path.rpartition("/")[0]
        kind, _, platform = row["golden"].removesuffix("_2nd").partition("_")
        container = self._container(commit, kind)
        product, gpu = next((_GPUS[name] for name in _GPUS if name in platform), _GPUS["a100"])
        golden = Golden(
            name=str(number),
            title=f"{row['case']} {row['golden']}",
            torch=_TORCH.get(container, _OLD_TORCH.get(container, "")),
            gpu=gpu,
            product=product,
            ranks=self._ranks(commit, folder, platform),
            allocated=(int(row["max_last"]) / MIB,) * 2,
            step_seconds=float(row.get("iter_time_median") or 0),
            figures=recorded_figures(row),
            commit=commit,
            folder=folder,
            packages=self._packages(commit, kind, container),
        )
        return replace(golden, rank=golden.ranks - 1, obstacle=find_obstacle(golden, row, container))

    def read_written(self, run: Golden, folder: Path, python: str) -> dict[str, Any]:
        output = folder / "outputs" / run.name
        if not (output / "tensorboard").exists():
            return {}
        call_by(python, read_scalars, output / "tensorboard", output / "scalars.json")
        series: dict[str, Any] = json.loads((output / "scalars.json").read_text(encoding="utf-8"))
        return series

    def read_figures(self, run: Golden, result: Mapping[str, Any]) -> list[Figure]:
        classes = result["answer"]["rank_classes"]
        own = next(each for each in classes if run.rank in RankSet.parse(each["ranks"]))
        written = name_figures(result.get("written", {}))
        figures = [Figure("allocated", run.allocated, own["peak"]["allocated_bytes"], self.decimals)]
        for name, recorded in run.figures:
            if name in written:
                figures.append(Figure(name, (recorded / MIB,) * 2, written[name], self.decimals))
        return figures

    @functools.cache  # noqa: B019
    def _packages(self, commit: str, kind: str, container: str) -> tuple[tuple[str, str], ...]:
        """Packages of an environment: those of the lock file, but TransformerEngine as the container has it, unless one
        is added."""
        read = functools.partial(self.repository.read_text, commit)
        locked = dict(reversed(_LOCKED.findall(read("uv.lock"))))
        if kind == "lts" and "--extra te" not in read("docker/Dockerfile.ci.lts"):
            argument, since = _ENGINE_OF_ARGUMENT
            calls = argument in read("megatron/core/extensions/transformer_engine.py")
            locked[_ENGINE] = since if calls else _CONTAINER_ENGINE.get(container, "")
        elif _ENGINE not in locked:
            built = read(f"docker/Dockerfile.ci.{kind}") or read(f"Dockerfile.ci.{kind}")
            at = re.search(r"^ARG TE_COMMIT=(\w{10})", built, re.MULTILINE)
            locked[_ENGINE] = _COMMITTED_ENGINE.get(at[1], "") if at else ""
        return tuple((name, locked[name]) for name in _OUTSIDE if locked.get(name))

    @functools.cache  # noqa: B019
    def _container(self, commit: str, kind: str) -> str:
        """The number of NVIDIA's container of PyTorch that an environment was built from."""
        said = self.repository.read_text(commit, f"docker/.ngc_version.{kind}")
        if not said:
            stages = self.repository.read_text(commit, ".gitlab/stages/01.build.yml")
            stages = stages or self.repository.read_text(commit, ".gitlab/stages/01.test.yml")
            images = dict(re.findall(r"IMAGE: CI_MCORE_(LTS|DEV)_IMAGE.*?BASE_IMAGE: (\S+)", stages, re.DOTALL))
            said = images.get(kind.upper(), "")
        return said.strip().rpartition(":")[2].removesuffix("-py3")

    @functools.cache  # noqa: B019
    def _recipes(self, commit: str) -> dict[str, str]:
        return self.repository.read_below(commit, _RECIPES)

    def _recipe(self, commit: str, folder: str, platform: str) -> str:
        """The text of the recipe that has a case, of its own platform where there are several."""
        model, case = folder.split("/")[-2:]
        having = [
            (path, text) for path, text in self._recipes(commit).items()
            if re.search(rf"\b{re.escape(case)}\b", text) and re.search(rf"^  model: {model}$", text, re.MULTILINE)
        ]  # fmt: skip
        own = [text for path, text in having if ("gb200" in path) == ("gb200" in platform)]
        return next(iter([*own, *(text for _, text in having)]), "")

    def _ranks(self, commit: str, folder: str, platform: str) -> int:
        recipe = self._recipe(commit, folder, platform)
        sizes = {name: int(number) for name, number in re.findall(r"^  (nodes|gpus): (\d+)$", recipe, re.MULTILINE)}
        return sizes.get("nodes", 1) * sizes.get("gpus", 8) if recipe else 0

    def read_program(self, run: Golden) -> Program:
        case = yaml.safe_load(self.repository.read_text(run.commit, f"{run.folder}/model_config.yaml"))
        script = re.search(r"TRAINING_SCRIPT_PATH=([\w./]+)", self._recipe(run.commit, run.folder, run.title))
        words = [word for word in write_words(case["MODEL_ARGS"]) if word not in _OF_CHECKPOINTS]
        return Program(
            run.commit,
            script[1] if script else "pretrain_gpt.py",
            tuple(words),
            run.packages,
            {name: str(value) for name, value in (case.get("ENV_VARS") or {}).items()},
        )

    def write(self, run: Golden, program: Program, folder: Path, python: str) -> Launch:
        own = folder / "programs" / program.commit[:10]
        if not own.exists():
            own.mkdir(parents=True)
            self.repository.write_tree(program.commit, own, ("megatron", "examples", "*.py"))
            call_by(python, build_helpers, own / "megatron" / "core" / "datasets")
        data, output = folder / "data", folder / "outputs" / run.name
        words = list(program.words)
        for word in words:
            if word.startswith("${DATA_PATH}/"):
                call_by(python, write_data, str(data / word.removeprefix("${DATA_PATH}/")))
        call_by(python, write_hub, data / "hub")
        shutil.rmtree(output, ignore_errors=True)
        output.mkdir(parents=True)
        places = {
            "DATA_PATH": data, "DATA_CACHE_PATH": folder / "cache", "TENSORBOARD_PATH": output / "tensorboard",
            "CHECKPOINT_SAVE_PATH": output / "checkpoints", "CHECKPOINT_LOAD_PATH": output / "none",
        }  # fmt: skip
        text = "\n".join(words)
        for name, place in places.items():
            text = text.replace(f"${{{name}}}", str(place))
        return Launch(
            folder=own,
            command=["torchrun", f"--nproc_per_node={run.ranks}", program.script, *text.split("\n")],
            steps=_ITERATIONS,
            options=["--with", f"flash-attn=={_FLASH_ATTENTION}", "--kernels", str(_KERNELS), "--allow-writes"],
            environment={"HF_HOME": str(data / "hub"), "HF_HUB_OFFLINE": "1", **program.variables},
            paths=[str(own), *(str(self._checkouts.absolute() / name / version) for name, version in program.packages)],
        )


def recorded_figures(row: Mapping[str, str]) -> tuple[tuple[str, int], ...]:
    """The figures of a row by their names. In float16 the first iterations step nothing, as their loss overflows by its
    initial scale: what they had is left out."""
    columns = ("max_first", "max_second", "cur_first", "cur_last")
    named = zip(_FIGURES, columns, strict=True)
    return tuple(
        (name, int(row[column])) for name, column in named
        if row[column] and (row["fp16"] != "True" or column == "cur_last")
    )  # fmt: skip


def find_obstacle(golden: Golden, row: Mapping[str, str], container: str) -> str:
    """What is not known that a run needs, or what this family does not do; empty if there is nothing."""
    if not golden.torch:
        return f"torch of the container {container or 'that no file names'} is not known"
    if tuple(map(int, golden.torch.split("."))) < OLDEST_TORCH:
        return f"torch {golden.torch} is older than planner knows"
    engine = dict(golden.packages).get(_ENGINE, "0.0")
    if row["impl"] == "transformer_engine" and tuple(map(int, engine.split(".")[:2])) < _OLDEST_ENGINE:
        return f"TransformerEngine of the container {container} is older than planner knows"
    if not golden.ranks:
        return "nothing says its number of ranks"
    if row["first_step"] != "1":
        return "it goes on from a checkpoint of all ranks"
    return ""


def find_origins(repository: Repository, paths: Sequence[str]) -> dict[str, tuple[str, str]]:
    """The commit that last changed the memory of each golden file, and its path there."""
    changes = repository.read_changes(_TESTS)
    histories = {path: list(_versions(changes, path)) for path in paths}
    blobs = list({blob for versions in histories.values() for _, _, blob in versions})
    memory = dict(zip(blobs, map(_memory_of, repository.read_blobs(blobs)), strict=True))
    origins = {}
    for path, versions in histories.items():
        same = itertools.takewhile(lambda version: memory[version[2]] == memory[versions[0][2]], versions)  # noqa: B023
        origins[path] = list(same)[-1][:2]
    return origins


def _versions(changes: Sequence[Change], path: str) -> Iterator[tuple[str, str, str]]:
    """Commit, path and content of a file, newest first, through its renames."""
    for change in changes:
        if change.path == path and change.kind != "D":
            yield change.commit, path, change.blob
            if change.kind == "A":
                return
            path = change.old_path


def _memory_of(text: str) -> tuple[Any, ...]:
    """The series of memory of a golden file; formats differ, and only whether they are equal counts."""
    golden = json.loads(text) if text.strip() else {}  # one was committed empty before it was filled
    series = [golden.get(name, {}).get("values") for name in ("mem-allocated-bytes", "mem-max-allocated-bytes")]
    return tuple(tuple(values.values()) if isinstance(values, dict) else tuple(values or ()) for values in series)


def name_figures(series: Mapping[str, Mapping[str, float]]) -> dict[str, int]:
    """The figures of a run among what it wrote by iteration."""
    peaks, allocated = (
        {int(step): int(value) for step, value in series.get(name, {}).items()}
        for name in ("mem-max-allocated-bytes", "mem-allocated-bytes")
    )
    if not peaks:
        return {}
    values = peaks[1], peaks.get(2, 0), allocated[1], allocated[max(allocated)]
    return {name: value for name, value in zip(_FIGURES, values, strict=True) if value}


def write_words(arguments: Mapping[str, Any]) -> Iterator[str]:
    """The words of a case, as tests/functional_tests/shell_test_utils/_run_training.sh makes them."""
    for name, value in arguments.items():
        yield name
        if value is True:
            continue
        text = str(value).strip()
        yield from text[1:-1].split() if re.fullmatch(r"\[.*\]", text) else [text]


def build_helpers(folder: str) -> None:
    """The compiled part of the data sets, which the job builds when it starts."""
    import pybind11

    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    includes = [f"-I{place}" for place in (pybind11.get_include(), sysconfig.get_path("include"))]
    name = "helpers_cpp" if (Path(folder) / "helpers.py").exists() else "helpers"
    command = ["g++", "-O2", "-shared", "-std=c++17", "-fPIC", *includes, "helpers.cpp", "-o", f"{name}{suffix}"]
    subprocess.run(command, cwd=folder, check=True)


def write_data(file: str, name: str = "") -> None:
    """A file that a case names, made up: a vocabulary, or a data set of documents by its prefix."""
    path = Path(file)
    path.parent.mkdir(parents=True, exist_ok=True)
    size = next((size for end, size in _VOCABULARIES.items() if (name or file).endswith(end)), 0)
    if path.exists() or path.with_name(f"{path.name}.idx").exists():
        return
    if path.name == "merges.txt":
        path.write_text("#version: 0.2\n", encoding="utf-8")
    elif path.suffix == ".json":
        tokens = [*_byte_characters(), *(f"made{number}" for number in range(256, size - 1)), "<|endoftext|>"]
        path.write_text(json.dumps({token: number for number, token in enumerate(tokens)}), encoding="utf-8")
    elif path.suffix == ".txt":
        tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *string.ascii_letters]
        tokens += [f"made{number}" for number in range(len(tokens), size)]
        path.write_text("\n".join(tokens), encoding="utf-8")
    else:
        # T5 masks sentences too (megatron/core/datasets/t5_dataset.py), though its files are called documents.
        write_indexed(path, sentences=20 if path.name.endswith("sentence") or "t5" in path.name else 1)


def write_hub(folder: str) -> None:
    """The cache of Hugging Face's hub with the tokenizers that programs take of it."""
    for name, (kind, tokenizer, files) in _HUB.items():
        place = Path(folder) / "hub" / f"models--{name}"
        files_there = place / "snapshots" / "made-up"
        for file in files:
            write_data(str(files_there / file.rpartition("-")[2]), file)
        (place / "refs").mkdir(exist_ok=True)
        (place / "refs" / "main").write_text("made-up", encoding="utf-8")
        (files_there / "config.json").write_text(json.dumps({"model_type": kind}), encoding="utf-8")
        (files_there / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": tokenizer}), encoding="utf-8")


def _byte_characters() -> list[str]:
    """The 256 characters that stand for bytes in GPT-2's vocabulary."""
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printed]
    return [chr(byte) for byte in printed] + [chr(256 + number) for number in range(len(others))]


def write_indexed(prefix: Path, sentences: int) -> None:
    """A data set of Megatron's format: documents of sentences of random tokens."""
    import numpy

    count = _DOCUMENTS * sentences
    length = _LENGTH // sentences
    numpy.random.default_rng(1).integers(300, 20000, count * length, dtype=numpy.uint16).tofile(f"{prefix}.bin")
    index = struct.pack("<9sQBQQ", b"MMIDIDX\x00\x00", 1, 8, count, _DOCUMENTS + 1)
    index += numpy.full(count, length, numpy.int32).tobytes()
    index += (numpy.arange(count, dtype=numpy.int64) * length * 2).tobytes()
    index += (numpy.arange(_DOCUMENTS + 1, dtype=numpy.int64) * sentences).tobytes()
    Path(f"{prefix}.idx").write_bytes(index)


def read_scalars(folder: str, output: str) -> None:
    """The memory that the program wrote for tensorboard, by iteration."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(folder, size_guidance={"scalars": 0})
    events.Reload()
    tags = [name for name in events.Tags()["scalars"] if name.startswith("mem-")]
    series = {name: {event.step: event.value for event in events.Scalars(name)} for name in tags}
    Path(output).write_text(json.dumps(series), encoding="utf-8")
