"""Recompute: the same gradients from fewer activations, in the blocks that were chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from planner.errors import SpecError
from planner.job.schema import Decoder, Job, Recompute
from planner.training import blocks, step
from planner.training.models.decoder import Decoder as DecoderModel

Run = Callable[..., step.Outcome]
JobOf = Callable[..., Job]
FOUR_LAYERS = {"decoder": Decoder(layers=4, hidden=32, heads=4, kv_heads=2, ffn=64, vocab=128)}
MODES = [Recompute(mode="full"), Recompute(mode="every", every=2), Recompute(mode="selective")]


def gradients(mode: Recompute) -> tuple[list[Tensor], int]:
    """Gradients of a four-layer decoder, and the bytes that its graph kept for the backward."""
    torch.manual_seed(0)
    model = DecoderModel(FOUR_LAYERS["decoder"])
    blocks.apply_recompute(model, mode)
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(torch.arange(32).view(2, 16)).float().sum()
    loss.backward()
    return [p.grad for p in model.parameters() if p.grad is not None], sum(kept.values())


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.mode)
def test_gradients_are_the_same_with_and_without(mode: Recompute) -> None:
    expected, kept_by_all = gradients(Recompute())
    got, kept = gradients(mode)

    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
    assert kept < kept_by_all


def test_full_recomputes_every_block_and_every_second_each_second_one(decoder_job: JobOf, run: Run) -> None:
    def chosen(mode: Recompute) -> list[str]:
        model = run(decoder_job(model=FOUR_LAYERS, recompute=mode)).model
        return [path for path, module in model.named_modules() if "forward" in vars(module)]

    every_layer = ["layers.0", "layers.1", "layers.2", "layers.3"]
    assert {mode.mode: chosen(mode) for mode in MODES} == {
        "full": every_layer, "every": ["layers.1", "layers.3"], "selective": every_layer,
    }  # fmt: skip


def count_forwards(mode: Recompute) -> dict[str, int]:
    model = DecoderModel(FOUR_LAYERS["decoder"])
    blocks.apply_recompute(model, mode)
    seen = {"norm": 0, "down": 0}

    def count(name: str) -> Callable[..., None]:
        def counted(*_: Any) -> None:
            seen[name] += 1

        return counted

    model.layers[1].ffn_norm.register_forward_hook(count("norm"))
    model.layers[1].ffn.down.register_forward_hook(count("down"))
    model(torch.zeros(1, 4, dtype=torch.int64)).sum().backward()
    return seen


def test_a_recomputed_block_runs_its_forward_again_in_the_backward() -> None:
    assert count_forwards(Recompute())["norm"] == 1
    assert count_forwards(Recompute(mode="full"))["norm"] == 2


def test_selective_computes_every_second_matmul_again_and_no_attention() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counting(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.ops: dict[str, int] = {}

        def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = str(op.overloadpacket).removeprefix("aten.")
            self.ops[name] = self.ops.get(name, 0) + 1
            return op(*args, **(kwargs or {}))

    def again(mode: Recompute) -> tuple[int, int]:
        # As many heads for keys as for queries: torch 2.6 has no flash attention of groups on the CPU.
        model = DecoderModel(replace(FOUR_LAYERS["decoder"], kv_heads=4))
        blocks.apply_recompute(model, mode)
        loss = model(torch.zeros(1, 8, dtype=torch.int64)).sum()
        with Counting() as backward:
            loss.backward()
        attention = next((n for op, n in backward.ops.items() if op.endswith("flash_attention_for_cpu")), 0)
        return backward.ops["mm"], attention

    in_backward_anyway, _ = again(Recompute())
    # Seven matmuls a block, the last of which nobody needs again: six of them, or the second, fourth and sixth.
    assert again(Recompute(mode="full")) == (in_backward_anyway + 4 * 6, 4)
    assert again(Recompute(mode="selective")) == (in_backward_anyway + 4 * 3, 0)


def test_evaluation_does_not_recompute() -> None:
    model = DecoderModel(FOUR_LAYERS["decoder"])
    blocks.apply_recompute(model, Recompute(mode="full"))
    seen: list[int] = []
    model.layers[0].ffn_norm.register_forward_hook(lambda *_: seen.append(1))

    with torch.no_grad():
        model(torch.zeros(1, 4, dtype=torch.int64))

    assert seen == [1]


def test_blocks_are_found_where_layers_repeat() -> None:
    class Stages(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
            self.stages = nn.ModuleList(nn.ModuleList(nn.Linear(4, 4) for _ in range(2)) for _ in range(2))

    model: Any = Stages()

    assert blocks.find_blocks(model) == list(model.stages)
    assert blocks.find_blocks(model, "stages.*.1") == [stage[1] for stage in model.stages]
    assert blocks.find_blocks(nn.Linear(2, 2)) == []


def test_a_pattern_without_a_match_is_refused_with_what_there_is(decoder_job: JobOf, run: Run) -> None:
    with pytest.raises(SpecError) as refusal:
        run(decoder_job(model={"blocks": "model.layers.*"}, recompute=Recompute(mode="full")))

    assert str(refusal.value) == "model.blocks: no module of Decoder matches 'model.layers.*'\n  allowed: layers.*"


def test_a_model_without_blocks_is_refused(factory_job: JobOf, run: Run) -> None:
    with pytest.raises(SpecError) as no_blocks:
        run(factory_job(recompute=Recompute(mode="full")))

    assert str(no_blocks.value) == (
        "train.recompute: no repeated layers are found in Sequential\n"
        "  change:  say which modules are recomputed in model.blocks"
    )
