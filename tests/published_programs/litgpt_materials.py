"""Checkpoints of litgpt without values, and instructions of which each is longer than a sequence."""

from __future__ import annotations

import json
from pathlib import Path

from planner.running import vision_operators

CONFIGS = {
    "llama-2-7b/lora": "Llama-2-7b-hf",
    "llama-2-7b/qlora": "Llama-2-7b-hf",
    "llama-3-8b/lora": "Llama-3-8B",
    "llama-3-8b/qlora": "Llama-3-8B",
    "llama-3.2-3b/lora": "Llama-3.2-3B",
    "llama-3.2-3b/qlora": "Llama-3.2-3B",
}


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

    with vision_operators.declared():  # its packages import torchvision
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
