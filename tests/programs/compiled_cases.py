"""Jobs whose steps are compiled: by Inductor's C++ code for real, and for a CPU on paper."""

from __future__ import annotations

from dataclasses import replace

from plain_cases import classified, factory, job

from planner.job.schema import Compile, Decoder, Eval, Input, Job, Model, Optimizer, Recompute

_SMALL = Decoder(layers=2, hidden=128, heads=4, kv_heads=2, ffn=384, vocab=1000)


def compiled(base: Job, *scope: str) -> Job:
    return replace(base, train=replace(base.train, compile=Compile(scope=scope)))


COMPILED = [
    compiled(job("decoder-blocks", Model(decoder=_SMALL), sequence_length=64), "blocks", "loss"),
    compiled(
        job(
            "decoder-accumulating",
            Model(decoder=_SMALL),
            sequence_length=64,
            gradient_accumulation_steps=4,
            gradient_clipping=1.0,
            eval=Eval(micro_batch_size=4, every=2),
        ),
        "model",
        "loss",
    ),
    compiled(
        job("dropouts", factory("Perceptron", dropout=0.3), batch=256, inputs=classified(x=Input(shape=(512,)))),
        "model",
    ),
    compiled(
        job(
            "decoder-recomputed",
            Model(decoder=replace(_SMALL, layers=3)),
            sequence_length=128,
            recompute=Recompute(mode="full"),
        ),
        "blocks",
    ),
    compiled(
        job("decoder-optimizer", Model(decoder=_SMALL), sequence_length=64, optimizer=Optimizer(name="SGD")),
        "optimizer",
    ),
]
"""CI takes the first."""
