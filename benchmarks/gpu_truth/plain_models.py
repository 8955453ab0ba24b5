"""Models for the matrix that are in no library."""

from __future__ import annotations

from torch import Tensor, nn


def perceptron(width: int = 4096, layers: int = 8, classes: int = 1000, dropout: float = 0.0) -> nn.Module:
    """Linear layers of one width with GELU between them, and a head."""
    parts: list[nn.Module] = []
    for _ in range(layers):
        parts += [nn.Linear(width, width), nn.GELU()]
        if dropout:
            parts.append(nn.Dropout(dropout))
    return nn.Sequential(*parts, nn.Linear(width, classes))


class Recurrent(nn.Module):
    """An embedding, layers of an LSTM or a GRU, and a head."""

    def __init__(self, kind: str = "LSTM", width: int = 1024, layers: int = 2, vocab: int = 32000) -> None:
        super().__init__()
        self.vocab = vocab
        self.embedding = nn.Embedding(vocab, width)
        self.layers = getattr(nn, kind)(width, width, num_layers=layers, batch_first=True)
        self.head = nn.Linear(width, vocab)

    def forward(self, input_ids: Tensor) -> Tensor:
        hidden, _ = self.layers(self.embedding(input_ids))
        return self.head(hidden)  # type: ignore[no-any-return]
