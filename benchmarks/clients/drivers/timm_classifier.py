"""timm's model, data pipeline, optimizer, schedule, scaler, averaged weights and metrics, as in its train.py."""

import sys

import timm
import torch
from timm.data import create_dataset, create_loader
from timm.loss import LabelSmoothingCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import AverageMeter, ModelEmaV3, NativeScaler, accuracy

model = timm.create_model(sys.argv[1], num_classes=10).cuda()
averaged = ModelEmaV3(model)
dataset = create_dataset("folder", sys.argv[2], split="train")
loader = create_loader(
    dataset, input_size=(3, 224, 224), batch_size=8, is_training=True, num_workers=2, auto_augment="rand-m9-mstd0.5",
    re_prob=0.25,
)  # fmt: skip
optimizer = create_optimizer_v2(model, opt=sys.argv[3], lr=1e-3)
schedule, scaler, criterion = CosineLRScheduler(optimizer, 10), NativeScaler(), LabelSmoothingCrossEntropy().cuda()
losses = AverageMeter()
for epoch in range(10):
    for images, labels in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            scores = model(images)
            loss = criterion(scores, labels)
        optimizer.zero_grad()
        scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters())
        averaged.update(model)
        losses.update(loss.item(), images.size(0))
        print(losses.avg, accuracy(scores, labels)[0].item())
    schedule.step(epoch)
