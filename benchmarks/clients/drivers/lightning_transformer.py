"""Lightning's own demonstration model and Trainer."""

import lightning
import torch
from lightning.pytorch.demos import Transformer
from lightning.pytorch.demos.transformer import LightningTransformer


class Model(LightningTransformer):
    def prepare_data(self):
        """There is nothing to download."""


model = Model(vocab_size=1000)
model.model = Transformer(vocab_size=1000, ninp=128, nhead=4, nhid=256)
tokens = torch.randint(0, 1000, (256, 36))
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(tokens[:, :-1], tokens[:, 1:]), batch_size=8)
trainer = lightning.Trainer(
    accelerator="gpu", devices="auto", strategy="auto", precision="bf16-mixed", max_epochs=4, logger=False,
    enable_checkpointing=False,
)  # fmt: skip
trainer.fit(model, data)
