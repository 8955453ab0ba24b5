"""Two language models and their training, with the operations and shapes of programs that were recorded on real GPUs.

The sources are named in tests/data/recorded_programs.json; only what allocates is the same. What lives until the end of
a function there does so here: names that look superfluous keep tensors alive.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

VOCABULARY = 10_000


def einsum_linear(x: Tensor, weight: Tensor) -> Tensor:
    return torch.einsum("...a,ba->...b", x, weight)


def split_heads(x: Tensor, heads: int) -> Tensor:
    batch, rows, width = x.shape
    return x.reshape(batch, rows, heads, width // heads).permute(0, 2, 1, 3)


def join_heads(x: Tensor) -> Tensor:
    batch, heads, rows, width = x.shape
    return x.permute(0, 2, 1, 3).reshape(batch, rows, heads * width)


def whole_slice(x: Tensor, dim: int) -> Tensor:
    """`x[:]` as torch 2.6 dispatches it: a slice with a backward of its own; torch 2.13 leaves it out. Where it is
    dispatched the program's own `x[:, -1]` does so, of its first dim."""
    selected = torch.zeros(1, 1, requires_grad=True)[:, -1].grad_fn
    assert selected is not None
    if dim == 0 and "Slice" in type(selected.next_functions[0][0]).__name__:
        return x
    return torch.ops.aten.slice(x, dim, 0, 2**63 - 1)


def autocast(on: bool) -> AbstractContextManager[object]:
    return torch.autocast("cuda", dtype=torch.bfloat16) if on else nullcontext()


# --- four layers, width 512; masks and angles come from the host ------------------------------------------------------


class SmallNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width, device="cuda"))

    def forward(self, x: Tensor) -> Tensor:
        before = x.dtype
        x = x.to(torch.float32)
        root = torch.sqrt(torch.mean(x**2, dim=-1, keepdim=True) + 1e-5)
        result = x / root * self.weight
        return result.to(before)


