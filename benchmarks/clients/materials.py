"""What the programs of others are given to train on: tiny models, tokenizers, data sets, made without a network.

`python materials.py FOLDER` fills a folder. Everything is seeded, and no value in it has a meaning.
"""

from __future__ import annotations

import json
import random
import shutil
import struct
import sys
from pathlib import Path

WORDS = 400
"""Of the tokenizer, besides its special words."""
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]
CHAT = (
    "{% for message in messages %}<s>{{ message['role'] }} {{ message['content'] }} </s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant {% endif %}"
)
SIZES = {
    "vocab_size": 512, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip


def make(folder: Path) -> None:
    """All of it."""
    random.seed(1)
    folder.mkdir(parents=True, exist_ok=True)
    words(folder)
    language_models(folder)
    pictures(folder / "pictures")
    tokens(folder)
    torchtitan_assets(folder / "tests" / "assets")
    torchtune_configs(folder / "tune")
    litgpt_model(folder)
    boxes(folder / "yolo")


def sentence(count: int = 24) -> str:
    return " ".join(f"w{random.randrange(WORDS - 2)}" for _ in range(count))


def words(folder: Path) -> None:
    """Rows for every kind of fine-tuning: texts, chats, prompts with answers, preferences, labels, pairs."""
    chats = [[{"role": "user", "content": sentence()}, {"role": "assistant", "content": sentence()}] for _ in range(64)]
    tables = {
        "texts": [{"text": sentence(48)} for _ in range(64)],
        "chats": [{"messages": each} for each in chats],
        "prompts": [{"prompt": each[:1]} for each in chats],
        "preferences": [{"prompt": sentence(8), "chosen": sentence(), "rejected": sentence()} for _ in range(64)],
        "judged": [{"prompt": sentence(8), "completion": sentence(), "label": n % 2 == 0} for n in range(64)],
        "instructions": [{"instruction": sentence(8), "input": "", "output": sentence()} for _ in range(64)],
    }
    for name, rows in tables.items():
        (folder / name).mkdir(exist_ok=True)
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        for split in ("train", "test"):
            (folder / name / f"{split}.jsonl").write_text(lines, encoding="utf-8")
    (folder / "instructions.json").write_text(json.dumps(tables["instructions"]), encoding="utf-8")
    (folder / "corpus").mkdir(exist_ok=True)
    (folder / "corpus" / "all.txt").write_text("\n".join(sentence(60) for _ in range(400)), encoding="utf-8")


def language_models(folder: Path) -> None:
    """A Llama and a BERT of transformers, with their tokenizer, as `from_pretrained` reads them."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import (
        BertConfig,
        BertForMaskedLM,
        LlamaConfig,
        LlamaForCausalLM,
        LlamaForSequenceClassification,
        PreTrainedTokenizerFast,
    )

    vocabulary = {word: at for at, word in enumerate([*SPECIAL, "user", "assistant", *(f"w{n}" for n in range(WORDS))])}
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    named = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, model_max_length=512, mask_token="<unk>", **named)
    tokenizer.cls_token, tokenizer.sep_token, tokenizer.chat_template = "<s>", "</s>", CHAT
    places = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": 512}
    llama = LlamaConfig(**SIZES, num_key_value_heads=2, **places)
    for name, model in (
        ("llama", LlamaForCausalLM(llama)),
        ("judge", LlamaForSequenceClassification(LlamaConfig(**SIZES, num_labels=1, **places))),
        ("bert", BertForMaskedLM(BertConfig(**SIZES, pad_token_id=0, max_position_embeddings=512))),
    ):
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)


def pictures(folder: Path) -> None:
    """Two classes of pictures, in the folders that torchvision's ImageFolder and timm read."""
    from PIL import Image

    for split in ("train", "val"):
        for kind in ("cat", "dog"):
            place = folder / split / kind
            place.mkdir(parents=True, exist_ok=True)
            for number in range(52 if split == "train" else 8):
                Image.frombytes("RGB", (64, 64), random.randbytes(64 * 64 * 3)).save(place / f"{number}.jpg")


def tokens(folder: Path) -> None:
    """Whole numbers of two bytes, as nanoGPT and its kin keep them."""
    place = folder / "shakespeare_char"
    place.mkdir(exist_ok=True)
    for split in ("train", "val"):
        (place / f"{split}.bin").write_bytes(struct.pack("<20000H", *(random.randrange(60) for _ in range(20000))))


def torchtitan_assets(folder: Path) -> None:
    """Where its debug models look for their tokenizer and their data."""
    model, assets = folder.parents[1] / "llama", folder / "tokenizer"
    assets.mkdir(parents=True, exist_ok=True)
    (folder / "c4_test").mkdir(exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(model / name, assets / name)
    rows = "".join(json.dumps({"text": sentence(200)}) + "\n" for _ in range(400))
    (folder / "c4_test" / "data.json").write_text(rows, encoding="utf-8")


_TUNE = """
output_dir: tune_out
tokenizer:
  _component_: torchtune.models.llama2.llama2_tokenizer
  path: tune/tokenizer.model
  max_seq_len: 128
checkpointer:
  _component_: torchtune.training.FullModelHFCheckpointer
  checkpoint_dir: llama
  checkpoint_files: [model.safetensors]
  recipe_checkpoint: null
  output_dir: tune_out
  model_type: LLAMA2
model:
  _component_: torchtune.models.llama2.{model}
  vocab_size: 512
  num_layers: 2
  num_heads: 4
  num_kv_heads: 2
  embed_dim: 128
  max_seq_len: 512
  intermediate_dim: 256
{adapter}
dataset: {{_component_: {dataset}, packed: False, source: json, data_files: {rows}, split: train}}
optimizer: {{_component_: torch.optim.AdamW, lr: 1.0e-4}}
lr_scheduler: {{_component_: torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup, num_warmup_steps: 2}}
loss: {{_component_: {loss}}}
seed: 1
shuffle: True
batch_size: 4
epochs: 1
max_steps_per_epoch: 10
gradient_accumulation_steps: 2
resume_from_checkpoint: False
save_adapter_weights_only: False
compile: False
clip_grad_norm: null
optimizer_in_bwd: False
device: cuda
dtype: bf16
enable_activation_checkpointing: True
enable_activation_offloading: False
custom_sharded_layers: null
log_every_n_steps: 1
log_peak_memory_stats: True
log_level: INFO
metric_logger: {{_component_: torchtune.training.metric_logging.DiskLogger, log_dir: tune_out/logs}}
"""
_ADAPTER = """  lora_attn_modules: [q_proj, v_proj, output_proj]
  apply_lora_to_mlp: True
  lora_rank: 8
  lora_alpha: 16
"""


def torchtune_configs(folder: Path) -> None:
    """Its recipes take a component for everything: here all are small, and its own."""
    folder.mkdir(exist_ok=True)
    sft = {"dataset": "torchtune.datasets.alpaca_dataset", "rows": "instructions.json"}
    cross_entropy = "torchtune.modules.loss.CEWithChunkedOutputLoss"
    for name, said in {
        "full": {"model": "llama2", "adapter": "", "loss": cross_entropy, **sft},
        "lora": {"model": "lora_llama2", "adapter": _ADAPTER, "loss": cross_entropy, **sft},
        "dpo": {
            "model": "lora_llama2", "adapter": _ADAPTER, "loss": "torchtune.rlhf.loss.DPOLoss",
            "dataset": "torchtune.datasets.stack_exchange_paired_dataset", "rows": "paired.json",
        },
    }.items():  # fmt: skip
        (folder / f"{name}.yaml").write_text(_TUNE.format(**said), encoding="utf-8")
    _sentencepiece(folder / "tokenizer", folder.parent / "corpus" / "all.txt")
    pairs = [{"question": sentence(8), "response_j": sentence(), "response_k": sentence()} for _ in range(64)]
    (folder.parent / "data" / "rl").mkdir(parents=True, exist_ok=True)
    (folder.parent / "data" / "rl" / "paired.json").write_text(json.dumps(pairs), encoding="utf-8")


def _sentencepiece(model: Path, corpus: Path) -> None:
    try:
        import sentencepiece
    except ImportError:
        return
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus), model_prefix=str(model), vocab_size=60, pad_id=3, minloglevel=2
    )


