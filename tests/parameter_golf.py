"""`make golf`: runs of openai/parameter-golf, unedited on paper with their torch, beside the peaks that rank 0 printed.

Rows are drawn by a seed (tests/golf_rows.py says how, and what it needs) or given by their numbers. Each runs in a
process of its own under `planner run`, with the settings that its log prints and data that is made up; what it came to
is kept (`results/` in the folder), so that a run that was ended goes on where it was. Hence outside CI.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from golf_rows import Program, Repository, Row, can_be_run, draw_rows, read_program, read_rows
from speedrun import error_of, error_percent, peaks_of, read_pythons, run_planner, start_with, summarise, write_tokens

from planner.runtime.user_cache import user_cache
from planner.units import MIB

_ROOT = Path(__file__).parents[1]
_TRAIN_TOKENS, _VALIDATION_TOKENS = 4_000_000, 2_097_152
"""Fewer than there were: what is read stays on the host, but for a batch."""
_WARMUP_STEPS, _STEPS_AFTER_WARMUP = 3, 4
"""Warm-up steps do all the same, mostly 20 of them. The first step after them comes after an evaluation."""
_WORDS, _LETTERS = 40_000, "abcdefghijklmnopqrstuvwxyz"


def write_tokenizer(path: Path, vocabulary: int) -> None:
    """A tokenizer of so many tokens, made of random words: pairs of bytes, with all bytes as a last resort."""
    import sentencepiece

    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn = random.Random(1)
    text = path.with_suffix(".txt")
    words = ["".join(drawn.choices(_LETTERS, k=drawn.randint(2, 9))) for _ in range(_WORDS)]
    text.write_text("\n".join(" ".join(words[i : i + 10]) for i in range(0, _WORDS, 10)), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(path.with_suffix("")), vocab_size=vocabulary, model_type="bpe",
        byte_fallback=True, minloglevel=2,
    )  # fmt: skip
    text.unlink()


def write_data(folder: Path, program: Program) -> dict[str, str]:
    """The data of a program, and the settings that say where it lies."""
    vocabulary = program.vocabulary
    data = folder / f"data-{vocabulary}"
    shards = data / "datasets" / f"fineweb10B_sp{vocabulary}"
    shards.mkdir(parents=True, exist_ok=True)
    train = folder / f"train-{vocabulary}.bin"
    if not train.exists():
        write_tokens(train, _TRAIN_TOKENS, vocabulary - 1)
    for number in range(2):
        if not (shards / f"fineweb_train_{number:06}.bin").exists():
            (shards / f"fineweb_train_{number:06}.bin").hardlink_to(train)
    if not (shards / "fineweb_val_000000.bin").exists():
        write_tokens(shards / "fineweb_val_000000.bin", _VALIDATION_TOKENS + 1, vocabulary - 1)
    tokenizer = folder / "tokenizers" / f"fineweb_{vocabulary}_bpe.model"
    write_tokenizer(tokenizer, vocabulary)
    if not (data / "tokenizers").exists():
        (data / "tokenizers").symlink_to(tokenizer.parent)
    return {"DATA_DIR": "./data/", "DATA_PATH": f"./data/datasets/{shards.name}",
            "TOKENIZER_PATH": f"./data/tokenizers/{tokenizer.name}"} | {"_": str(data)}  # fmt: skip


def write_program(row: Row, program: Program, folder: Path) -> Path:
    """The script as it ran, in a folder with the modules beside it."""
    own = folder / "programs" / str(row.number)
    own.mkdir(parents=True, exist_ok=True)
    for name, text in {**program.beside, Path(row.script).name: program.code}.items():
        (own / name).write_text(text, encoding="utf-8")
    (own / "logs").mkdir(exist_ok=True)
    return own / Path(row.script).name


def run(row: Row, program: Program, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """One row under `planner run`: its answer, or its error; with the seconds of a processor."""
    warmup_steps = min(program.warmup_steps, _WARMUP_STEPS)
    settings = write_data(folder, program) | {"WARMUP_STEPS": str(warmup_steps)}
    data = Path(settings.pop("_"))
    path = write_program(row, program, folder)
    beside = path.parent / "data"
    beside.unlink(missing_ok=True)
    beside.symlink_to(data)
    python = options.pythons.get(row.torch, sys.executable)
    launched = ["torchrun", "--standalone", f"--nproc_per_node={row.world}"] if program.is_launched else ["python"]
    command = [
        python, "-m", "planner", "run", "--format", "json", "--ranks", "0", "--gpu", row.gpu,
        "--steps", str(options.steps or warmup_steps + _STEPS_AFTER_WARMUP),
        *(["--with", "flash-attn,flash-attn-3"] if program.has_flash_attention else []),
        "--seconds", str(options.seconds), "--", *launched, path.name,
    ]  # fmt: skip
    searched = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    environment = start_with(python, searched) | program.settings | settings
    return {"key": _key(row, program, options), **run_planner(command, path.parent, environment)}


def _key(row: Row, program: Program, options: argparse.Namespace) -> str:
    text = program.code + json.dumps(
        [program.settings, program.is_launched, program.has_flash_attention, options.steps]
    )
    return f"{hashlib.sha256(text.encode()).hexdigest()[:16]} python={options.pythons.get(row.torch, '')}"


def _results(rows: list[Row], repository: Repository, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for row in rows:
        kept = options.folder / "results" / f"{row.number}.json"
        result = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
        program = read_program(row, repository)
        is_done = "answer" in result and result["key"] == _key(row, program, options)
        if not options.shown and (options.again or not is_done):
            print(f"running {row.number}: {row.script}", file=sys.stderr, flush=True)
            result = run(row, program, options.folder, options)
            kept.parent.mkdir(exist_ok=True)
            kept.write_text(json.dumps(result), encoding="utf-8")
        yield result


def _line(row: Row, result: dict[str, Any]) -> str:
    cells = [str(row.number), Path(row.script).parent.name[:44], row.torch, row.product.removeprefix("NVIDIA ")]
    cells += [str(row.world), str(row.allocated), str(row.reserved)]
    if "answer" not in result:
        return " | ".join((*cells, "", "", "", "", error_of(result)[:200], str(result.get("seconds", ""))))
    for peak, recorded in zip(peaks_of(result["answer"]), (row.allocated, row.reserved), strict=True):
        cells += [f"{peak / MIB:.1f}", f"{error_percent(peak, (recorded, recorded)):+.3f} %"]
    seen = result["answer"]["seen"].get("eval", 0)
    return " | ".join((*cells, f"{seen} evaluations", str(result["seconds"])))


def main() -> int:
    """Prints one line a row, and the medians; 0 if every row that was drawn ran."""
    parser = argparse.ArgumentParser(description="Recorded runs of parameter-golf on paper, beside what they printed.")
    parser.add_argument("rows", nargs="*", type=int, help="numbers of rows (default: those of the draw)")
    parser.add_argument("--seed", type=int, default=25, help="of the draw (default: 25)")
    parser.add_argument("--count", type=int, default=40, help="how many are drawn (default: 40)")
    parser.add_argument("--folder", type=Path, default=user_cache() / "golf", help="data, programs and results")
    parser.add_argument("--repository", type=Path, default=os.environ.get("PLANNER_GOLF"), help="a git directory")
    parser.add_argument("--steps", type=int, default=0, help="iterations (default: four after the warm-up)")
    parser.add_argument("--seconds", type=float, default=1800, help="how long one may take (default: 1800)")
    parser.add_argument(
        "--pythons", type=read_pythons, default={}, help="an interpreter for each torch: 2.7=/a/bin/python,2.9=…"
    )
    parser.add_argument("--again", action="store_true", help="run what was run before, too")
    parser.add_argument("--shown", action="store_true", help="run nothing, show what there is")
    options = parser.parse_args()
    if options.repository is None:
        parser.error("no copy of the repository: name its git directory with --repository or in PLANNER_GOLF")
    options.folder.mkdir(parents=True, exist_ok=True)
    repository = Repository(options.repository)
    known = list(read_rows(repository))
    if options.rows:
        chosen = [each for each in known if each.number in options.rows]
    else:
        chosen = draw_rows([each for each in known if can_be_run(each)], options.count, options.seed)
    print(
        "row | run | torch | GPU | ranks | recorded allocated | reserved | allocated (MiB) | error | reserved (MiB) "
        "| error | seen | seconds"
    )
    errors: dict[str, list[float]] = {"allocated": [], "reserved": [], "reserved after an evaluation": []}
    failed = 0
    for row, result in zip(chosen, _results(chosen, repository, options), strict=True):
        print(_line(row, result), flush=True)
        failed += "answer" not in result
        if "answer" in result:
            allocated, reserved = peaks_of(result["answer"])
            errors["allocated"].append(abs(error_percent(allocated, (row.allocated, row.allocated)) or 0.0))
            errors["reserved"].append(abs(error_percent(reserved, (row.reserved, row.reserved)) or 0.0))
            errors["reserved after an evaluation"] += (
                errors["reserved"][-1:] if result["answer"]["seen"]["eval"] else []
            )
    return summarise(errors, f"{failed} of {len(chosen)} rows did not run", failed)


if __name__ == "__main__":
    raise SystemExit(main())
