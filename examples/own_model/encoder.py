"""A model of one's own, for `factory: "encoder:build"`: what planner calls, and what it calls it with.

The callable gets `model.factory_arguments` as keyword arguments and returns an `nn.Module`, on whichever device. Its
`forward` takes `train.inputs` by their names, a micro-batch in front of each shape, and returns what `train.loss`
takes: logits for cross_entropy, anything for sum, or for model the loss itself, alone or under the name `loss`.
`model.blocks` names the modules that are sharded, recomputed and offloaded one by one.
"""

from __future__ import annotations

from torch import Tensor, nn


class Encoder(nn.Module):
    """Classifies spectrograms: frames are projected, encoded by transformer blocks and averaged."""

    def __init__(self, width: int, layers: int, classes: int) -> None:
        super().__init__()
        self.frames = nn.Linear(80, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, nhead=width // 64, dim_feedforward=4 * width, batch_first=True)
            for _ in range(layers)
        )
        self.head = nn.Linear(width, classes)

    def forward(self, spectrogram: Tensor) -> Tensor:
        x = self.frames(spectrogram)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x.mean(dim=1))
        return logits


def build(*, width: int = 1024, layers: int = 24, classes: int = 527) -> nn.Module:
    """The model by its sizes."""
    return Encoder(width, layers, classes)
