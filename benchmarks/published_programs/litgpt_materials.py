"""Checkpoints of litgpt without values, instructions longer than a sequence, and the packages of the QLoRA rows."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

from planner.tracing.program.packages import libraries

CONFIGS = {
    "llama-2-7b/lora": "Llama-2-7b-hf",
    "llama-2-7b/qlora": "Llama-2-7b-hf",
    "llama-3-8b/lora": "Llama-3-8B",
    "llama-3-8b/qlora": "Llama-3-8B",
    "llama-3.2-3b/lora": "Llama-3.2-3B",
    "llama-3.2-3b/qlora": "Llama-3.2-3B",
}

QLORA = {
    "llama-2-7b/qlora": ("e5493986", "2.3.0.dev20240428"),
    "llama-3-8b/qlora": ("e5493986", "2.3.0.dev20240428"),
    "llama-3.2-3b/qlora": ("00af8b0d", "2.4.0.dev20240728"),
}
"""litgpt's commit that published the row (2024-07-22, 2024-09-27), and the lightning that its pyproject.toml asks for.
Both ask for bitsandbytes 0.42.0. Later ones (from ae798aba, 2024-10-04) train a second embedding under QLoRA."""


def fill(folder: Path) -> None:
    """A folder for each model, as litgpt converts them, and `rows.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{"instruction": "a", "input": "", "output": "a " * 700}] * 120
    (folder / "rows.json").write_text(json.dumps(rows), encoding="utf-8")
    for name in {*CONFIGS.values()}:
        if not (folder / name / "lit_model.pth").exists():
            _checkpoint(folder / name, name)


def _checkpoint(place: Path, name: str) -> None:
    import torch

    with libraries.declared():  # its packages import torchvision
        from litgpt import GPT, Config
        from litgpt.utils import save_config
    from tokenizers import Tokenizer, models, pre_tokenizers
    from torch._subclasses.fake_tensor import FakeTensorMode
    from transformers import PreTrainedTokenizerFast

    place.mkdir(exist_ok=True)
    config = Config.from_name(name)
    with torch.device("meta"):
        shapes = {key: value.shape for key, value in GPT(config).state_dict().items()}
    with FakeTensorMode():
        content = {key: torch.empty(shape, dtype=torch.bfloat16) for key, shape in shapes.items()}
    with torch.serialization.skip_data(materialize_fake_tensors=True):
        torch.save(content, place / "lit_model.pth")
    save_config(config, place)
    words = Tokenizer(models.WordLevel({"a": 0, "<s>": 1, "</s>": 2}, unk_token="a"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokens = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "a"}
    PreTrainedTokenizerFast(tokenizer_object=words, **tokens).save_pretrained(place)
    (place / "generation_config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": 2}), encoding="utf-8")


def of_its_day(folder: Path, clone: Path, config: str) -> tuple[str, list[Path]]:
    """The checkpoint's folder, relative to `folder`, and what goes before the installed packages, for a QLoRA row."""
    commit, lightning = QLORA[config]
    program = folder / f"litgpt-{commit}"
    if not program.exists():
        program.mkdir()
        archive = subprocess.run(["git", "-C", clone, "archive", commit, "litgpt"], check=True, capture_output=True)
        subprocess.run(["tar", "-x", "-C", program], check=True, input=archive.stdout)
    packages = [_installed(folder, "lightning", lightning), _installed(folder, "bitsandbytes", "0.42.0")]
    finder = packages[1] / "bitsandbytes" / "triton" / "triton_utils.py"
    finder.write_text("def is_triton_available():\n    return False\n", encoding="utf-8")  # it wants Triton 2's `ops`
    return _checkpoint_for(program, folder / CONFIGS[config]).name, [program, *packages]


def _installed(folder: Path, name: str, version: str) -> Path:
    place = folder / f"{name}-{version}"
    if not place.exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", place]
        subprocess.run([*command, f"{name}=={version}"], check=True)
    return place


def _checkpoint_for(program: Path, checkpoint: Path) -> Path:
    """The same checkpoint, its config without the keys that an older litgpt does not know."""
    import yaml

    place = checkpoint.with_name(f"{checkpoint.name}-{program.name}")
    if place.exists():
        return place
    place.mkdir()
    tree = ast.parse((program / "litgpt" / "config.py").read_text(encoding="utf-8"))
    (known,) = (each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == "Config")
    targets = [each.target for each in known.body if isinstance(each, ast.AnnAssign)]
    names = {target.id for target in targets if isinstance(target, ast.Name)}
    for path in checkpoint.iterdir():
        (place / path.name).symlink_to(path.resolve())
    config = place / "model_config.yaml"
    content = yaml.safe_load(config.read_text(encoding="utf-8"))
    config.unlink()
    config.write_text(yaml.safe_dump({key: content[key] for key in content if key in names}), encoding="utf-8")
    return place
