"""MONAI's supervised trainer: a 3-D Unet in half precision."""

import torch
from monai.data import DataLoader, Dataset
from monai.engines import SupervisedTrainer
from monai.losses import DiceCELoss
from monai.networks.nets import UNet

rows = [{"image": torch.randn(1, 32, 32, 32), "label": torch.randint(0, 2, (1, 32, 32, 32))} for _ in range(16)]
network = UNet(spatial_dims=3, in_channels=1, out_channels=2, channels=(8, 16, 32), strides=(2, 2)).cuda()
SupervisedTrainer(
    device=torch.device("cuda"), max_epochs=3, train_data_loader=DataLoader(Dataset(rows), batch_size=2),
    network=network, optimizer=torch.optim.Adam(network.parameters()), amp=True,
    loss_function=DiceCELoss(to_onehot_y=True, softmax=True),
).run()  # fmt: skip
