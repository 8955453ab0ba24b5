"""Where models come from: factories, transformers configs, the built-in decoder, and what is said to bad ones."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from planner.errors import SpecError
from planner.job.schema import Decoder, Model
from planner.training.models import transformers_models
from planner.training.models.build import build

CPU = torch.device("cpu")
LLAMA = {
    "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128,
}  # fmt: skip


@pytest.fixture
def shop(tmp_path: Path) -> Callable[..., Model]:
    """A factory whose module has this source."""

    def open_shop(source: str, factory: str = "stall:build", **arguments: Any) -> Model:
        sys.modules.pop("stall", None)
        (tmp_path / "stall.py").write_text(source)
        return Model(factory=factory, factory_path=str(tmp_path), factory_arguments=arguments)

    return open_shop


def refusal(model: Model) -> str:
    with pytest.raises(SpecError) as caught:
        build(model, CPU)
    return str(caught.value)


def test_a_factory_builds_with_its_arguments_and_leaves_the_path_as_it_was(shop: Callable[..., Model]) -> None:
    before = list(sys.path)

    module = build(shop("from torch import nn\ndef build(width): return nn.Linear(width, 2)", width=3), CPU)

    assert (module.in_features, module.training, sys.path) == (3, True, before)


MIXED = """
import torch
from torch import nn

def build():
    model = nn.Sequential(nn.Linear(3, 3, dtype=torch.bfloat16), nn.Linear(3, 2))
    model.register_buffer("scale", torch.ones(3, dtype=torch.float64))
    return model
