"""Small models of different kinds, for runs on a CPU. Activations are large beside a few stray bytes."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Perceptron(nn.Sequential):
    def __init__(self, width: int = 512, layers: int = 3, dropout: float = 0.0) -> None:
        parts: list[nn.Module] = []
        for _ in range(layers):
            parts.append(nn.Linear(width, width))
            parts += [nn.GELU(), nn.Dropout(dropout)] if dropout else [nn.ReLU()]
        super().__init__(*parts, nn.Linear(width, 10))


class Convolutional(nn.Module):
    """Convolutions with batch norm, pooling and a residual."""

    def __init__(self, channels: int = 32) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU())
        self.pool = nn.MaxPool2d(2)
        self.block = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels),
        )  # fmt: skip
        self.head = nn.Linear(channels, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.pool(self.stem(images))
        x = torch.relu(x + self.block(x))
        return self.head(x.mean(dim=(2, 3)))


class Recurrent(nn.Module):
    def __init__(self, kind: str = "LSTM", width: int = 128, vocab: int = 500) -> None:
        super().__init__()
        self.vocab = vocab
        self.embed = nn.Embedding(vocab, width)
        self.rnn = getattr(nn, kind)(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, vocab)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.head(self.rnn(self.embed(input_ids))[0])


class Bag(nn.Module):
    """Mostly tables: two embeddings and a product of them."""

    def __init__(self, rows: int = 20000, width: int = 64) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(rows, width), nn.Embedding(rows, width)
        self.head = nn.Linear(width, 10)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        return self.head(self.users(user) * self.items(item))


class Autoencoder(nn.Module):
    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.down = nn.Sequential(
            nn.Conv2d(3, channels, 4, 2, 1), nn.GroupNorm(4, channels), nn.SiLU(),
            nn.Conv2d(channels, 2 * channels, 4, 2, 1), nn.SiLU(),
        )  # fmt: skip
        self.up = nn.Sequential(
            nn.ConvTranspose2d(2 * channels, channels, 4, 2, 1), nn.SiLU(),
            nn.Upsample(scale_factor=2), nn.Conv2d(channels, 3, 3, padding=1),
        )  # fmt: skip

    def forward(self, images: Tensor) -> Tensor:
        return self.up(self.down(images))


class Attentive(nn.Module):
    """torch's own transformer layers, with their dropout and their layer norms."""

    def __init__(self, width: int = 128, layers: int = 2, dropout: float = 0.1) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.TransformerEncoderLayer(width, 4, 4 * width, dropout, batch_first=True) for _ in range(layers))
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x).mean(dim=1))


class Half(nn.Module):
    """A branch that the forward never takes, and a frozen layer."""

    def __init__(self, width: int = 256, unused: bool = True, frozen: bool = True) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.head = nn.Linear(width, 10)
        if unused:
            self.never = nn.Linear(width, width)
        if frozen:
            self.second.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.second(torch.relu(self.first(x)))))