class SmallRotation(nn.Module):
    def __init__(self, width: int, longest: int) -> None:
        super().__init__()
        self.register_buffer("sines", torch.zeros(longest, width // 2), persistent=False)
        self.register_buffer("cosines", torch.zeros(longest, width // 2), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[-2])
        sines = self.sines[places].to("cuda")
        cosines = self.cosines[places].to("cuda")
        wide_sines, wide_cosines = sines[None, :, :, None], cosines[None, :, :, None]
        x = x.view(*x.shape[:-1], -1, 2)
        first = wide_cosines * x[..., :1] - wide_sines * x[..., 1:]
        second = wide_sines * x[..., :1] + wide_cosines * x[..., 1:]
        both = torch.cat([first, second], dim=-1)
        both = both.flatten(-2)
        return both


class SmallSoftmax(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        highest, _ = torch.max(x, dim=-1, keepdim=True)
        return torch.exp(x - highest) / torch.sum(torch.exp(x - highest), dim=-1, keepdim=True)


class SmallProduct(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        mask = mask.to(q.device)
        width = q.shape[-1]
        product = torch.einsum("...qd,...kd->...qk", q, k)
        scores = product / torch.sqrt(torch.tensor(width, device=product.device))
        masked = scores.masked_fill_(~mask.bool(), -float("inf"))
        weights = SmallSoftmax()(masked)
        result = torch.einsum("...qk,...kd->...qd", weights, v)
        return result


class Linear(nn.Module):
    def __init__(self, inputs: int, outputs: int, device: str = "cuda") -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, device=device))

    def forward(self, x: Tensor) -> Tensor:
        result = einsum_linear(x, self.weight)
        return result


class SmallAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.rotation = SmallRotation(width // heads, 1344)
        self.q, self.k, self.v, self.out = (Linear(width, width) for _ in range(4))
        self.product = SmallProduct()

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x)
        k = self.k(x)
        v = self.v(x)
        q = split_heads(q, self.heads)
        k = split_heads(k, self.heads)
        v = split_heads(v, self.heads)
        q = self.rotation(q)
        k = self.rotation(k)
        mask = torch.tril(torch.ones(x.shape[-2], x.shape[-2]))
        o = self.product(q, k, v, mask)
        o = join_heads(o)
        o = self.out(o)
        return o


class SmallSilu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(x)


class SmallFeedForward(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.first, self.second, self.third = Linear(width, inner), Linear(inner, width), Linear(width, inner)

    def forward(self, x: Tensor) -> Tensor:
        a = self.first(x)
        b = SmallSilu()(a)
        c = self.third(x)
        gated = b * c
        return self.second(gated)


class SmallBlock(nn.Module):
    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = SmallNorm(width), SmallNorm(width)
        self.attention, self.feed_forward = SmallAttention(width, heads), SmallFeedForward(width, inner)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm1(x)
        attended = self.attention(normed)
        x1 = attended + x
        normed_again = self.norm2(x1)
        fed = self.feed_forward(normed_again)
        x2 = fed + x1
        return x2


class SmallModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.empty(VOCABULARY, 512, device="cuda"))
        self.layers = nn.ModuleList(SmallBlock(512, 16, 1344) for _ in range(4))
        self.norm = SmallNorm(512)
        self.head = Linear(512, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding[tokens]
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        output = self.head(x)
        return output


class SmallLoss(nn.Module):
    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        batch = x.shape[0]
        highest, _ = torch.max(x, dim=-1, keepdim=True)
        logs = x - highest - torch.log(torch.sum(torch.exp(x - highest), dim=-1, keepdim=True))
        one_hot = torch.zeros_like(logs)
        one_hot.scatter_(-1, target.unsqueeze(-1), 1)
        loss = -torch.sum(one_hot * logs) / batch
        return loss


class SmallAdam(torch.optim.Optimizer):
    def __init__(self, parameters: Iterator[nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 1e-3})
        for p in self.param_groups[0]["params"]:
            self.state[p] = {"m": torch.zeros_like(p.data), "v": torch.zeros_like(p.data)}

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        for p in self.param_groups[0]["params"]:
            grad = p.grad.data
            m = self.state[p]["m"]
            new_m = 0.9 * m + (1 - 0.9) * grad
            self.state[p]["m"] = new_m
            v = self.state[p]["v"]
            new_v = 0.999 * v + (1 - 0.999) * grad**2
            self.state[p]["v"] = new_v
            p.data = p.data - 1e-3 * (new_m / (torch.sqrt(new_v) + 1e-8))
            p.data = p.data - 1e-3 * 0.0 * p.data


def run_small_forward(context: int, at_end: Callable[[], None]) -> None:
    model = SmallModel()
    tokens = torch.randint(0, VOCABULARY, (10, context)).to("cuda")
    for _ in range(3):
        model(tokens)
    at_end()


def run_small_training(context: int, mixed: bool, at_end: Callable[[], None]) -> None:
    model = SmallModel()
    optimizer = SmallAdam(model.parameters())
    tokens = torch.randint(0, VOCABULARY, (10, context)).to("cuda")
    labels = torch.randint(0, VOCABULARY, (10,)).to("cuda")
    with autocast(mixed):
        for _ in range(3):
            optimizer.zero_grad()
            logits = model(tokens)
            predicted = whole_slice(whole_slice(logits, 0)[:, -1], 1)
            loss = SmallLoss()(predicted, labels)
            loss.backward()
            optimizer.step()
    at_end()


# --- 24 layers, width 1,024; everything on the device -----------------------------------------------------------------


class MediumNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        before = x.dtype
        x = x.to(torch.float32)
        root = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
        x = x * root
        return (self.weight * x).to(before)


class MediumRotation(nn.Module):
    def __init__(self, longest: int, width: int) -> None:
        super().__init__()
        self.register_buffer("angles", torch.zeros(2, longest, width // 2), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x1, x2 = x.view(*x.shape[:-1], -1, 2).permute(4, 0, 1, 2, 3).unbind(0)
        cosines, sines = self.angles[:, : x.size(-2), :].unbind(0)
        first = cosines * x1 - sines * x2
        second = sines * x1 + cosines * x2
        result = torch.concat((first, second), dim=-1)
        return result


def medium_softmax(x: Tensor) -> Tensor:
    shifted = x - torch.max(x, dim=-1, keepdim=True)[0]
    powers = torch.exp(shifted)
    return powers / torch.sum(powers, dim=-1, keepdim=True)


def medium_product(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = torch.einsum("...qd,...kd->...qk", q, k) / math.sqrt(k.shape[-1])
    scores = torch.where(mask, scores, float("-inf"))
    weights = medium_softmax(scores)
    return torch.einsum("...qk,...kd->...qd", weights, v)


class MediumAttention(nn.Module):
    def __init__(self, width: int, heads: int, rotation: MediumRotation) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (Linear(width, width, "cpu") for _ in range(4))
        self.rotation = rotation

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x)
        k = self.k(x)
        v = self.v(x)
        q, k, v = (split_heads(each, self.heads) for each in (q, k, v))
        q = self.rotation(q)
        k = self.rotation(k)
        numbers = torch.arange(x.size(-2), device=x.device)
        mask = numbers[:, None] >= numbers[None, :]
        attended = medium_product(q, k, v, mask[None])
        attended = join_heads(attended).contiguous()
        output = self.out(attended)
        return output


class MediumFeedForward(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.first, self.second = Linear(width, inner, "cpu"), Linear(inner, width, "cpu")
        self.third = Linear(width, inner, "cpu")

    def forward(self, x: Tensor) -> Tensor:
        return self.second(medium_silu(self.first(x)) * self.third(x))


def medium_silu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


class MediumBlock(nn.Module):
    def __init__(self, width: int, heads: int, inner: int, rotation: MediumRotation) -> None:
        super().__init__()
        self.attention = MediumAttention(width, heads, rotation)
        self.feed_forward = MediumFeedForward(width, inner)
        self.norm1, self.norm2 = MediumNorm(width), MediumNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        attended = self.attention(self.norm1(x))
        middle = x + attended
        fed = self.feed_forward(self.norm2(middle))
        end = middle + fed
        return end


class MediumEmbedding(nn.Module):
    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, width))

    def forward(self, tokens: Tensor) -> Tensor:
        # `[tokens, :]`, whose slice torch 2.6 dispatches and 2.11, which ran it, does not.
        return self.weight[tokens]


class MediumModel(nn.Module):
    def __init__(self, context: int) -> None:
        super().__init__()
        self.embedding = MediumEmbedding(VOCABULARY, 1024)
        self.rotation = MediumRotation(context, 64)
        self.layers = nn.ModuleList(MediumBlock(1024, 16, 4096, self.rotation) for _ in range(24))
        self.norm = MediumNorm(1024)
        self.head = Linear(1024, VOCABULARY, "cpu")

    def forward(self, tokens: Tensor) -> Tensor:
        embedded = self.embedding(tokens)
        x = embedded
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        logits = self.head(x)
        return logits


def medium_logs(x: Tensor) -> Tensor:
    highest = torch.max(x, dim=-1, keepdim=True)[0]
    x = x - highest
    return x - torch.log(torch.sum(torch.exp(x), dim=-1, keepdim=True))


def medium_loss(logits: Tensor, targets: Tensor) -> Tensor:
    negative = -medium_logs(logits)
    return torch.mean(torch.gather(negative, -1, targets.unsqueeze(-1)))


class MediumAdam(torch.optim.Optimizer):
    def __init__(self, parameters: Iterator[nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 1e-3})

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        for p in self.param_groups[0]["params"]:
            grad = p.grad.data
            state = self.state[p]
            p.data -= 1e-5 * p.data
            m = state.get("m", torch.zeros_like(grad))
            v = state.get("v", torch.zeros_like(grad))
            new_m = 0.9 * m + ((1 - 0.9) * grad)
            new_v = 0.999 * v + ((1 - 0.999) * torch.square(grad))
            p.data -= 1e-3 * new_m / (torch.sqrt(new_v) + 1e-8)
            state["m"], state["v"] = new_m, new_v


def draw_tokens(*shape: int) -> Tensor:
    return torch.randint(0, VOCABULARY, shape, device="cuda")


def run_medium_training(context: int, mixed: bool, begin: Callable[[], None], end: Callable[[], None]) -> None:
    """The recorded program warms up five times; after the second time nothing changes any more."""
    model = MediumModel(context)
    model.to("cuda")
    optimizer = MediumAdam(model.parameters())
    tokens, more_tokens = draw_tokens(5, 4, context), draw_tokens(1, 4, context)
    targets, more_targets = draw_tokens(5, 4, context), draw_tokens(1, 4, context)
    model.train()
    for i in range(2):
        with autocast(mixed):
            output = model(tokens[i])
            loss = medium_loss(output, targets[i])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    del output, loss
    begin()
    with autocast(mixed):
        output = model(more_tokens[0])
        loss = medium_loss(output, more_targets[0])
    loss.backward()
    optimizer.step()
    end()


def run_medium_inference(context: int, begin: Callable[[], None], end: Callable[[], None]) -> None:
    model = MediumModel(context)
    model.to("cuda")
    optimizer = MediumAdam(model.parameters())
    tokens, more_tokens = draw_tokens(5, 4, context), draw_tokens(1, 4, context)
    model.eval()
    with torch.inference_mode():
        for i in range(2):
            model(tokens[i])
        begin()
        model(more_tokens[0])
        end()
    del optimizer


PROGRAMS: dict[str, Callable[[Callable[[], None], Callable[[], None]], None]] = {
    "lm4-forward-ctx100-fp32": lambda _, end: run_small_forward(100, end),
    "lm4-forward-ctx200-fp32": lambda _, end: run_small_forward(200, end),
    "lm4-train-ctx100-fp32": lambda _, end: run_small_training(100, False, end),
    "lm4-train-ctx200-fp32": lambda _, end: run_small_training(200, False, end),
    "lm4-train-ctx200-autocast": lambda _, end: run_small_training(200, True, end),
    "lm24-infer-ctx256": lambda begin, end: run_medium_inference(256, begin, end),
    "lm24-train-ctx128": lambda begin, end: run_medium_training(128, False, begin, end),
    "lm24-train-ctx512": lambda begin, end: run_medium_training(512, True, begin, end),
}
"""Told when the part that was recorded begins and ends."""
