"""Losses by hand and the model's own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from planner.errors import SpecError
from planner.job import schema
from planner.job.schema import Input, Job, Loss
from planner.training import inputs, step
from planner.training.inputs import Feed, MicroBatch
from planner.training.loss_functions import Objective, cross_entropy, find_logits

Run = Callable[..., step.Outcome]
JobOf = Callable[..., Job]
DECODER = schema.Decoder(layers=2, hidden=32, heads=4, kv_heads=2, ffn=64, vocab=128)
CPU = torch.device("cpu")
F32 = torch.float32


def objective(**spec: Any) -> Objective:
    return Objective(Loss(**spec), Feed(arguments={}), CPU)


class Echo(nn.Module):
    """Returns what it is given."""

    def forward(self, x: Any) -> Any:
        return x


def test_cross_entropy_flattens_tokens_and_computes_in_the_dtype_of_the_loss() -> None:
    logits = torch.randn(2, 3, 5, dtype=torch.bfloat16)
    target = torch.tensor([[0, 1, 2], [3, 4, 0]])

    loss = objective()(Echo(), MicroBatch({"x": logits}, {"labels": target}))

    assert torch.equal(loss, functional.cross_entropy(logits.float().view(6, 5), target.view(6)))
    assert cross_entropy(logits, target, torch.bfloat16).dtype is torch.bfloat16


@pytest.mark.parametrize("chunks", [2, 3, 4])
def test_a_chunked_cross_entropy_has_the_same_value_and_gradient(chunks: int) -> None:
    whole, parts = (torch.randn(2, 6, 5, generator=torch.Generator().manual_seed(0)).requires_grad_() for _ in "ab")
    target = torch.randint(0, 5, (2, 6))

    losses = [cross_entropy(whole, target, F32), cross_entropy(parts, target, F32, chunks)]
    for loss in losses:
        loss.backward()

    torch.testing.assert_close(losses[1], losses[0])
    torch.testing.assert_close(parts.grad, whole.grad)


def test_maps_of_another_size_than_their_targets_are_resized() -> None:
    loss = cross_entropy(torch.randn(2, 3, 4, 4), torch.randint(0, 3, (2, 8, 8)), F32)

    assert loss.dim() == 0


def test_squares_and_sums_start_from_the_first_float_output() -> None:
    output = {"ids": torch.ones(2, dtype=torch.int64), "values": torch.full((2, 2), 3.0)}
    batch = MicroBatch({"x": output}, {"target": torch.ones(2, 2)})  # type: ignore[dict-item]

    assert [float(objective(name=name)(Echo(), batch)) for name in ("mse", "sum")] == [4.0, 12.0]


def test_the_models_own_loss_gets_the_labels() -> None:
    class Own(nn.Module):
        def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
            assert labels is not None
            return {"logits": x, "loss": (x * labels).sum()}

    batch = MicroBatch({"x": torch.ones(3)}, {"labels": torch.full((3,), 2.0)})

    assert float(objective(name="model")(Own(), batch)) == 6.0


def test_a_model_that_returns_no_loss_is_refused() -> None:
    with pytest.raises(SpecError) as none:
        objective(name="model")(Echo(), MicroBatch({"x": torch.ones(2)}, {}))
    with pytest.raises(SpecError, match="returns a str without a floating-point tensor"):
        find_logits("text")

    assert str(none.value) == (
        "train.loss.name: the model returned no loss (Tensor)\n"
        "  allowed: cross_entropy, mse, sum for models that return none"
    )


@pytest.mark.parametrize(("name", "value"), [("cross_entropy", math.log(10)), ("mse", 1.0), ("sum", 40.0)])
def test_targets_that_nobody_described_are_made_from_the_output(name: str, value: float) -> None:
    """Of equal logits of ten classes: a class for each row, zeros, or none."""
    loss = objective(name=name)(Echo(), MicroBatch({"x": torch.ones(4, 10)}, {}))

    assert loss.item() == pytest.approx(value)


def test_inputs_are_given_by_name_where_the_forward_has_it_else_by_position() -> None:
    class Two(nn.Module):
        def forward(self, image: Tensor, scale: Tensor) -> Tensor:
            return image * scale

    def positional(**given: Input) -> bool:
        return inputs._feed_by_names(Two(), given).positional

    row = Input(shape=(2,))
    assert positional(scale=row, image=row) is False
    assert positional(a=row, b=row) is True
    with pytest.raises(SpecError) as refusal:
        positional(a=row, b=row, c=row)
    assert str(refusal.value) == "train.inputs: the model's forward does not take a, b, c\n  allowed: image, scale"


def test_a_factory_whose_inputs_nobody_described_is_refused(factory_job: JobOf, run: Run) -> None:
    with pytest.raises(SpecError, match="nothing says what the model takes"):
        run(factory_job(inputs={}))


def test_inputs_have_the_shape_dtype_and_range_that_were_asked_for() -> None:
    feed = Feed(
        arguments={
            "ids": Input(shape=(50,), dtype="int32", maximum=3),
            "attention_mask": Input(shape=(4,), dtype="int64"),
            "pixels": Input(shape=(2, 2), dtype="bfloat16"),
            "mask": Input(shape=(64,), dtype="bool"),
        }
    )

    made = inputs.make(feed, 2, own_loss=False)

    assert {name: (tuple(t.shape), t.dtype) for name, t in made.items()} == {
        "ids": ((2, 50), torch.int32),
        "attention_mask": ((2, 4), torch.int64),
        "pixels": ((2, 2, 2), torch.bfloat16),
        "mask": ((2, 64), torch.bool),
    }
    assert set(made["ids"].unique().tolist()) == {0, 1, 2}
    assert made["attention_mask"].all()
    assert 0 < int(made["mask"].sum()) < 128
