"""Numbers that a program draws on the device, as CUDA's kernels draw them from a seed: sizes may follow from them.

Whole numbers are drawn at once. Of others is kept how they were drawn; only `topk` and `sort` ask for them. Other
kernels that draw (dropout, `multinomial`, `bernoulli_`) do not move the generator on, and a generator that a program
hands over is assumed to be that of the device: then numbers are some of the same distribution.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

import torch
from torch import Tensor

from planner.paper import values

# Source, torch 2.11: aten/src/ATen/native/cuda/DistributionTemplates.h (calc_execution_policy,
# distribution_elementwise_grid_stride_kernel, random_from_to_kernel); cuRAND 13: curand_philox4x32_x.h,
# curand_normal.h, curand_uniform.h. A thread draws four numbers at a time, by its number and the generator's offset.
_BLOCK, _UNROLLED = 256, 4
_WORD = (1 << 32) - 1
_FACTORS = 0xD2511F53, 0xCD9E8D57
_WEYL = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10
_SCALE = 2.0**-32
_SMALL_RANGE = 1 << 28
"""Whole numbers below it take 32 bits."""
_MOST_WHOLE, _MOST = 1 << 20, 1 << 22
"""Numbers that are drawn here: whole ones, and those that an order is asked of."""
DRAWS = ("aten::normal", "aten::uniform", "aten::random")
_KINDS = ("aten::normal", "aten::uniform")


def draw(device: Tensor, operator: str, numbers: Sequence[float | None]) -> None:
    """An operator of the program (`aten::normal`) fills a tensor with numbers that it draws."""
    count = device.numel()
    if count == 0 or device.is_complex():
        return
    place = _advance(count, 2 if device.dtype is torch.float64 else _UNROLLED)
    if operator in _KINDS and device.is_floating_point() and device.dtype is not torch.float64:
        bounds = struct.unpack("2q", struct.pack("2d", *(number or 0 for number in numbers)))
        torch.ops.paper.remember_draw(device, [*place, _KINDS.index(operator), *bounds])
    elif not device.is_floating_point() and count <= _MOST_WHOLE:
        low, high = _find_range(device.dtype, [None if number is None else int(number) for number in numbers])
        if 0 < high - low < _SMALL_RANGE:
            whole = _draw_words(count, *place)[:count] % (high - low) + low
            torch.ops.paper.remember_value(device, whole.view(device.shape).to(device.dtype))


def find_largest(x: Tensor, k: int, dim: int, largest: bool) -> Tensor | None:
    """Where the largest numbers lie: of drawn ones as they are, of others some places, drawn evenly, where that may be
    assumed."""
    if x.numel() > _MOST:
        return None
    drawn = _draw_again(x)
    if drawn is None:
        if not values.may_assume("the largest of values that nobody has are anywhere, evenly"):
            return None
        drawn = torch.rand(x.shape, generator=torch.Generator().manual_seed(0))  # every time the same: a step repeats
    places: Tensor = drawn.topk(k, dim, largest).indices
    return places


def find_order(x: Tensor, dim: int, descending: bool) -> Tensor | None:
    """Where drawn numbers lie once they are sorted; None for others."""
    drawn = _draw_again(x) if x.numel() <= _MOST else None
    return None if drawn is None else drawn.sort(dim=dim, descending=descending, stable=True).indices


def _advance(count: int, unrolled: int) -> tuple[int, int]:
    """Seed and offset at which so many numbers were drawn; CUDA's own code has moved the device's generator on."""
    torch.cuda._lazy_init()  # there is a tensor: CUDA has begun, and with it a seed that was set before is
    generators = torch.cuda.default_generators
    if not generators:
        return 0, 0
    generator = generators[torch.cuda.current_device()]
    offset, taken = generator.get_offset(), -(-count // (_threads(count) * unrolled)) * 4
    seed = int(generator.initial_seed())
    return seed - (1 << 64) if seed >> 63 else seed, max(offset - taken, 0)


def _threads(count: int) -> int:
    gpu = torch.cuda.get_device_properties()
    blocks = gpu.multi_processor_count * (gpu.max_threads_per_multi_processor // _BLOCK)
    return _BLOCK * min(blocks, -(-count // _BLOCK))


def _find_range(dtype: torch.dtype, numbers: Sequence[int | None]) -> tuple[int, int]:
    """From and to of `random_.from`, `random_.to`, `random_`."""
    highest = 2 if dtype is torch.bool else torch.iinfo(dtype).max + 1
    if len(numbers) < 2:
        return 0, highest if not numbers or numbers[0] is None else numbers[0]
    return numbers[0] or 0, highest if numbers[1] is None else numbers[1]


def _draw_again(x: Tensor) -> Tensor | None:
    """The numbers of a tensor that a program has drawn, in float32; None if it holds others."""
    recipe = torch.ops.paper.known_draw(x)
    if recipe is None:
        return None
    seed, offset, kind, *bounds = recipe
    first, second = struct.unpack("2d", struct.pack("2q", *bounds))
    words = _draw_words(x.numel(), seed, offset)
    if _KINDS[kind] == "aten::uniform":
        numbers = (words.float() * _SCALE + _SCALE / 2) * (second - first) + first
    else:
        numbers = _as_normal(words.view(-1, 2, _threads(x.numel()))).flatten() * second + first
    drawn: Tensor = numbers[: x.numel()].as_strided(x.shape, x.stride()).to(x.dtype).float()
    return drawn


def _as_normal(words: Tensor) -> Tensor:
    """Box-Muller: of two words of a thread the sine, then the cosine."""
    first, second = words.float().unbind(1)
    radius = (-2 * (first * _SCALE + _SCALE / 2).log()).sqrt()
    angle = second * (_SCALE * 2 * math.pi) + _SCALE * math.pi
    return torch.stack([angle.sin() * radius, angle.cos() * radius], 1)


def _draw_words(count: int, seed: int, offset: int) -> Tensor:
    """Philox: words of 32 bits in the order of the elements, a few more than `count` in whole rounds of all threads."""
    threads = _threads(count)
    rounds = -(-count // (threads * _UNROLLED))
    calls = torch.arange(offset // 4, offset // 4 + rounds, device="cpu").view(-1, 1).expand(-1, threads)
    thread = torch.arange(threads, device="cpu").expand(rounds, -1)
    counter = [calls & _WORD, calls >> 32 & _WORD, thread & _WORD, thread >> 32 & _WORD]
    key = [seed & _WORD, seed >> 32 & _WORD]
    for _ in range(_ROUNDS):
        products = [counter[0] * _FACTORS[0], counter[2] * _FACTORS[1]]  # the lower 64 bits
        high, low = [product >> 32 & _WORD for product in products], [product & _WORD for product in products]
        counter = [high[1] ^ counter[1] ^ key[0], low[1], high[0] ^ counter[3] ^ key[1], low[0]]
        key = [(part + weyl) & _WORD for part, weyl in zip(key, _WEYL, strict=True)]
    return torch.stack(counter, 1).flatten()
