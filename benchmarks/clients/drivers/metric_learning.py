"""pytorch-metric-learning's trainer, over triplets."""

import torch
from pytorch_metric_learning import losses, trainers

trunk, head = torch.nn.Linear(32, 64).cuda(), torch.nn.Linear(64, 16).cuda()
rows = torch.utils.data.TensorDataset(torch.randn(256, 32), torch.randint(0, 8, (256,)))
trainers.MetricLossOnly(
    models={"trunk": trunk, "embedder": head},
    optimizers={
        "trunk_optimizer": torch.optim.Adam(trunk.parameters()),
        "embedder_optimizer": torch.optim.Adam(head.parameters()),
    },
    batch_size=32, loss_funcs={"metric_loss": losses.TripletMarginLoss()}, dataset=rows, dataloader_num_workers=0,
    mining_funcs={},
).train(num_epochs=2)  # fmt: skip
