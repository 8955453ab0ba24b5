"""Two networks against each other, with an optimizer each, after PyTorch's dcgan example."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda:0")
generator = nn.Sequential(
    nn.ConvTranspose2d(32, 64, 4, 1, 0, bias=False),
    nn.BatchNorm2d(64),
    nn.ReLU(True),
    nn.ConvTranspose2d(64, 3, 4, 2, 1, bias=False),
    nn.Tanh(),
).to(device)
discriminator = nn.Sequential(
    nn.Conv2d(3, 64, 4, 2, 1, bias=False),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(64, 1, 4, 1, 0, bias=False),
    nn.Sigmoid(),
).to(device)
criterion = nn.BCELoss()
data = DataLoader(TensorDataset(torch.randn(512, 3, 8, 8)), batch_size=16, shuffle=True, num_workers=2)
of_d = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
of_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
for _ in range(100):
    for (real,) in data:
        discriminator.zero_grad()
        real = real.to(device)
        label = torch.full((real.size(0),), 1.0, device=device)
        loss_of_real = criterion(discriminator(real).view(-1), label)
        loss_of_real.backward()
        fake = generator(torch.randn(real.size(0), 32, 1, 1, device=device))
        label.fill_(0.0)
        loss_of_fake = criterion(discriminator(fake.detach()).view(-1), label)
        loss_of_fake.backward()
        of_d.step()
        generator.zero_grad()
        label.fill_(1.0)
        loss = criterion(discriminator(fake).view(-1), label)
        loss.backward()
        of_g.step()
        print(f"{loss_of_real.item() + loss_of_fake.item():.4f} {loss.item():.4f}")
