"""Ray Train's TorchTrainer over a loop with its own preparation of model and data."""

import torch
from ray import train
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model


def loop(_config):
    model = prepare_model(torch.nn.Linear(256, 256))
    optimizer = torch.optim.AdamW(model.parameters())
    data = prepare_data_loader(torch.utils.data.DataLoader(torch.randn(256, 256), batch_size=16))
    for _ in range(5):
        for rows in data:
            loss = model(rows).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        train.report({"loss": loss.item()})


TorchTrainer(loop, scaling_config=train.ScalingConfig(num_workers=4, use_gpu=True)).fit()
