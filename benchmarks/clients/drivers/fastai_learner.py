"""fastai's learner: one cycle in half precision, over pictures in folders."""

import sys

from fastai.vision.all import ImageDataLoaders, Resize, accuracy, resnet18, vision_learner

data = ImageDataLoaders.from_folder(sys.argv[1], valid="val", item_tfms=Resize(64), bs=4)
learner = vision_learner(data, resnet18, metrics=accuracy, pretrained=False).to_fp16()
learner.fit_one_cycle(2)
