"""The Llama of torchtitan's published runs, so that a trace allocates what those runs allocated.

What matters and differs from the built-in decoder (torchtitan at 83c879f1 to f8f545c4, 2024-03 to 2025-05): positions
are rotated as complex numbers in float32, from a table that is a buffer; keys and values are repeated before the
attention instead of grouped in it; until 2025-03 the norm was written out in float32 operators.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class WrittenNorm(nn.Module):
    """RMSNorm in plain operators: computed in float32, cast, then scaled."""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return normed.type_as(x) * self.weight


def rotated(q: Tensor, k: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """Pairs of float32 numbers as complex ones, turned by the table; both at a time, as there."""
    q_pairs = torch.view_as_complex(q.float().reshape(*q.shape[:-1], -1, 2))
    k_pairs = torch.view_as_complex(k.float().reshape(*k.shape[:-1], -1, 2))
    table = table[: q.shape[1]].view(1, q.shape[1], 1, -1)
    q_out = torch.view_as_real(q_pairs * table).flatten(3)
    k_out = torch.view_as_real(k_pairs * table).flatten(3)
    return q_out.type_as(q), k_out.type_as(k)


def repeated(x: Tensor, times: int) -> Tensor:
    """Each head `times` times; itself for 1."""
    batch, length, heads, width = x.shape
    if times == 1:
        return x
    return x.unsqueeze(3).expand(batch, length, heads, times, width).reshape(batch, length, heads * times, width)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.head_dim, self.times = width // heads, heads // kv_heads
        self.wq = nn.Linear(width, heads * self.head_dim, bias=False)
        self.wk = nn.Linear(width, kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(width, kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(heads * self.head_dim, width, bias=False)

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        batch, length, _ = x.shape
        xq, xk, xv = self.wq(x), self.wk(x), self.wv(x)
        xq = xq.view(batch, length, -1, self.head_dim)
        xk = xk.view(batch, length, -1, self.head_dim)
        xv = xv.view(batch, length, -1, self.head_dim)
        xq, xk = rotated(xq, xk, table)
        keys, values = repeated(xk, self.times), repeated(xv, self.times)
        xq, xk, xv = xq.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)
        output = functional.scaled_dot_product_attention(xq, xk, xv, is_causal=True)
        output = output.transpose(1, 2).contiguous().view(batch, length, -1)
        return self.wo(output)  # type: ignore[no-any-return]


class FeedForward(nn.Module):
    def __init__(self, width: int, ffn: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(width, ffn, bias=False)
        self.w2 = nn.Linear(ffn, width, bias=False)
        self.w3 = nn.Linear(width, ffn, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))  # type: ignore[no-any-return]


class Block(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int, ffn: int, norm: type[nn.Module]) -> None:
        super().__init__()
        self.attention = Attention(width, heads, kv_heads)
        self.feed_forward = FeedForward(width, ffn)
        self.attention_norm = norm(width, eps=1e-5)
        self.ffn_norm = norm(width, eps=1e-5)

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        h = x + self.attention(self.attention_norm(x), table)
        return h + self.feed_forward(self.ffn_norm(h))  # type: ignore[no-any-return]


class Llama(nn.Module):
    def __init__(
        self,
        layers: int = 32,
        width: int = 4096,
        heads: int = 32,
        kv_heads: int = 8,
        ffn: int = 14336,
        vocab: int = 128256,
        length: int = 8192,
        norm: str = "written",
        float_output: bool = False,
        keep_output: bool = False,
    ) -> None:
        super().__init__()
        self.vocab, self.float_output, self.keep_output = vocab, float_output, keep_output
        kind: type[nn.Module] = WrittenNorm if norm == "written" else nn.RMSNorm
        self.tok_embeddings = nn.Embedding(vocab, width)
        self.register_buffer("freqs_cis", torch.zeros(length, width // heads // 2, dtype=torch.complex64))
        self.layers = nn.ModuleList(Block(width, heads, kv_heads, ffn, kind) for _ in range(layers))
        self.norm = kind(width, eps=1e-5)
        self.output = nn.Linear(width, vocab, bias=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        h = self.tok_embeddings(input_ids)
        for layer in self.layers:
            h = layer(h, self.freqs_cis)
        output: Tensor = self.output(self.norm(h))
        output = output.float() if self.float_output else output
        if self.keep_output:  # until the next one takes its place, as a loop does that never says `del pred`
            self.kept = output
        return output


def llama(**arguments: int | str) -> nn.Module:
    """The model by its sizes: those of Llama-3-8B unless said otherwise."""
    return Llama(**arguments)  # type: ignore[arg-type]
