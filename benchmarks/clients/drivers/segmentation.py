"""segmentation-models-pytorch's Unet with its dice loss and its scores."""

import segmentation_models_pytorch as smp
import torch

model = smp.Unet("resnet18", encoder_weights=None, classes=1).cuda()
criterion = smp.losses.DiceLoss("binary")
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(10):
    images, masks = torch.randn(4, 3, 96, 96).cuda(), torch.randint(0, 2, (4, 1, 96, 96)).cuda()
    scores = model(images)
    loss = criterion(scores, masks)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    counts = smp.metrics.get_stats(scores.sigmoid(), masks, mode="binary", threshold=0.5)
    print(loss.item(), smp.metrics.iou_score(*counts, reduction="micro").item())
