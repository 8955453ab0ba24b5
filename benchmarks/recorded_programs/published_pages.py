"""Runs whose figures stand on a page of their repository, with the command: three repositories, no table.

Each repository is a git directory of its name in the folder of checkouts (DeepSpeedExamples, LLMs-from-scratch,
nanoVLM). What a program would fetch (texts, tokenizers, weights, pictures) is made up in the same sizes.
"""

from __future__ import annotations

import json
import random
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recorded_run import Family, Figure, Launch, RecordedRun, Repository, call_by

from planner.units import GIB, MIB

_COMMIT = "0" * 40
"""Of what is made up in the hub's cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRun(RecordedRun):
    """One run: the command in a folder of the repository, and after how many iterations the figure was printed."""

    repository: str
    commit: str
    folder: str
    paths: tuple[str, ...]
    """What is written of the repository."""
    command: str
    steps: int
    changes: tuple[tuple[str, str], ...] = ()
    """Of the script, as the page describes them in words: an expression and what stands for it."""
    held: tuple[float, float] = (0, 0)
    """What the program said to be allocated at `held_after`, in MiB as `allocated`."""
    held_after: str = ""
    """The phase at whose last end that was."""


def printed(text: str, unit: int = MIB) -> tuple[float, float]:
    """Lowest and highest figure in MiB that is printed so."""
    half = 0.5 / 10 ** len(text.partition(".")[2])
    return (float(text) - half) * unit / MIB, (float(text) + half) * unit / MIB


class PublishedPages(Family[PageRun, PageRun]):
    """All runs of the three repositories."""

    name = "pages"
    decimals = 2

    def __init__(self, checkouts: Path | None) -> None:
        self._checkouts = checkouts
        names = dict.fromkeys(run.repository for run in RUNS)
        absent = [name for name in names if checkouts is None or not (checkouts / name).is_dir()]
        self.missing = f"git directories {', '.join(absent)} in the folder that --checkouts names" if absent else ""

    def read_runs(self) -> list[PageRun]:
        return list(RUNS)

    def read_program(self, run: PageRun) -> PageRun:
        return run

    def write(self, run: PageRun, program: PageRun, folder: Path, python: str) -> Launch:
        assert self._checkouts is not None
        own = folder / "programs" / run.name
        own.mkdir(parents=True, exist_ok=True)
        Repository(self._checkouts / run.repository).write_tree(program.commit, own, program.paths)
        work = own / program.folder
        command = shlex.split(program.command)
        script = work / next(word for word in command if word.endswith(".py"))
        script.write_text(change(script.read_text(encoding="utf-8"), program.changes), encoding="utf-8")
        data = folder / "data" / run.repository
        if not data.exists():
            call_by(python, DATA[run.repository], data)
        for part in data.iterdir():
            if not (work / part.name).exists():
                (work / part.name).symlink_to(part)
        return Launch(
            folder=work, command=command, steps=program.steps,
            environment={"HF_HUB_CACHE": str(data / "hub")},
        )  # fmt: skip

    def read_figures(self, run: PageRun, result: Mapping[str, Any]) -> list[Figure]:
        figures = super().read_figures(run, result)
        if run.held_after:
            phases = result["answer"]["rank_classes"][0]["phases"]
            ends = [phase["end_allocated_bytes"] for phase in phases if phase["phase"] == run.held_after]
            figures.append(Figure("held", run.held, ends[-1], self.decimals))
        return figures


def change(code: str, changes: Iterable[tuple[str, str]]) -> str:
    """The code with each expression replaced wherever it stands; raises AssertionError where it does not."""
    for expression, text in changes:
        code, times = re.subn(expression, text, code)
        assert times, f"nothing in the script reads as {expression}"
    return code


def write_hub_model(hub: Path, name: str, files: Mapping[str, Any]) -> Path:
    """A model of the hub in its cache, with files of JSON; returns its folder."""
    model = hub / f"models--{name.replace('/', '--')}"
    snapshot = model / "snapshots" / _COMMIT
    snapshot.mkdir(parents=True)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text(_COMMIT, encoding="utf-8")
    for file, content in files.items():
        (snapshot / file).write_text(json.dumps(content), encoding="utf-8")
    return snapshot


def tokenizer_files(vocabulary: int, end: str) -> dict[str, Any]:
    """Files of a tokenizer of whole words: `w0`, `w1` and so on, the last is the end of a text."""
    tokens = {f"w{number}": number for number in range(vocabulary - 1)} | {end: vocabulary - 1}
    added = {
        "id": vocabulary - 1, "content": end, "special": True,
        "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
    }  # fmt: skip
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
        "decoder": None, "added_tokens": [added], "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": tokens, "unk_token": end},
    }  # fmt: skip
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end, "unk_token": end}
    return {"tokenizer.json": tokenizer, "tokenizer_config.json": names}


def write_dataset_page(folder: Path, config: str, pattern: str) -> None:
    """A folder that `load_dataset` reads as a data set of the hub with one configuration."""
    folder.mkdir(parents=True)
    page = {"configs": [{"config_name": config, "data_files": pattern}]}
    (folder / "README.md").write_text(f"---\n{json.dumps(page)}\n---\n", encoding="utf-8")


def write_wikitext(folder: str) -> None:
    """GPT-2's tokenizer and paragraphs, of which the program takes a twentieth."""
    data = Path(folder)
    write_hub_model(data / "hub", "gpt2", {"config.json": {"model_type": "gpt2"}, **tokenizer_files(50257, "<end>")})
    write_dataset_page(data / "wikitext", "wikitext-103-raw-v1", "train.jsonl")
    drawn = random.Random(1)
    paragraphs = [" ".join(f"w{drawn.randrange(50256)}" for _ in range(300)) for _ in range(4000)]
    lines = "".join(f"{json.dumps({'text': text})}\n" for text in paragraphs)
    (data / "wikitext" / "train.jsonl").write_text(lines, encoding="utf-8")


