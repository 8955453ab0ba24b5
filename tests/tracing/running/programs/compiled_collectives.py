"""A compiled model with an operator of its own, and an optimizer whose step is compiled with the collectives in it."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn


@torch.library.custom_op("programs::turn", mutates_args=())
def turn(x: Tensor, w: Tensor) -> Tensor:
    return (w @ x.mT).mT  # of other strides than the function below says


@turn.register_fake
def _(x: Tensor, w: Tensor) -> Tensor:
    return x @ w.mT


turn.register_autograd(
    lambda ctx, grad: (grad @ ctx.saved_tensors[1], grad.mT @ ctx.saved_tensors[0]),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),  # noqa: ARG005
)


class Turned(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        """Dynamo answers both questions about the GPU itself while it compiles."""
        with torch.cuda.device(torch.cuda.current_device()):
            most = torch.cuda.get_device_properties("cuda").multi_processor_count
            return turn(x, self.weight).relu().clamp(max=most)


class Sharded(torch.optim.Optimizer):
    """Momentum over this rank's part of every gradient; the parts of all ranks are gathered at the end."""

    @torch.compile
    @torch.no_grad()
    def step(self) -> None:
        rank, size = dist.get_rank(), dist.get_world_size()
        parameters = self.param_groups[0]["params"]
        parts = [torch.empty_like(each.grad[: each.shape[0] // size]) for each in parameters]
        reduced = [
            dist.reduce_scatter_tensor(part, each.grad, op=dist.ReduceOp.AVG, async_op=True).get_future()
            for part, each in zip(parts, parameters)  # noqa: B905 (torch 2.9 compiles no strict=True beside a break)
        ]
        gathered = []
        for each, part, future in zip(parameters, parts, reduced):  # noqa: B905
            future.wait()
            own = each[rank * len(part) : (rank + 1) * len(part)]
            state = self.state[each]
            if not state:
                state["momentum"] = torch.zeros_like(own)
            own.add_(state["momentum"].mul_(0.9).add_(part), alpha=-0.1)
            gathered.append(dist.all_gather_into_tensor(each, own, async_op=True).get_future())
        torch.futures.collect_all(gathered).wait()


def main() -> None:
    dist.init_process_group("nccl")
    model = Turned(256, 512, bias=False, device="cuda")
    optimizer = Sharded(model.parameters(), {})
    compiled = torch.compile(model, fullgraph=True)
    for _ in range(3):
        compiled(torch.randn(64, 256, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


main()