"""


@pytest.mark.parametrize("device", [CPU, torch.device("meta")], ids=str)
def test_a_factory_keeps_its_own_dtypes_unless_the_job_names_one(shop: Callable[..., Model], device: Any) -> None:
    """Adapters of a bfloat16 model are float32, say."""
    own, named = shop(MIXED), replace(shop(MIXED), parameter_dtype="float16")

    kept, cast = ([tensor.dtype for tensor in build(each, device).state_dict().values()] for each in (own, named))

    assert kept == [torch.float64, torch.bfloat16, torch.bfloat16, torch.float32, torch.float32]
    assert set(cast) == {torch.float16}


def test_a_factory_is_moved_to_the_dtype_of_the_parameters(shop: Callable[..., Model]) -> None:
    spec = shop("from torch import nn\ndef build(): return nn.Linear(3, 2)")
    spec = Model(factory=spec.factory, factory_path=spec.factory_path, parameter_dtype="bfloat16")

    assert {p.dtype for p in build(spec, CPU).parameters()} == {torch.bfloat16}


def test_a_module_of_the_same_name_elsewhere_is_another_module(tmp_path: Path) -> None:
    widths = []
    for width in (3, 5):
        folder = tmp_path / str(width)
        folder.mkdir()
        (folder / "twin.py").write_text(f"from torch import nn\ndef build(): return nn.Linear({width}, 1)")
        widths.append(build(Model(factory="twin:build", factory_path=str(folder)), CPU).in_features)

    assert widths == [3, 5]


def test_a_factory_that_cannot_be_found_is_refused(shop: Callable[..., Model]) -> None:
    source = "from torch import nn\ndef builder(): return nn.Linear(1, 1)\nnumber = 3"

    assert refusal(Model(factory="nowhere:build")) == (
        "model.factory: there is no module 'nowhere' for the factory nowhere:build\n"
        "  change:  install it, or set model.factory_path"
    )
    assert refusal(shop(source)) == "model.factory: stall has no 'build'\n  change:  did you mean `builder`?"
    assert refusal(shop(source, "stall:number")) == "model.factory: stall:number is of type int\n  allowed: a callable"
    assert refusal(Model(factory="stall.build")) == (
        "model.factory: 'stall.build' names no callable\n  allowed: module:callable"
    )


def test_a_factory_that_fails_is_refused_with_what_it_said(shop: Callable[..., Model]) -> None:
    assert refusal(shop("def build(): raise KeyError('width')")) == (
        "model.factory: the factory stall:build raised KeyError: 'width'\n"
        "  change:  run the factory by itself; its arguments are model.factory_arguments"
    )
    assert refusal(shop("import timm_is_not_here\ndef build(): pass")) == (
        "model.factory: the factory stall:build needs the module 'timm_is_not_here', which is not installed\n"
        "  change:  install it, or set model.factory_path"
    )
    assert refusal(shop("1 / 0")) == (
        "model.factory: importing stall raised ZeroDivisionError: division by zero\n  change:  import it by itself"
    )


def test_a_factory_that_returns_no_module_is_refused(shop: Callable[..., Model]) -> None:
    assert refusal(shop("def build(): return {}")) == (
        "model.factory: the factory stall:build returned a dict\n  allowed: a callable that returns a torch.nn.Module"
    )


def test_a_config_is_built_in_the_dtype_of_the_parameters_and_not_of_a_checkpoint() -> None:
    model = build(Model(hf_config={**LLAMA, "torch_dtype": "float16"}, parameter_dtype="bfloat16"), CPU)

    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert torch.get_default_dtype() is torch.float32


def test_the_cache_is_off_in_training() -> None:
    model = build(Model(hf_config={**LLAMA, "use_cache": True}), CPU)

    assert model(torch.zeros(1, 4, dtype=torch.int64)).past_key_values is None


def test_experts_route_without_reading_values_on_the_host() -> None:
    mixtral = {**LLAMA, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}

    model = build(Model(hf_config=mixtral), CPU)

    assert model.config._experts_implementation == "grouped_mm"


@pytest.mark.parametrize(
    ("config", "head", "expected"),
    [
        (LLAMA, "", "LlamaForCausalLM"),
        ({**LLAMA, "architectures": ["LlamaForSequenceClassification"]}, "", "LlamaForSequenceClassification"),
        ({**LLAMA, "architectures": ["LlamaForCausalLM"]}, "token_classification", "LlamaForTokenClassification"),
        ({**LLAMA, "architectures": ["SomeoneElses"]}, "", "LlamaForCausalLM"),
        (LLAMA, "base", "LlamaModel"),
        (
            {"model_type": "bert", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4},
            "",
            "BertForMaskedLM",
        ),
    ],
)
def test_the_head_is_the_jobs_or_the_configs_or_the_usual_one(config: dict[str, Any], head: str, expected: str) -> None:
    assert type(build(Model(hf_config=config, head=head), CPU)).__name__ == expected


def test_heads_that_are_not_there_are_refused() -> None:
    assert refusal(Model(hf_config=LLAMA, head="casual_lm")) == (
        f"model.head: unknown head 'casual_lm'\n  allowed: {', '.join(transformers_models.HEADS)}"
        "\n  change:  did you mean `causal_lm`?"
    )
    assert refusal(Model(hf_config=LLAMA, head="ctc")) == (
        "model.head: llama has no ctc head\n"
        "  allowed: causal_lm, sequence_classification, token_classification, question_answering, base"
    )


def test_configs_that_are_none_are_refused() -> None:
    assert refusal(Model(hf_config={"hidden_size": 8})) == (
        "model.hf_config: the config names no model_type\n  allowed: a config.json of transformers"
    )
    assert "unknown model type 'lama'" in refusal(Model(hf_config={"model_type": "lama"}))
    assert "did you mean `llama`" in refusal(Model(hf_config={"model_type": "lama"}))
    assert refusal(Model(hf_config={"model_type": "mine", "auto_map": {"AutoModel": "mine.Model"}})) == (
        f"model.hf_config: transformers {transformers.__version__} has no model type 'mine' itself, "
        "and planner runs no remote code (auto_map)\n"
        "  allowed: model types that transformers itself has\n"
        "  change:  write a factory that builds the model from code you trust"
    )


def test_a_known_model_type_ignores_the_remote_code_of_its_config() -> None:
    model = build(Model(hf_config={**LLAMA, "auto_map": {"AutoModelForCausalLM": "evil.Model"}}), CPU)

    assert type(model).__module__.startswith("transformers.")


def test_a_config_that_does_not_fit_together_is_refused() -> None:
    assert "model.hf_config: transformers" in refusal(Model(hf_config={**LLAMA, "num_attention_heads": 5}))


def test_the_decoder_has_the_parameters_of_a_llama() -> None:
    shape = Decoder(layers=2, hidden=32, heads=4, kv_heads=2, ffn=64, vocab=128)

    counts = [
        sorted(tuple(p.shape) for p in build(model, CPU).parameters())
        for model in (Model(decoder=shape), Model(hf_config={**LLAMA, "tie_word_embeddings": False}))
    ]

    assert counts[0] == counts[1]


def test_a_decoder_is_causal() -> None:
    model = build(Model(decoder=Decoder(layers=2, hidden=32, heads=4, kv_heads=2, ffn=64, vocab=128)), CPU)
    ids = torch.arange(8).unsqueeze(0)
    changed = ids.clone()
    changed[0, 5] = 99

    differs = (model(ids) != model(changed)).any(dim=-1)[0].tolist()

    assert differs == [False] * 5 + [True] * 3


def test_a_decoder_whose_heads_do_not_divide_is_refused() -> None:
    shape = {"layers": 1, "hidden": 32, "ffn": 64, "vocab": 128}

    assert refusal(Model(decoder=Decoder(**{**shape, "hidden": 15}, heads=5, kv_heads=1))) == (
        "model.decoder.heads: hidden 15 does not divide into 5 heads of an even size\n"
        "  allowed: hidden = heads times an even number, or an even head_dim"
    )


def test_a_job_without_a_model_is_refused() -> None:
    assert refusal(Model()) == "model: the job names no model\n  allowed: one of hf_config, factory, decoder"
