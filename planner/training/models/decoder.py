"""The built-in Llama-shaped decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

The shapes are those of Llama (Touvron et al. 2023); positions are rotated as in Su et al. 2021, base 500,000 as in
Llama 3. It has no dropout and no bias.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from planner.errors import SpecError
from planner.job import schema

ROTARY_BASE = 500_000.0


class Attention(nn.Module):
    def __init__(self, spec: schema.Decoder) -> None:
        super().__init__()
        hidden, heads, kv_heads = spec.hidden, spec.heads, spec.kv_heads
        self.head_dim = head_dim(spec)
        self.grouped = heads != kv_heads
        self.q = nn.Linear(hidden, heads * self.head_dim, bias=False)
        self.k = nn.Linear(hidden, kv_heads * self.head_dim, bias=False)
        self.v = nn.Linear(hidden, kv_heads * self.head_dim, bias=False)
        self.o = nn.Linear(heads * self.head_dim, hidden, bias=False)
        self.q_norm = nn.RMSNorm(self.head_dim, eps=1e-6) if spec.qk_norm else None
        self.k_norm = nn.RMSNorm(self.head_dim, eps=1e-6) if spec.qk_norm else None

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k = self._by_head(self.q(x), self.q_norm), self._by_head(self.k(x), self.k_norm)
        v = self._by_head(self.v(x))
        mixed = functional.scaled_dot_product_attention(
            _rotate(q, cos, sin), _rotate(k, cos, sin), v, is_causal=True, enable_gqa=self.grouped
        )
        return self.o(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def _by_head(self, x: Tensor, norm: nn.RMSNorm | None = None) -> Tensor:
        batch, length, _ = x.shape
        heads = x.view(batch, length, -1, self.head_dim)
        return (heads if norm is None else norm(heads)).transpose(1, 2)


class FeedForward(nn.Module):
    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden, ffn, bias=False)
        self.up = nn.Linear(hidden, ffn, bias=False)
        self.down = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))  # type: ignore[no-any-return]


class Block(nn.Module):
    def __init__(self, spec: schema.Decoder) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(spec.hidden, eps=1e-5)
        self.attention = Attention(spec)
        self.ffn_norm = nn.RMSNorm(spec.hidden, eps=1e-5)
        self.ffn = FeedForward(spec.hidden, spec.ffn)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.ffn(self.ffn_norm(x))  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """`forward(input_ids)` with ids of shape (batch, tokens) gives logits of shape (batch, tokens, vocab).

    A stage of a pipeline has None for what other stages have: without an embedding it takes hidden states, without a
    head it gives them.
    """

    embedding: nn.Embedding | None
    norm: nn.RMSNorm | None
    head: nn.Linear | None
    token_shards: int = 1
    """The hidden states that a later stage takes are so small a part of the tokens: sequence parallelism."""

    def __init__(self, spec: schema.Decoder) -> None:
        super().__init__()
        if head_dim(spec) % 2:
            raise SpecError(
                f"hidden {spec.hidden} does not divide into {spec.heads} heads of an even size",
                allowed="hidden = heads times an even number, or an even head_dim",
                place="model.decoder.heads",
            )
        self.vocab = spec.vocab
        self.head_dim = head_dim(spec)
        self.qk_norm = spec.qk_norm
        self.embedding = nn.Embedding(spec.vocab, spec.hidden)
        self.layers = nn.ModuleList(Block(spec) for _ in range(spec.layers))
        self.norm = nn.RMSNorm(spec.hidden, eps=1e-5)
        self.head = nn.Linear(spec.hidden, spec.vocab, bias=False)
        if spec.tie_embeddings:
            self.head.weight = self.embedding.weight

    def forward(self, input_ids: Tensor) -> Tensor:
        x = input_ids if self.embedding is None else self.embedding(input_ids)
        shards = 1 if self.embedding is not None else self.token_shards
        cos, sin = self._rotations(input_ids.shape[1] * shards, x)
        for layer in self.layers:
            x = layer(x, cos, sin)
        if self.norm is None or self.head is None:
            return x
        return self.head(self.norm(x))  # type: ignore[no-any-return]

    def _rotations(self, length: int, like: Tensor) -> tuple[Tensor, Tensor]:
        steps = torch.arange(0, self.head_dim, 2, device=like.device, dtype=torch.float32)
        frequencies = ROTARY_BASE ** (-steps / self.head_dim)
        positions = torch.arange(length, device=like.device, dtype=torch.float32)
        angles = torch.outer(positions, frequencies).repeat(1, 2)
        return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return (x * cos + torch.cat((-second, first), dim=-1) * sin).to(x.dtype)


def head_dim(spec: schema.Decoder) -> int:
    """Width of a head: as the spec says, or an even share of the hidden width."""
    return spec.head_dim or spec.hidden // spec.heads
