"""Lightning's boring model, with validation, checkpoints and a logger."""

import sys

import lightning
from lightning.pytorch.demos.boring_classes import BoringDataModule, BoringModel

trainer = lightning.Trainer(max_epochs=3, devices="auto", strategy=sys.argv[1], default_root_dir="lightning_logs")
trainer.fit(BoringModel(), BoringDataModule())
