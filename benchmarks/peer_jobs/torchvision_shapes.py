"""ResNet-152 and VGG-19 with torchvision's shapes and in-place activations, for jobs that were measured with those.

Written here because torchvision's wheels need the very build of torch that they were compiled for.
"""

from __future__ import annotations

from torch import Tensor, nn

RESNET_152 = ((64, 3), (128, 8), (256, 36), (512, 3))
VGG_19 = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 with the stride, 1 x 1 to four times the width."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride > 1 or inputs != 4 * width:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += x if self.downsample is None else self.downsample(x)
        result: Tensor = self.relu(out)
        return result


def resnet_152(classes: int) -> nn.Module:
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    blocks: list[nn.Module] = []
    inputs = 64
    for width, count in RESNET_152:
        for i in range(count):
            blocks.append(Bottleneck(inputs, width, 2 if i == 0 and width > 64 else 1))
            inputs = 4 * width
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def vgg_19(classes: int) -> nn.Module:
    features: list[nn.Module] = []
    inputs = 3
    for width, count in VGG_19:
        for _ in range(count):
            features += [nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU(inplace=True)]
            inputs = width
        features.append(nn.MaxPool2d(2, 2))
    pooled = [nn.AdaptiveAvgPool2d(7), nn.Flatten()]
    hidden = [
        layer
        for width in (512 * 7 * 7, 4096)
        for layer in (nn.Linear(width, 4096), nn.ReLU(inplace=True), nn.Dropout())
    ]
    return nn.Sequential(*features, *pooled, *hidden, nn.Linear(4096, classes))
