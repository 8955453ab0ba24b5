"""Composer's Trainer with two of its algorithms."""

import torch
from composer import Trainer
from composer.algorithms import EMA, GradientClipping
from composer.models import ComposerClassifier

network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
rows = torch.utils.data.TensorDataset(torch.randn(512, 1, 28, 28), torch.randint(0, 10, (512,)))
data = torch.utils.data.DataLoader(rows, batch_size=32)
Trainer(
    model=ComposerClassifier(network, num_classes=10), train_dataloader=data, eval_dataloader=data, max_duration="2ep",
    algorithms=[GradientClipping("norm", 1.0), EMA(half_life="10ba")], device="gpu", precision="amp_bf16",
).fit()  # fmt: skip
