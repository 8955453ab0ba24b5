"""Which experts the tokens of a mixture go to: by the job's rule, whatever the router says."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import SpecError
from planner.job.schema import Ep, Model
from planner.training.models.build import build
from planner.training.wraps import expert_parallel

MIXTRAL = {
    "model_type": "mixtral", "vocab_size": 50, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 8, "num_experts_per_tok": 2,
}  # fmt: skip


@pytest.mark.parametrize(
    ("tokens", "ep", "shares"),
    [
        (8, Ep(), [2, 2, 2, 2, 2, 2, 2, 2]),
        (9, Ep(), [3, 3, 2, 2, 2, 2, 2, 2]),
        (8, Ep(imbalance=2.0), [4, 2, 2, 2, 2, 2, 1, 1]),
        (8, Ep(degree=2, imbalance=1.5), [3, 3, 3, 3, 1, 1, 1, 1]),
        (7, Ep(degree=4), [2, 2, 2, 2, 2, 1, 2, 1]),
    ],
)
def test_the_fullest_part_gets_its_share_and_the_others_the_rest(tokens: int, ep: Ep, shares: list[int]) -> None:
    assert expert_parallel.shares(tokens, 2, 8, ep) == shares


def test_the_fullest_rank_may_be_any() -> None:
    assert expert_parallel.shares(8, 2, 8, Ep(degree=2, imbalance=1.5), fullest=1) == [1, 1, 1, 1, 3, 3, 3, 3]


@given(tokens=st.integers(1, 60), each=st.integers(1, 4), degree=st.sampled_from([1, 2, 4, 8]), data=st.data())
def test_every_token_goes_to_different_experts_and_none_is_lost(
    tokens: int, each: int, degree: int, data: st.DataObject
) -> None:
    imbalance = data.draw(st.floats(1.0, min(degree, 8 / each) if degree > 1 else 8 / each))
    ep = Ep(degree=degree, imbalance=imbalance)
    try:
        counts = expert_parallel.shares(tokens, each, 8, ep)
    except SpecError:
        return  # rounded up it would be one more than there can be

    chosen = expert_parallel.choices(tokens, each, 8, ep)

    assert chosen.flatten().bincount(minlength=8).tolist() == counts
    assert all(len(set(row)) == each for row in chosen.tolist())
    assert sum(counts) == tokens * each


def test_more_than_there_can_be_is_refused() -> None:
    with pytest.raises(SpecError, match="a token goes to an expert only once"):
        expert_parallel.shares(16, 2, 8, Ep(imbalance=5.0))


def test_experts_see_the_rule_and_the_router_still_learns() -> None:
    model: Any = build(Model(hf_config=MIXTRAL), torch.device("cpu"))
    expert_parallel.force(model, Ep(imbalance=2.0))
    seen: list[torch.Tensor] = []
    experts = dict(expert_parallel.find_experts(model))["model.layers.0.mlp.experts"]
    experts.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[1].clone()))

    model(input_ids=torch.arange(8).view(1, 8)).logits.sum().backward()

    assert seen[0].flatten().bincount(minlength=8).tolist() == [4, 2, 2, 2, 2, 2, 1, 1]
    gate = model.model.layers[0].mlp.gate.weight
    assert gate.grad is not None
    assert gate.grad.isfinite().all()


def test_an_imbalance_without_experts_is_refused() -> None:
    with pytest.raises(SpecError, match="Linear has no experts"):
        expert_parallel.force(torch.nn.Linear(2, 2), Ep(imbalance=2.0))