_NOVEL_TOKENS = 475_000
"""So that nine tenths are 417 windows of 1,024: 52 batches of 8, as in the page's last epoch, 728 to 779."""
_TIKTOKEN = '''"""In place of encodings that tiktoken fetches: bytes, the prompt's words, words of 3 or 4 letters."""
import itertools, string

def gpt2():
    words = (f" {''.join(word)}" for size in (3, 4) for word in itertools.product(string.ascii_lowercase, repeat=size))
    prompt = ["Every", " effort", " moves"]
    tokens = [*(bytes([byte]) for byte in range(256)), *(word.encode() for word in (*prompt, *words))][:50256]
    ranks = {token: rank for rank, token in enumerate(tokens)}
    pattern = " ?[a-zA-Z]+|[^a-zA-Z]"
    return {"name": "gpt2", "pat_str": pattern, "mergeable_ranks": ranks, "special_tokens": {"<|endoftext|>": 50256}}

ENCODING_CONSTRUCTORS = {"gpt2": gpt2}
'''


def write_novel(folder: str) -> None:
    """A text of about as many tokens as the novel, and an encoding of GPT-2's size."""
    data = Path(folder)
    (data / "tiktoken_ext").mkdir(parents=True)
    (data / "tiktoken_ext" / "__init__.py").touch()
    (data / "tiktoken_ext" / "made_up.py").write_text(_TIKTOKEN, encoding="utf-8")
    drawn, letters = random.Random(1), "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(drawn.choices(letters, k=3)) for _ in range(_NOVEL_TOKENS)]
    (data / "middlemarch.txt").write_text(" " + " ".join(words), encoding="utf-8")


_VISION = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
_VISION |= {"image_size": 256, "patch_size": 16, "model_type": "siglip_vision_model"}
_LANGUAGE = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9}
_LANGUAGE |= {"num_key_value_heads": 3, "vocab_size": 49152, "max_position_embeddings": 8192, "model_type": "llama"}
_PICTURES = 1024


def write_pictures(folder: str) -> None:
    """Sizes of SigLIP2-base and SmolLM2-135M, of their weights those that the loader cannot do without, and questions
    about one picture that fit beside its tokens into 128."""
    import numpy
    import torch
    from datasets import Dataset, Features, Image, Value
    from PIL import Image as Pictures
    from safetensors.torch import save_file

    data = Path(folder)
    vision = write_hub_model(
        data / "hub", "google/siglip2-base-patch16-256",
        {"config.json": {"model_type": "siglip", "vision_config": _VISION}},
    )  # fmt: skip
    wide = _VISION["hidden_size"]
    names = [f"vision_model.encoder.layers.{layer}.self_attn.{part}_proj" for layer in range(12) for part in "qkv"]
    shapes = {
        f"{name}.{kind}": shape for name in names for kind, shape in (("weight", (wide, wide)), ("bias", (wide,)))
    }
    tensors = {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}
    save_file(tensors, vision / "model.safetensors")
    language = write_hub_model(data / "hub", "HuggingFaceTB/SmolLM2-135M-Instruct", {"config.json": _LANGUAGE})
    save_file({"unused": torch.zeros(1)}, language / "model.safetensors")
    write_hub_model(data / "hub", "HuggingFaceTB/SmolLM2-360M-Instruct", tokenizer_files(49152, "<|im_end|>"))
    write_dataset_page(data / "HuggingFaceM4" / "the_cauldron", "ai2d", "train.parquet")
    picture = Pictures.fromarray(numpy.random.default_rng(1).integers(0, 255, (64, 64, 3), dtype=numpy.uint8))
    kinds = Features({"images": [Image()], "texts": [{"user": Value("string"), "assistant": Value("string")}]})
    rows = {
        "images": [[picture]] * _PICTURES,
        "texts": [[{"user": "w1 w2 w3 w4", "assistant": "w5"}]] * _PICTURES,
    }
    Dataset.from_dict(rows, features=kinds).to_parquet(data / "HuggingFaceM4" / "the_cauldron" / "train.parquet")


DATA = {"DeepSpeedExamples": write_wikitext, "LLMs-from-scratch": write_novel, "nanoVLM": write_pictures}


