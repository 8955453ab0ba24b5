"""The Llama 3.2 of torchtune's published runs, so that a compiled trace allocates what those runs allocated.

What matters and differs from the built-in decoder (torchtune at 1814feb1, 2024-11): keys and values are repeated before
the attention; a packed batch attends by FlexAttention over a mask of blocks, which is compiled by itself, so that the
graph of a compiled layer breaks there; positions are looked up in a float32 table for each layer; logits are float32.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torchtitan_llama import FeedForward, WrittenNorm

_compiled_attention = torch.compile(flex_attention, dynamic=False)


@torch.compiler.disable(recursive=False)
def attended(q: Tensor, k: Tensor, v: Tensor, mask: BlockMask) -> Tensor:
    """FlexAttention, compiled whether the layer around it is or not."""
    return _compiled_attention(q, k, v, block_mask=mask)  # type: ignore[no-any-return]


def rotated(x: Tensor, table: Tensor, positions: Tensor) -> Tensor:
    """Pairs of float32 numbers turned by cosines and sines, which are looked up by position."""
    pairs = x.float().reshape(*x.shape[:-1], -1, 2)
    turns = table[positions].view(-1, pairs.size(1), 1, pairs.size(3), 2)
    even = pairs[..., 0] * turns[..., 0] - pairs[..., 1] * turns[..., 1]
    odd = pairs[..., 1] * turns[..., 0] + pairs[..., 0] * turns[..., 1]
    return torch.stack([even, odd], -1).flatten(3).type_as(x)


def repeated(x: Tensor, times: int) -> Tensor:
    """Each head (dim 1) `times` times."""
    batch, heads, length, width = x.shape
    return x.unsqueeze(2).expand(batch, heads, times, length, width).flatten(1, 2)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.head_dim, self.times = width // heads, heads // kv_heads
        self.q_proj = nn.Linear(width, heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(width, kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(width, kv_heads * self.head_dim, bias=False)
        self.output_proj = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, table: Tensor, positions: Tensor, mask: BlockMask) -> Tensor:
        batch, length, _ = x.shape
        q = self.q_proj(x).view(batch, length, -1, self.head_dim)
        q = rotated(q, table, positions).transpose(1, 2)
        k, v = self.k_proj(x), self.v_proj(x)
        k = rotated(k.view(batch, length, -1, self.head_dim), table, positions).transpose(1, 2)
        v = v.view(batch, length, -1, self.head_dim).transpose(1, 2)
        k, v = repeated(k, self.times), repeated(v, self.times)
        output = attended(q, k, v, mask)
        return self.output_proj(output.transpose(1, 2).contiguous().view(batch, length, -1))  # type: ignore[no-any-return]


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int, ffn: int) -> None:
        super().__init__()
        self.attn = Attention(width, heads, kv_heads)
        self.mlp = FeedForward(width, ffn)
        self.sa_norm, self.mlp_norm = WrittenNorm(width), WrittenNorm(width)

    def forward(self, x: Tensor, table: Tensor, positions: Tensor, mask: BlockMask) -> Tensor:
        h = self.attn(self.sa_norm(x), table, positions, mask) + x
        return h + self.mlp(self.mlp_norm(h))  # type: ignore[no-any-return]


class Llama(nn.Module):
    def __init__(
        self, layers: int, width: int, heads: int, kv_heads: int, ffn: int, vocab: int, float_output: bool
    ) -> None:
        super().__init__()
        self.vocab, self.float_output = vocab, float_output
        self.tok_embeddings = nn.Embedding(vocab, width)
        table = torch.zeros(131072, width // heads // 2, 2, dtype=torch.float32)
        self.register_buffer("table", table, persistent=False)
        self.layers = nn.ModuleList(Layer(width, heads, kv_heads, ffn) for _ in range(layers))
        self.norm = WrittenNorm(width)

    def forward(self, input_ids: Tensor, positions: Tensor, documents: Tensor) -> Tensor:
        mask = _mask_of(documents)
        h = self.tok_embeddings(input_ids)
        for layer in self.layers:
            h = layer(h, self.table, positions, mask)
        output = functional.linear(self.norm(h), self.tok_embeddings.weight)
        return output.float() if self.float_output else output


def _mask_of(documents: Tensor) -> BlockMask:
    """Causal within each document of a packed sequence; made by its data loader in the process that trains."""
    batch, length = documents.shape

    def seen(sequence: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (documents[sequence, query] == documents[sequence, key])

    return create_block_mask(seen, batch, None, length, length, device=str(documents.device))


def llama_3_2_3b(layers: int = 28, *, float_output: bool = True) -> nn.Module:
    """Llama 3.2 3B in bfloat16, built on the GPU as its recipe does; its head is its embedding."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda"):
            return Llama(layers, 3072, 24, 8, 8192, 128256, float_output)
    finally:
        torch.set_default_dtype(before)
