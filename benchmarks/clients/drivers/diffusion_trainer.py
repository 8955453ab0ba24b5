"""denoising-diffusion-pytorch's Trainer over a folder of pictures."""

import sys

from denoising_diffusion_pytorch import GaussianDiffusion, Trainer, Unet

diffusion = GaussianDiffusion(Unet(dim=32, dim_mults=(1, 2)), image_size=32, timesteps=10, sampling_timesteps=4)
Trainer(
    diffusion, sys.argv[1], train_batch_size=8, train_num_steps=20, gradient_accumulate_every=2, amp=True,
    calculate_fid=False, save_and_sample_every=5, num_samples=4,
).train()  # fmt: skip
