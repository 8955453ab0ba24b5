"""Jobs that are run for real on a CPU and traced on paper: at least twelve kinds of models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.job.schema import (
    Decoder,
    DpReplicate,
    Eval,
    Input,
    Job,
    Loss,
    Metadata,
    Model,
    Optimizer,
    Parallel,
    Recompute,
    Train,
)

_HERE = str(Path(__file__).parent)
_TEXT = {"vocab_size": 1000, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
_IMAGE = Input(shape=(3, 32, 32))
_CLASS = Input(shape=(), dtype="int64", maximum=10)


def factory(name: str, **arguments: Any) -> Model:
    return Model(factory=f"small_models:{name}", factory_path=_HERE, factory_arguments=arguments)


def job(name: str, model: Model, **train: Any) -> Job:
    optimizer = train.pop("optimizer", Optimizer(name="AdamW"))
    return Job(
        metadata=Metadata(name=name),
        model=model,
        train=Train(**{"micro_batch_size": train.pop("batch", 8), "optimizer": optimizer, "iterations": 2, **train}),
    )


def config(model_type: str, **values: Any) -> Model:
    return Model(hf_config={"model_type": model_type, **values})


def classified(**inputs: Input) -> dict[str, Input]:
    return {**inputs, "labels": _CLASS}


ALONE = [
    job("perceptron", factory("Perceptron"), batch=64, inputs=classified(x=Input(shape=(512,)))),
    job("dropouts", factory("Perceptron", dropout=0.3), batch=256, inputs=classified(x=Input(shape=(512,)))),
    job("convolutions", factory("Convolutional"), inputs=classified(images=_IMAGE),
        optimizer=Optimizer(name="SGD", arguments={"lr": 0.1, "momentum": 0.9})),
    job("autoencoder", factory("Autoencoder"), inputs={"images": _IMAGE, "target": _IMAGE}, loss=Loss(name="mse")),
    job("embeddings", factory("Bag"), batch=256,
        inputs=classified(user=Input(shape=(), dtype="int64", maximum=20000),
                          item=Input(shape=(), dtype="int64", maximum=20000)),
        optimizer=Optimizer(name="Adagrad")),
    job("torch-transformer", factory("Attentive"), inputs=classified(x=Input(shape=(64, 128)))),
    job("decoder", Model(decoder=Decoder(layers=2, hidden=128, heads=4, kv_heads=2, ffn=384, vocab=1000)),
        sequence_length=64, gradient_clipping=1.0),
    job("decoder-recomputed", Model(decoder=Decoder(layers=3, hidden=128, heads=4, kv_heads=4, ffn=384, vocab=500)),
        sequence_length=128, recompute=Recompute(mode="full")),
    job("decoder-accumulating", Model(decoder=Decoder(layers=2, hidden=128, heads=4, kv_heads=2, ffn=384, vocab=500)),
        sequence_length=64, gradient_accumulation_steps=2, eval=Eval(micro_batch_size=4, every=2)),
    job("gpt2", config("gpt2", vocab_size=1000, n_embd=128, n_layer=2, n_head=4, n_positions=128), sequence_length=64),
    job("bert", config("bert", **_TEXT, intermediate_size=512, max_position_embeddings=128), sequence_length=64),
    job("t5", config("t5", vocab_size=1000, d_model=128, d_kv=32, d_ff=512, num_layers=2, num_heads=4,
                     decoder_start_token_id=0), sequence_length=64),
    job("llama", config("llama", **_TEXT, num_key_value_heads=2, intermediate_size=384), sequence_length=64),
    job("vit", config("vit", hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=512,
                      image_size=64, patch_size=8)),
    job("resnet", config("resnet", embedding_size=32, hidden_sizes=[32, 64, 128, 128], depths=[1, 1, 1, 1],
                         layer_type="basic"), batch=4,
        inputs={"pixel_values": Input(shape=(3, 64, 64))}),
    job("convnext", config("convnext", hidden_sizes=[32, 64, 96, 128], depths=[1, 1, 2, 1], image_size=64)),
    job("mamba", config("mamba", vocab_size=1000, hidden_size=64, num_hidden_layers=2, state_size=8),
        batch=2, sequence_length=32),
]  # fmt: skip


def replicated(name: str, base: Job, **ddp: Any) -> Job:
    return replace(
        base,
        metadata=Metadata(name=name),
        train=replace(base.train, iterations=3),
        parallel=Parallel(dp_replicate=DpReplicate(degree=2, **ddp)),
    )


_NET = job("net", factory("Perceptron", width=700, layers=6), batch=16, inputs=classified(x=Input(shape=(700,))))
_HALF = job("half", factory("Half"), batch=64, inputs=classified(x=Input(shape=(256,))))
_NORMED = job("normed", factory("Convolutional"), inputs=classified(images=_IMAGE))
REPLICATED = [
    replicated("ddp-copy", _NET, bucket_cap_mb=4),
    replicated("ddp-view", _NET, bucket_cap_mb=4, gradient_as_bucket_view=True),
    replicated("ddp-unused", _HALF, arguments={"find_unused_parameters": True}),
    replicated("ddp-frozen", replace(_HALF, model=factory("Half", unused=False)), bucket_cap_mb=0.2),
    replicated("ddp-static", _NET, bucket_cap_mb=4, arguments={"static_graph": True}),
    replicated("ddp-buffers", _NORMED, gradient_as_bucket_view=True),
]
