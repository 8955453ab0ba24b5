"""diffusers' networks and noise schedule in the loop of its text-to-image example, by accelerate."""

import torch
from accelerate import Accelerator
from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
from diffusers.optimization import get_scheduler
from diffusers.training_utils import EMAModel, compute_snr
from transformers import CLIPTextConfig, CLIPTextModel

accelerator = Accelerator(mixed_precision="fp16", gradient_accumulation_steps=2)
text = CLIPTextModel(
    CLIPTextConfig(vocab_size=1000, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4)
)
vae = AutoencoderKL(block_out_channels=(32, 64), down_block_types=("DownEncoderBlock2D",) * 2,
                    up_block_types=("UpDecoderBlock2D",) * 2)  # fmt: skip
unet = UNet2DConditionModel(
    sample_size=32, block_out_channels=(32, 64), layers_per_block=1, cross_attention_dim=64, attention_head_dim=8,
    down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
)  # fmt: skip
noise_schedule = DDPMScheduler(num_train_timesteps=1000)
vae.requires_grad_(False)
text.requires_grad_(False)
unet.enable_gradient_checkpointing()
averaged = EMAModel(unet.parameters(), model_cls=UNet2DConditionModel, model_config=unet.config)
optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-4)
rows = [{"pixels": torch.randn(3, 64, 64), "words": torch.randint(0, 1000, (77,))} for _ in range(64)]
data = torch.utils.data.DataLoader(rows, batch_size=4, shuffle=True)
schedule = get_scheduler("cosine", optimizer, num_warmup_steps=2, num_training_steps=100)
unet, optimizer, data, schedule = accelerator.prepare(unet, optimizer, data, schedule)
averaged.to(accelerator.device)
text.to(accelerator.device, dtype=torch.float16)
vae.to(accelerator.device, dtype=torch.float16)
for _ in range(10):
    for batch in data:
        with accelerator.accumulate(unet):
            latents = vae.encode(batch["pixels"].to(torch.float16)).latent_dist.sample() * vae.config.scaling_factor
            noise = torch.randn_like(latents)
            times = torch.randint(0, 1000, (len(latents),), device=latents.device).long()
            noisy = noise_schedule.add_noise(latents, noise, times)
            states = text(batch["words"], return_dict=False)[0]
            guess = unet(noisy, times, states, return_dict=False)[0]
            weights = torch.stack([compute_snr(noise_schedule, times), 5.0 * torch.ones_like(times)], 1).min(1)[0]
            loss = ((guess.float() - noise.float()).pow(2).mean((1, 2, 3)) * weights).mean()
            total = accelerator.gather(loss.repeat(4)).mean().item()
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(unet.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            averaged.step(unet.parameters())
            print(total)