def litgpt_model(folder: Path) -> None:
    """A checkpoint as litgpt converts them."""
    try:
        from litgpt import GPT, Config
        from litgpt.utils import save_config
    except ImportError:
        return
    import torch

    config = Config(
        name="pythia-14m", block_size=256, padded_vocab_size=512, vocab_size=512, n_layer=3, n_head=4, n_embd=128
    )
    place = folder / "lit" / "tiny"
    place.mkdir(parents=True, exist_ok=True)
    torch.save(GPT(config).state_dict(), place / "lit_model.pth")
    save_config(config, place)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / "llama" / name, place / name)
    (place / "generation_config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": 2}))


def boxes(folder: Path) -> None:
    """Pictures with one box each, as YOLO reads them."""
    from PIL import Image

    for split in ("train", "val"):
        for kind in ("images", "labels"):
            (folder / kind / split).mkdir(parents=True, exist_ok=True)
        for number in range(8):
            picture = Image.frombytes("RGB", (64, 64), random.randbytes(64 * 64 * 3))
            picture.save(folder / "images" / split / f"{number}.jpg")
            (folder / "labels" / split / f"{number}.txt").write_text("0 0.5 0.5 0.4 0.4\n")
    said = f"path: {folder.resolve()}\ntrain: images/train\nval: images/val\nnames: {{0: thing}}\n"
    (folder / "data.yaml").write_text(said, encoding="utf-8")


if __name__ == "__main__":
    from planner.tracing.program.packages import libraries

    with libraries.declared():  # transformers imports torchvision
        make(Path(sys.argv[1]))
