"""The ViT-H of torchao's published runs of low-bit optimizers: timm's, so that its compiled trace allocates alike.

What matters (pytorch-image-models of 2024-07, vision_transformer.py): one linear layer for queries, keys and values,
fused attention, a class token before the patches, a learned table of positions, the head on the normed class token.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(x).reshape(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        output = functional.scaled_dot_product_attention(q, k, v)
        return self.proj(output.transpose(1, 2).reshape(batch, length, width))  # type: ignore[no-any-return]


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.attn = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]


class VisionTransformer(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, patch: int, classes: int, pixels: int = 224) -> None:
        super().__init__()
        self.num_classes = classes
        self.patch_embed = nn.Conv2d(3, width, kernel_size=patch, stride=patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, (pixels // patch) ** 2 + 1, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, classes)

    def forward(self, image: Tensor) -> Tensor:
        patches = self.patch_embed(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(patches.shape[0], -1, -1), patches], dim=1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])  # type: ignore[no-any-return]


def vit_huge(layers: int = 32) -> nn.Module:
    """ViT-H/14 for the 45 classes of resisc45, built without memory on the host."""
    with torch.device("cuda"):
        return VisionTransformer(layers, 1280, 16, 14, 45)