def _deepspeed(config: str, allocated: str, peak: str) -> PageRun:
    return PageRun(
        name=f"deepspeed-{config}", title=f"ZeRO-3, 6.86 B parameters, {config}", torch="2.9", gpu="H100-SXM-80GB",
        product="H100", ranks=4, allocated=printed(peak, GIB), held=printed(allocated, GIB),
        held_after="optimizer_step", repository="DeepSpeedExamples", commit="45b4b7156c8794a3452a5a7d03dbd8d797068569",
        folder="training/bf16_master_weight", paths=("training/bf16_master_weight",), steps=5,
        command=f"deepspeed --num_gpus=4 train.py --deepspeed_config configs/{config}.json --num_layers 32"
        " --hidden_dim 4096 --num_heads 32 --batch_size 1 --num_steps 1000 --activation_checkpointing"
        f" --loss_log_file logs/{config}_loss.csv --use_real_data --seed 42",
    )  # fmt: skip


_MASK = (
    (r"self\.register_buffer\(\"mask\".*", ""),
    (r"self\.mask\.bool\(\)\[.*", "torch.ones(num_tokens, num_tokens, device=x.device).triu(1).bool()"),
)
_FUSED = ((r"weight_decay=settings\[\"weight_decay\"\]", r"\g<0>, fused=True"),)
_BFLOAT16 = ((r"model\.to\(device\)", r"\g<0>.to(torch.bfloat16)"),)
_CLASSES = ((r"= LayerNorm\(", "= nn.LayerNorm("), (r"\bGELU\(\)", 'nn.GELU(approximate="tanh")'))
_EAGER = ((r"model = torch\.compile\(model\)", ""),)
_BATCH, _VOCABULARY = (r"(\"batch_size\": )32", r"\g<1>8"), (r"50304", "50257")


def _novel(
    name: str, script: str, reserved: str, *changes: tuple[str, str], held: str = "", ranks: int = 1, steps: int = 54
) -> PageRun:
    return PageRun(
        name=f"novel-{name}", title=name.replace("-", " "), torch="2.6", gpu="A100-SXM-40GB", product="A100",
        ranks=ranks, reserved=printed(reserved, GIB), held=printed(held, GIB) if held else (0, 0),
        held_after="backward" if held else "", repository="LLMs-from-scratch",
        commit="28c65cdfbc3338e2e040016eea4b7fdf556e4d57", folder="ch05/10_llm-training-speed",
        paths=("ch05/10_llm-training-speed",), steps=steps, changes=changes,
        command=f"torchrun --nproc_per_node={ranks} {script}" if ranks > 1 else f"python {script}",
    )  # fmt: skip


def _vision(batch: int, peak: str, loaded: str = "") -> PageRun:
    return PageRun(
        name=f"nanovlm-{batch}", title=f"batch {batch}", torch="2.7", gpu="H100-SXM-80GB", product="H100", ranks=1,
        allocated=printed(peak), held=printed(loaded) if loaded else (0, 0), held_after="load" if loaded else "",
        repository="nanoVLM", commit="91a3b9378fc19c43a12866832da1792928103d22", folder=".",
        paths=("data", "models", "measure_vram.py"), command="python measure_vram.py",
        steps=2 * batch.bit_length(),
    )  # fmt: skip


_PEAKS = "4448.58 4465.39 4532.29 5373.46 7604.36 12074.31 20995.06 38834.19 74561.08"
RUNS = (
    _deepspeed("baseline", "25.74", "31.38"),
    _deepspeed("bf16_full", "16.17", "18.93"),
    _novel("original", "00_orig.py", "26.2617", held="2.5069"),
    _novel("mask-on-the-fly", "00_orig.py", "26.2422", *_MASK),
    _novel("fused-optimizer", "00_orig.py", "26.2422", *_MASK, *_FUSED),
    _novel("bfloat16", "00_orig.py", "13.7871", *_MASK, *_FUSED, *_BFLOAT16),
    _novel("torch-classes", "00_orig.py", "11.5645", *_MASK, *_FUSED, *_BFLOAT16, *_CLASSES),
    _novel("flash-attention", "01_opt_single_gpu.py", "5.9004", _BATCH, _VOCABULARY, *_EAGER),
    _novel("compiled", "01_opt_single_gpu.py", "6.1875", _BATCH, _VOCABULARY),
    _novel("padded-vocabulary", "01_opt_single_gpu.py", "5.8906", _BATCH),
    _novel("batch-32", "01_opt_single_gpu.py", "22.5078", steps=15),
    _novel("batch-32-on-4-gpus", "02_opt_multi_gpu_ddp.py", "22.7969", ranks=4, steps=15),
    *(_vision(2**power, peak, "871.44" if not power else "") for power, peak in enumerate(_PEAKS.split())),
)
"""DeepSpeedExamples: training/bf16_master_weight/README.md; LLMs-from-scratch: ch05/10_llm-training-speed/README.md,
after the first of 15 epochs; nanoVLM: README.md, batches of one process by their order, two iterations each."""
