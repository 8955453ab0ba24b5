"""Trains for an epoch on data of many lengths, as the case that is named by its argument loads it."""

import os
import random
import sys
import tempfile

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, IterableDataset

CASE = sys.argv[1]
EXAMPLES, FEATURES, WIDTH = 480, 16, 512
chance = random.Random(5)
lengths = [min(1024, int(chance.lognormvariate(4.5, 0.9))) + 8 for _ in range(EXAMPLES)]


class Clips(Dataset):
    def __len__(self):
        return EXAMPLES

    def __getitem__(self, index):
        return torch.zeros(lengths[index], FEATURES)


class Cropped(Clips):
    """Each time another part, which numpy or torch draws."""

    def __getitem__(self, index):
        return torch.zeros(int(torch.randint(8, lengths[index] + 1, ())), FEATURES)


class Stream(IterableDataset):
    def __iter__(self):
        order = random.sample(range(EXAMPLES), EXAMPLES)
        return (torch.zeros(lengths[index], FEATURES) for index in order)


class Pictures(Dataset):
    def __len__(self):
        return EXAMPLES

    def __getitem__(self, index):
        side = lengths[index] // 4 + 16
        return torch.zeros(3, side, 160 if index % 2 else 96)


class Translations(Dataset):
    def __len__(self):
        return EXAMPLES

    def __getitem__(self, index):
        return torch.zeros(lengths[index], dtype=torch.long), torch.zeros(lengths[-index], dtype=torch.long)


class OfOneLength:
    """Shuffled batches of neighbours in length; with `tokens` as many as make so many."""

    def __init__(self, tokens=0):
        self.tokens = tokens

    def __iter__(self):
        batches, batch = [], []
        for index in sorted(range(EXAMPLES), key=lengths.__getitem__):
            if batch and (len(batch) == 8 if not self.tokens else (len(batch) + 1) * lengths[index] > self.tokens):
                batches.append(batch)
                batch = []
            batch.append(index)
        return iter(random.sample(batches, len(batches)))


def pad(examples):
    return pad_sequence(examples, batch_first=True)


def pad_to_multiple(examples):
    batch = pad(examples)
    return {"inputs": nn.functional.pad(batch, (0, 0, 0, -batch.shape[1] % 64)), "names": ["a"] * len(examples)}


def pack(examples):
    return torch.cat(examples)[None, :4096]


def pad_pictures(pictures):
    height, width = (max(picture.shape[dim] for picture in pictures) for dim in (1, 2))
    batch = torch.zeros(len(pictures), 3, height, width)
    for place, picture in zip(batch, pictures, strict=True):
        place[:, : picture.shape[1], : picture.shape[2]] = picture
    return batch


def pad_pairs(pairs):
    sources, targets = zip(*pairs, strict=True)
    return pad(sources), pad(targets)


class Attention(nn.Module):
    """Its scores grow with the square of the length."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(FEATURES, 64)

    def forward(self, x):
        x = self.first(x)
        return (x @ x.transpose(1, 2)).softmax(-1) @ x


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.sources, self.targets = nn.Embedding(64, 64), nn.Embedding(64, 64)
        self.head = nn.Linear(64, 2048)

    def forward(self, source, target):
        source, target = self.sources(source), self.targets(target)
        return self.head((target @ source.transpose(1, 2)).softmax(-1) @ source)


def layers():
    return nn.Sequential(nn.Linear(FEATURES, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, 1))


def convolutions():
    return nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU())


CASES = {
    "shuffled by a generator": (
        layers, Clips(), {"batch_size": 8, "shuffle": True, "generator": torch.Generator().manual_seed(3)}, pad),
    "shuffled by torch's own": (layers, Clips(), {"batch_size": 8, "shuffle": True, "drop_last": True}, pad),
    "sampled with replacement": (
        layers, Clips(), {"batch_size": 8, "sampler": torch.utils.data.RandomSampler(range(EXAMPLES), True, 400)}, pad),
    "batches of one length": (layers, Clips(), {"batch_sampler": OfOneLength()}, pad),
    "batches of as many tokens": (Attention, Clips(), {"batch_sampler": OfOneLength(4096)}, pad),
    "padded to a multiple": (layers, Clips(), {"batch_size": 8}, pad_to_multiple),
    "a stream": (layers, Stream(), {"batch_size": 8}, pad),
    "cropped at random": (layers, Cropped(), {"batch_size": 8}, pad),
    "packed": (layers, Clips(), {"batch_size": 16}, pack),
    "pictures": (convolutions, Pictures(), {"batch_size": 4, "shuffle": True}, pad_pictures),
    "pairs": (Translator, Translations(), {"batch_size": 8, "shuffle": True}, pad_pairs),
    "workers": (layers, Clips(), {"batch_size": 8, "num_workers": 2, "pin_memory": True, "shuffle": True}, pad),
    "accumulated": (layers, Clips(), {"batch_size": 2, "shuffle": True}, pad),
}  # fmt: skip


def train():
    make_model, data, options, collate = CASES[CASE]
    torch.manual_seed(1)
    random.seed(1)
    model = make_model().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    accumulated = 4 if CASE == "accumulated" else 1
    for number, batch in enumerate(DataLoader(data, collate_fn=collate, **options), 1):
        inputs = batch["inputs"] if isinstance(batch, dict) else batch
        inputs = [each.cuda(non_blocking=True) for each in (inputs if isinstance(inputs, tuple) else [inputs])]
        model(*inputs).square().mean().backward()
        if number % accumulated == 0:
            optimizer.step()
            optimizer.zero_grad()
    print("random numbers at the end", random.random(), torch.rand(1).item())


def train_by_trainer():
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=4096, hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=2, max_position_embeddings=2048,
        )
    )  # fmt: skip
    data = [{"input_ids": [1] * length, "labels": [1] * length} for length in lengths]

    def collate(examples):
        return {
            name: pad_sequence([torch.tensor(each[name]) for each in examples], batch_first=True)
            for name in ("input_ids", "labels")
        }

    arguments = TrainingArguments(
        output_dir=os.path.join(tempfile.mkdtemp(), "out"), per_device_train_batch_size=4, num_train_epochs=1,
        report_to=[], save_strategy="no", logging_steps=1000, train_sampling_strategy="group_by_length",
    )  # fmt: skip
    Trainer(model=model, args=arguments, train_dataset=data, data_collator=collate).train()


train_by_trainer() if CASE == "grouped by the Trainer" else train()
