"""One method of peft's comparison on MetaMathQA: the training loop of its `run.py` on batches of likely lengths.

    python peft_method.py CHECKOUT EXPERIMENT LONGEST STEPS

CHECKOUT is a clone of huggingface/peft, EXPERIMENT the name of a result (`lora--llama-3.2-3B-rank32`). Model, adapter,
optimizer and loop are theirs. In their place are made: the weights (built on the device from a config), the tokenizer,
and the texts, of which only the lengths matter. Their iterator takes 80 samples at a time, in the order of the data,
and sorts them. Here every 80 are alike, the quantiles of one distribution, but for the second 80, whose longest has
LONGEST tokens. The test set is empty, so that nothing is generated.
"""

from __future__ import annotations

import importlib.util
import random
import sys
import types
from pathlib import Path
from typing import Any

_SORTED_TOGETHER = 80
"""Samples: batches of 4, times the BUCKET_FACTOR of their run.py (5d602fdb)."""
_MEAN_TOKENS = 208.9
"""Published ("train total tokens" of every result): 4,198,051 in 20,000 samples, one of each the end of its text."""
_SPREAD_TOKENS = 80.0
"""Inferred: with it the mean reserved bytes of LoRA of rank 32 are as published (docs/results/accuracy.md)."""
_LLAMA_3_2_3B = {
    "vocab_size": 128256, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28,
    "num_attention_heads": 24, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "bos_token_id": 128000, "eos_token_id": 128001,
}  # fmt: skip


def likely_lengths() -> list[int]:
    """Tokens of `_SORTED_TOGETHER` samples: the quantiles of a gamma distribution, from its draws."""
    draws, shape = random.Random(0), (_MEAN_TOKENS / _SPREAD_TOKENS) ** 2
    drawn = sorted(draws.gammavariate(shape, _MEAN_TOKENS / shape) for _ in range(1000 * _SORTED_TOGETHER))
    return [round(tokens) for tokens in drawn[500::1000]]


class Samples:
    """As much of a `datasets.Dataset` as their iterator asks for: a sample for each of `lengths`, in tokens."""

    def __init__(self, lengths: list[int]) -> None:
        self._lengths = lengths

    def __len__(self) -> int:
        return len(self._lengths)

    def __getitem__(self, wanted: slice) -> dict[str, list[Any]]:
        lengths = self._lengths[wanted]
        return {
            "input_ids": [[0] * length for length in lengths],
            "attention_mask": [[1] * length for length in lengths],
            "response": [""] * len(lengths),
        }


def main(checkout: Path, experiment: str, longest: int, steps: int) -> None:
    comparison = checkout / "method_comparison" / "MetaMathQA"
    sys.path[:0] = [str(checkout / "src"), str(comparison)]
    _hide("torchao", "bitsandbytes")
    sys.modules["bitsandbytes"] = types.ModuleType("bitsandbytes")  # utils.py imports it, and asks it for nothing here
    import run
    import utils

    del sys.modules["bitsandbytes"]
    from peft import AdaLoraConfig, PeftConfig

    utils.AutoModelForCausalLM = types.SimpleNamespace(from_pretrained=_build)
    measure_loss = run.calculate_mean_per_token_loss

    def checked_loss(**named: Any) -> float:
        measure_loss(**named)
        return 1.5  # their check wants a trained model's

    run.calculate_mean_per_token_loss = checked_loss
    run.get_wiki_small = lambda: ["a"] * 4
    ordinary = likely_lengths()
    train = Samples([*ordinary, *ordinary[:-1], longest, *98 * ordinary])
    run.get_train_valid_test_datasets = lambda **_named: (train, Samples(ordinary[:50]), Samples([]))
    run.print_verbose = lambda *_arguments, **_named: None

    folder = comparison / "experiments" / Path(*experiment.split("--", 1))
    adapter = PeftConfig.from_pretrained(str(folder)) if (folder / "adapter_config.json").exists() else None
    config = utils.get_train_config(str(folder / "training_params.json"))
    utils.init_accelerator()
    run.train(
        model=utils.get_model(
            model_id=config.model_id, dtype=config.dtype, compile=config.compile, use_gc=config.use_gc,
            attn_implementation=config.attn_implementation, peft_config=adapter,
            autocast_adapter_dtype=config.autocast_adapter_dtype,
        ),
        max_steps=steps, batch_size=config.batch_size, batch_size_eval=config.batch_size_eval, tokenizer=_tokenizer(),
        accelerator_memory_init=0, eval_steps=10 * steps, generation_kwargs=config.generation_kwargs,
        grad_norm_clip=config.grad_norm_clip, optimizer_type=config.optimizer_type,
        optimizer_kwargs=config.optimizer_kwargs, query_template=config.query_template,
        lr_scheduler_arg=config.lr_scheduler, use_amp=config.use_amp, is_adalora=isinstance(adapter, AdaLoraConfig),
        init_kv_cache_prefix=None, is_adamss=False,
    )  # fmt: skip


def _hide(*packages: str) -> None:
    """Packages that the comparison has in other versions than this machine, and does not use."""
    real = importlib.util.find_spec

    def find_spec(name: str, package: str | None = None) -> Any:
        return None if name.split(".")[0] in packages else real(name, package)

    importlib.util.find_spec = find_spec


def _build(*, dtype: Any, **_named: Any) -> Any:
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    with torch.device("cuda"):
        return AutoModelForCausalLM.from_config(LlamaConfig(**_LLAMA_3_2_3B), dtype=dtype)


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"a": 0, "</s>": 1}, unk_token="a"))
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>", pad_token="</s>")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
