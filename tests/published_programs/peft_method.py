"""One method of peft's comparison on MetaMathQA: the training loop of its `run.py` on batches of made lengths.

    python peft_method.py CHECKOUT EXPERIMENT LONGEST STEPS

CHECKOUT is a clone of huggingface/peft, EXPERIMENT the name of a result (`lora--llama-3.2-3B-rank32`). Model, adapter,
optimizer and loop are theirs. In their place are made: the weights (built on the device from a config), the tokenizer,
and the texts. Of 80 samples, which their iterator sorts, the longest has LONGEST tokens, the shortest 15 % of it; the
others are denser towards the short ones (a cubic). The test set is empty, so that nothing is generated.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

_SAMPLES, _SHORTEST = 80, 0.15
_LLAMA_3_2_3B = {
    "vocab_size": 128256, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28,
    "num_attention_heads": 24, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "bos_token_id": 128000, "eos_token_id": 128001,
}  # fmt: skip


class Samples:
    """As much of a `datasets.Dataset` as their iterator asks for."""

    def __init__(self, count: int, longest: int) -> None:
        self._count, self._longest = count, longest

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, wanted: slice) -> dict[str, list[Any]]:
        places = (index % _SAMPLES / (_SAMPLES - 1) for index in range(*wanted.indices(self._count)))
        lengths = [round(self._longest * (_SHORTEST + (1 - _SHORTEST) * (1 - place) ** 3)) for place in places]
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
    run.get_train_valid_test_datasets = lambda **_named: (Samples(8000, longest), Samples(50, longest), Samples(0, 1))
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
