"""What popular repositories are given to train on, in the sizes that their READMEs speak of: pictures in folders, boxes
and masks as COCO has them, digits, tokens, models of Stable Diffusion with random weights.

`python repository_data.py FOLDER` fills a folder (4.5 GB with `--diffusion`; `--hub`: the others' models, of no size
on the disk). Everything is seeded.
"""

from __future__ import annotations

import argparse
import json
import pickle
import random
import string
import struct
import wave
from contextlib import suppress
from pathlib import Path
from typing import Any

import molecule_data
import numpy as np
import tokenizers
from PIL import Image

_CLASSES = ("bee", "cat", "cow", "dog", "fox", "hen", "owl", "pig")
_COCO_SIZES = ((640, 480), (480, 640), (640, 427))
_COCO_CLASSES = {1: "person", 2: "bicycle", 3: "car"}
_DIFFUSION = {"block_out_channels": (128, 256, 512, 512), "layers_per_block": 2, "latent_channels": 4}
"""The autoencoder of Stable Diffusion 1."""
_NUMBERS = np.random.default_rng(0)


def make(folder: Path) -> None:
    """All but models."""
    for split, count in (("train", 2400), ("val", 400)):
        for name in _CLASSES:
            for number in range(count // len(_CLASSES)):
                picture(folder / "imagefolder" / split / name / f"{number}.jpg", 256, 256)
    for split, count in (("train2017", 1600), ("val2017", 200)):
        coco(folder / "coco", split, count)
    digits(folder / "MNIST" / "raw")
    characters(folder / "shakespeare_char")
    captions(folder)
    yolo(folder / "yolo")
    speech(folder / "speech")
    metrics(folder / "metrics")
    texts(folder)
    volumes(folder / "nnunet")
    kohya(folder)
    voice(folder / "voice")
    words(folder / "wikitext-2")
    citations(folder / "Planetoid" / "Cora" / "raw")
    videos(folder / "MOSE")
    pairs(folder / "iwslt")
    instructions(folder)
    questions(folder / "Open-Orca" / "OpenOrca")
    tokens(folder / "neox")
    small_pictures(folder / "cifar")
    index_of_pictures(folder)
    readings(folder / "dataset" / "ETT-small")
    molecule_data.structures(folder / "structures")
    molecule_data.conformers(folder / "conformers")
    molecule_data.solubilities(folder / "solubilities.csv")


def picture(path: Path, width: int, height: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(_NUMBERS.integers(0, 255, (height, width, 3), dtype=np.uint8)).save(path)


def coco(folder: Path, split: str, count: int) -> None:
    """Pictures with one to eight boxes, each with its outline."""
    from torchvision.models._meta import _COCO_CATEGORIES

    images, boxes = [], []
    for number in range(count):
        chance = random.Random(number)
        width, height = chance.choice(_COCO_SIZES)
        name = f"{number:012d}.jpg"
        picture(folder / split / name, width, height)
        images.append({"id": number, "width": width, "height": height, "file_name": name})
        for kind in range(chance.randint(1, 8)):
            x, y = chance.randint(0, width - 120), chance.randint(0, height - 120)
            corners = [x, y, x + 100, y, x + 100, y + 80, x, y + 80]
            boxes.append(
                {"id": len(boxes) + 1, "image_id": number, "category_id": 1 + kind % 3, "bbox": [x, y, 100, 80],
                 "area": 8000, "iscrowd": 0, "segmentation": [corners]}
            )  # fmt: skip
    names = dict(enumerate(_COCO_CATEGORIES))  # of number 0 and of ten more, which are "N/A", there are no boxes
    categories = [{"id": number, "name": name} for number, name in names.items() if number and name != "N/A"]
    path = folder / "annotations" / f"instances_{split}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"images": images, "annotations": boxes, "categories": categories}), encoding="utf-8")


def yolo(folder: Path) -> None:
    """Pictures with a line for each box, as Ultralytics reads them."""
    for split, count in (("train", 128), ("val", 32)):
        for number in range(count):
            picture(folder / "images" / split / f"{number}.jpg", 640, 480)
            lines = [f"{kind} 0.5 0.5 0.2 0.2" for kind in range(3)]
            labels = folder / "labels" / split / f"{number}.txt"
            labels.parent.mkdir(parents=True, exist_ok=True)
            labels.write_text("\n".join(lines), encoding="utf-8")
    names = ", ".join(f"{number}: {name}" for number, name in enumerate(_COCO_CLASSES.values()))
    settings = f"path: {folder.resolve()}\ntrain: images/train\nval: images/val\nnames: {{{names}}}\n"
    (folder / "data.yaml").write_text(settings, encoding="utf-8")


def digits(folder: Path) -> None:
    """MNIST's files."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 60_000), ("t10k", 10_000)):
        pixels = _NUMBERS.integers(0, 255, count * 784, dtype=np.uint8).tobytes()
        labels = _NUMBERS.integers(0, 10, count, dtype=np.uint8).tobytes()
        (folder / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 2051, count, 28, 28) + pixels)
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, count) + labels)


def small_pictures(folder: Path) -> None:
    """CIFAR-10's files, and what keeps torchvision from comparing their MD5."""
    batches = folder / "data" / "cifar-10-batches-py"
    batches.mkdir(parents=True, exist_ok=True)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        pictures = _NUMBERS.integers(0, 255, (10_000, 3 * 32 * 32), dtype=np.uint8)
        batch = {"data": pictures, "labels": _NUMBERS.integers(0, 10, 10_000).tolist()}
        (batches / name).write_bytes(pickle.dumps(batch))
    (batches / "batches.meta").write_bytes(pickle.dumps({"label_names": [*"0123456789"]}))
    (folder / "sitecustomize.py").write_text(_ANY_SUM, encoding="utf-8")


_ANY_SUM = """import importlib.machinery, sys

class AnySum(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name != "torchvision.datasets.utils":
            return None
        spec = super().find_spec(name, path, target)
        execute = spec.loader.exec_module
        def exec_module(module):
            execute(module)
            module.check_md5 = lambda *arguments, **named: True
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, AnySum)
"""


def index_of_pictures(folder: Path) -> None:
    """ImageNet's pictures as DINOv3 lists them: as many as it has, of 2,400 files."""
    count, pictures = 1_281_167, 300
    kinds = [("actual_index", "<u4"), ("class_index", "<u4"), ("class_id", "U3"), ("class_name", "U3")]
    entries = np.empty(count, dtype=kinds)
    entries["actual_index"] = np.arange(count) % pictures
    entries["class_index"] = np.arange(count) % len(_CLASSES)
    entries["class_id"] = entries["class_name"] = np.array(_CLASSES)[entries["class_index"]]
    place = folder / "imagenet"
    place.mkdir(parents=True, exist_ok=True)
    np.save(place / "entries-TRAIN.npy", entries)
    for name in _CLASSES:
        for number in range(pictures):
            picture(place / "train" / name / f"{name}_{number}.JPEG", 500, 375)


def readings(folder: Path) -> None:
    """ETTh1: two years of seven readings an hour."""
    folder.mkdir(parents=True, exist_ok=True)
    hours = np.datetime64("2016-07-01T00") + np.arange(17_420)
    rows = (
        f"{str(hour).replace('T', ' ')}:00:00,{','.join(f'{value:.3f}' for value in _NUMBERS.normal(size=7))}"
        for hour in hours
    )
    (folder / "ETTh1.csv").write_text("\n".join(("date,HUFL,HULL,MUFL,MULL,LUFL,LULL,OT", *rows)), encoding="utf-8")


def characters(folder: Path) -> None:
    """What nanoGPT's prepare.py writes."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 1_000_000), ("val", 100_000)):
        _NUMBERS.integers(0, 64, count).astype(np.uint16).tofile(folder / f"{part}.bin")
    (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 65, "itos": {}, "stoi": {}}))


def captions(folder: Path) -> None:
    """64 pictures with a sentence each, as diffusers' scripts read a folder."""
    rows = []
    for number in range(64):
        picture(folder / "captions" / "train" / f"{number}.jpg", 512, 512)
        rows.append(json.dumps({"file_name": f"{number}.jpg", "text": "a photo of a cat"}))
    (folder / "captions" / "train" / "metadata.jsonl").write_text("\n".join(rows), encoding="utf-8")


def autoencoder(folder: Path) -> None:
    from diffusers import AutoencoderKL

    blocks = {"down_block_types": ["DownEncoderBlock2D"] * 4, "up_block_types": ["UpDecoderBlock2D"] * 4}
    AutoencoderKL(**blocks, **_DIFFUSION, sample_size=512).save_pretrained(folder)


def diffusion(folder: Path) -> None:
    """Stable Diffusion 1's parts in their sizes, with a tokenizer of letters."""
    from diffusers import DDPMScheduler, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel

    autoencoder(folder / "vae")
    UNet2DConditionModel(
        sample_size=64, block_out_channels=(320, 640, 1280, 1280), cross_attention_dim=768, attention_head_dim=8
    ).save_pretrained(folder / "unet")
    text = CLIPTextConfig(
        hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072, vocab_size=49408,
        projection_dim=768,
    )  # fmt: skip
    CLIPTextModel(text).save_pretrained(folder / "text_encoder")
    DDPMScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", clip_sample=False).save_pretrained(
        folder / "scheduler"
    )
    letters = [*string.ascii_lowercase, *string.digits]
    known = [*letters, *(f"{letter}</w>" for letter in letters)]
    known += [f"tok{number}</w>" for number in range(len(known), 49406)] + ["<|startoftext|>", "<|endoftext|>"]
    tokenizer = folder / "tokenizer"
    tokenizer.mkdir(exist_ok=True)
    (tokenizer / "vocab.json").write_text(json.dumps({word: n for n, word in enumerate(known)}), encoding="utf-8")
    (tokenizer / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    special = {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>", "unk_token": "<|endoftext|>"}
    config = {"tokenizer_class": "CLIPTokenizer", "model_max_length": 77, "bos_token": "<|startoftext|>", **special}
    (tokenizer / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


def speech(folder: Path) -> None:
    """Noise of two to eight seconds with a sentence each."""
    for split, count in (("train", 64), ("test", 16)):
        (folder / split).mkdir(parents=True, exist_ok=True)
        rows = []
        for number in range(count):
            seconds = random.Random(number).uniform(2, 8)
            with wave.open(str(folder / split / f"{number}.wav"), "wb") as file:
                file.setnchannels(1)
                file.setsampwidth(2)
                file.setframerate(16_000)
                file.writeframes(_NUMBERS.integers(-3000, 3000, int(seconds * 16_000), dtype=np.int16).tobytes())
            rows.append(json.dumps({"file_name": f"{number}.wav", "sentence": "ek do teen " * int(seconds)}))
        (folder / split / "metadata.jsonl").write_text("\n".join(rows), encoding="utf-8")


_METRIC = """import datasets, evaluate
class Metric(evaluate.Metric):
    def _info(self):
        kinds = datasets.Features({{"predictions": datasets.Value("{kind}"), "references": datasets.Value("{kind}")}})
        return evaluate.MetricInfo(description="", citation="", inputs_description="", features=kinds)
    def _compute(self, predictions, references):
        return {{"{name}": 1.0}}
"""


def metrics(folder: Path) -> None:
    """What `evaluate.load` would fetch."""
    for name, kind in (("wer", "string"), ("accuracy", "int32")):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / f"{name}.py").write_text(_METRIC.format(name=name, kind=kind), encoding="utf-8")


def texts(folder: Path) -> None:
    """Letters for minGPT, proteins of up to 1,000 acids, answers to choose from as Dahoas' sets have them."""
    from datasets import Dataset, DatasetDict

    chance = random.Random(0)
    letters = string.ascii_letters + string.punctuation[:11] + " \n"
    (folder / "characters.txt").write_text("".join(chance.choices(letters, k=1_115_394)), encoding="utf-8")
    (folder / "proteins").mkdir(exist_ok=True)
    for split, count in (("train", 2000), ("test", 100)):
        rows = ["".join(chance.choices("LAGVSERTIDPKQNFYMHWC", k=chance.randint(100, 1000))) for _ in range(count)]
        (folder / "proteins" / f"{split}.txt").write_text("\n".join(rows), encoding="utf-8")
    words = {"prompt": "Human: what is it? Assistant:", "chosen": "it is this", "rejected": "no", "response": "this"}
    pairs = Dataset.from_list([words] * 2000)
    names = ("rm-static", "full-hh-rlhf", "synthetic-instruct-gptj-pairwise", "rlhf-reward-datasets")
    for name in names:
        DatasetDict(train=pairs, test=pairs).save_to_disk(folder / "rlhf" / name)


def hub(folder: Path) -> None:
    """Models as transformers keeps them when it has fetched them: configs, tokenizers, weights that are holes."""
    import transformers as hf

    whisper = hf.WhisperConfig(
        vocab_size=51865, d_model=768, encoder_layers=12, decoder_layers=12, encoder_attention_heads=12,
        decoder_attention_heads=12, encoder_ffn_dim=3072, decoder_ffn_dim=3072, decoder_start_token_id=50258,
    )  # fmt: skip
    place = _weights(folder, "openai/whisper-small", hf.WhisperForConditionalGeneration, whisper)
    tokens = _bytes_and(50257)
    (place / "vocab.json").write_text(json.dumps(tokens), encoding="utf-8")
    (place / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    words = hf.WhisperTokenizer(str(place / "vocab.json"), str(place / "merges.txt"), pad_token="<|endoftext|>")
    languages = [code for code in hf.models.whisper.tokenization_whisper.LANGUAGES if code != "yue"]
    tasks = ("translate", "transcribe", "startoflm", "startofprev", "nocaptions", "notimestamps")
    marks = [f"<|{name}|>" for name in ("startoftranscript", *languages, *tasks)]
    words.add_special_tokens({"additional_special_tokens": marks})
    words.add_tokens([f"<|{number * 0.02:.2f}|>" for number in range(1501)])
    hf.WhisperProcessor(hf.WhisperFeatureExtractor(), words).save_pretrained(place)
    numbers = {f"<|{code}|>": 50259 + number for number, code in enumerate(languages)}
    hf.GenerationConfig(
        is_multilingual=True, lang_to_id=numbers, task_to_id={"translate": 50358, "transcribe": 50359}, max_length=448,
        no_timestamps_token_id=50363, prev_sot_token_id=50361, decoder_start_token_id=50258, bos_token_id=50257,
        eos_token_id=50257, pad_token_id=50257,
    ).save_pretrained(place)  # fmt: skip
    wav2vec2 = hf.Wav2Vec2Config(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096,
        feat_extract_norm="layer", do_stable_layer_norm=True, conv_bias=True, codevector_dim=768,
        proj_codevector_dim=768,
    )  # fmt: skip
    place = _weights(folder, "facebook/wav2vec2-large-xlsr-53", hf.Wav2Vec2ForPreTraining, wav2vec2)
    hf.Wav2Vec2FeatureExtractor(return_attention_mask=True).save_pretrained(place)
    esm = hf.EsmConfig(
        vocab_size=33, hidden_size=1280, num_hidden_layers=33, num_attention_heads=20, intermediate_size=5120,
        max_position_embeddings=1026, position_embedding_type="rotary", token_dropout=True, mask_token_id=32,
        pad_token_id=1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    place = _weights(folder, "facebook/esm2_t33_650M_UR50D", hf.EsmForMaskedLM, esm)
    acids = "<cls> <pad> <eos> <unk> L A G V S E R T I D P K Q N F Y M H W C X B U Z O . - <null_1> <mask>"
    (place / "vocab.txt").write_text("\n".join(acids.split()), encoding="utf-8")
    hf.EsmTokenizer(str(place / "vocab.txt"), model_max_length=1024).save_pretrained(place)
    llama = hf.LlamaConfig(
        vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=8, max_position_embeddings=8192,
    )  # fmt: skip
    place = _weights(folder, "meta-llama/Meta-Llama-3-8B", hf.LlamaForCausalLM, llama, "float16")
    vocabulary = tokenizers.models.BPE(_bytes_and(128256), [])
    letters = tokenizers.Tokenizer(vocabulary)
    letters.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    hf.PreTrainedTokenizerFast(tokenizer_object=letters, bos_token="tok0", eos_token="tok1").save_pretrained(place)
    opt = hf.OPTConfig(hidden_size=2048, num_hidden_layers=24, num_attention_heads=32, ffn_dim=8192)
    place = _weights(folder, "facebook/opt-1.3b", hf.OPTForCausalLM, opt, "float16")
    vocabulary = tokenizers.models.BPE({"<s>": 0, "<pad>": 1, "</s>": 2} | _bytes_and(50262, 3), [])
    letters = tokenizers.Tokenizer(vocabulary)
    letters.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    hf.PreTrainedTokenizerFast(
        tokenizer_object=letters, bos_token="</s>", eos_token="</s>", pad_token="<pad>", unk_token="</s>",
        model_max_length=2048,
    ).save_pretrained(place)  # fmt: skip
    qwen2 = hf.Qwen2Config(
        vocab_size=151936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14,
        num_key_value_heads=2, max_position_embeddings=32768, rope_theta=1e6, rms_norm_eps=1e-6,
        tie_word_embeddings=True, bos_token_id=151643, eos_token_id=151645,
    )  # fmt: skip
    place = _weights(folder, "Qwen/Qwen2.5-0.5B-Instruct", hf.Qwen2ForCausalLM, qwen2, "bfloat16")
    _letters(place, 151643, "<|endoftext|>", "<|im_start|>", "<|im_end|>", pad_token="<|endoftext|>")
    llama = hf.LlamaConfig(
        vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
        num_key_value_heads=8, head_dim=64, max_position_embeddings=131072, rope_theta=5e5, tie_word_embeddings=True,
        bos_token_id=128000, eos_token_id=128001,
    )  # fmt: skip
    place = _weights(folder, "NousResearch/Llama-3.2-1B", hf.LlamaForCausalLM, llama, "bfloat16")
    _letters(place, 128000, "<|begin_of_text|>", "<|end_of_text|>", bos_token="<|begin_of_text|>")


def _letters(place: Path, count: int, *marks: str, **special: str) -> None:
    """A tokenizer of bytes with `marks` from `count` on, the last of which ends a text."""
    import transformers as hf

    letters = tokenizers.Tokenizer(tokenizers.models.BPE(_bytes_and(count), []))
    letters.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters.decoder = tokenizers.decoders.ByteLevel()
    letters.add_special_tokens([*marks])
    fast = hf.PreTrainedTokenizerFast(tokenizer_object=letters, eos_token=marks[-1], **special)
    fast.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    fast.save_pretrained(place)


def _bytes_and(count: int, first: int = 0) -> dict[str, int]:
    """A byte each, then made-up words, `count` in all."""
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    words = letters + [f"tok{number}" for number in range(count - len(letters))]
    return {word: first + number for number, word in enumerate(words)}


_KINDS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


def _weights(folder: Path, name: str, model: Any, config: Any, kind: str = "float32") -> Path:
    """The folder of a model's newest version, with its config and a file of zeros that takes no room."""
    import torch

    place = folder / f"models--{name.replace('/', '--')}" / "snapshots" / "0"
    place.mkdir(parents=True, exist_ok=True)
    (place.parents[1] / "refs").mkdir(exist_ok=True)
    (place.parents[1] / "refs" / "main").write_text("0", encoding="utf-8")
    config.dtype, config.architectures = kind, [model.__name__]
    config.save_pretrained(place)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    with torch.device("meta"):
        tensors = dict(model(config).named_parameters())
    for key, tensor in tensors.items():
        begin, end = end, end + tensor.numel() * (4 if kind == "float32" else 2)
        words = {"dtype": _KINDS[kind], "shape": list(tensor.shape)}
        header[key] = words | {"data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (place / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    return place


def volumes(folder: Path) -> None:
    """A dataset of nnU-Net; `nnUNetv2_plan_and_preprocess -d 1 -c 3d_fullres` makes of it what is trained on."""
    import nibabel

    raw, count = folder / "raw" / "Dataset001_Cubes", 12
    for name in ("imagesTr", "labelsTr"):
        (raw / name).mkdir(parents=True, exist_ok=True)
    label = np.zeros((160, 160, 128), np.uint8)
    label[40:100, 40:100, 30:90], label[50:70, 50:70, 40:60] = 1, 2
    for number in range(count):
        volume = (_NUMBERS.normal(0, 1, label.shape) + label).astype(np.float32)
        nibabel.save(nibabel.Nifti1Image(volume, np.eye(4)), raw / "imagesTr" / f"cube_{number:03d}_0000.nii.gz")
        nibabel.save(nibabel.Nifti1Image(label, np.eye(4)), raw / "labelsTr" / f"cube_{number:03d}.nii.gz")
    about = {"channel_names": {"0": "MRI"}, "labels": {"background": 0, "cube": 1, "core": 2}}
    about |= {"numTraining": count, "file_ending": ".nii.gz"}
    (raw / "dataset.json").write_text(json.dumps(about), encoding="utf-8")


def kohya(folder: Path) -> None:
    """The captions' pictures as kohya's scripts read them, and where they look for the tokenizer."""
    pictures = folder / "kohya" / "pictures"
    for number in range(64):
        picture(pictures / f"{number}.jpg", 512, 512)
        (pictures / f"{number}.txt").write_text("a photo of a cat", encoding="utf-8")
    lines = ["[general]", 'caption_extension = ".txt"', "[[datasets]]", "resolution = 512", "batch_size = 4"]
    lines += ["[[datasets.subsets]]", f'image_dir = "{pictures.resolve()}"', "num_repeats = 10"]
    (folder / "kohya" / "dataset.toml").write_text("\n".join(lines), encoding="utf-8")
    tokenizer = folder / "kohya" / "tokenizers" / "openai_clip-vit-large-patch14"
    tokenizer.parent.mkdir(exist_ok=True)
    if not tokenizer.is_symlink():
        tokenizer.symlink_to((folder / "stable-diffusion" / "tokenizer").resolve())


def voice(folder: Path) -> None:
    """An experiment of RVC with what its preprocessing extracts; `config.json` is its configs/v1/40k.json."""
    from scipy.io import wavfile

    parts = [folder / name for name in ("0_gt_wavs", "3_feature768", "2a_f0", "2b-f0nsf")]
    for part in parts:
        part.mkdir(parents=True, exist_ok=True)
    lines = []
    for number in range(100):
        seconds = 3.7 if number % 4 else _NUMBERS.uniform(1.5, 3.7)
        frames = int(seconds * 50) - 1
        names = [f"{number}.wav", f"{number}.npy", f"{number}.wav.npy", f"{number}.wav.npy"]
        wav, features, pitch, exact = paths = [part / name for part, name in zip(parts, names, strict=True)]
        wavfile.write(wav, 40_000, _NUMBERS.uniform(-0.5, 0.5, int(40_000 * seconds)).astype(np.float32))
        np.save(features, _NUMBERS.normal(0, 1, (frames, 768)).astype(np.float32))
        np.save(pitch, _NUMBERS.integers(1, 255, 2 * frames + 1))
        np.save(exact, _NUMBERS.uniform(80, 400, 2 * frames + 1))
        lines.append("|".join([*(str(path.resolve()) for path in paths), "0"]))
    (folder / "filelist.txt").write_text("\n".join(lines), encoding="utf-8")


def words(folder: Path) -> None:
    """As many words as WikiText-2 has."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 2_075_677), ("valid", 216_347), ("test", 244_102)):
        drawn = np.concatenate((np.arange(33_277), _NUMBERS.integers(0, 33_277, count - 33_277)))
        lines = (" ".join(f"w{number}" for number in drawn[start : start + 60]) for start in range(0, count, 60))
        (folder / f"{part}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def citations(folder: Path) -> None:
    """Cora's files, in its sizes."""
    from scipy import sparse

    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("", 140), ("all", 1708), ("t", 1000)):
        features = sparse.random(count, 1433, 0.012, format="csr", random_state=0)
        (folder / f"ind.cora.{name}x").write_bytes(pickle.dumps(features))
        classes = np.eye(7, dtype=np.int32)[_NUMBERS.integers(0, 7, count)]
        (folder / f"ind.cora.{name}y").write_bytes(pickle.dumps(classes))
    graph = {node: _NUMBERS.integers(0, 2708, 4).tolist() for node in range(2708)}
    (folder / "ind.cora.graph").write_bytes(pickle.dumps(graph))
    (folder / "ind.cora.test.index").write_text("\n".join(map(str, range(1708, 2708))), encoding="utf-8")


def videos(folder: Path) -> None:
    """Sixteen of MOSE, and the configuration of SAM 2's fine-tuning that names them."""
    for video in range(16):
        for frame in range(12):
            picture(folder / "JPEGImages" / f"{video:08d}" / f"{frame:05d}.jpg", 854, 480)
            masks = np.zeros((480, 854), np.uint8)
            for number in range(4):
                masks[50 + 100 * number : 130 + 100 * number, 100 + 20 * frame : 250 + 20 * frame] = number + 1
            path = folder / "Annotations" / f"{video:08d}" / f"{frame:05d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            image = Image.fromarray(masks, "P")
            image.putpalette([*range(256)] * 3)
            image.save(path)
    (folder / "videos.txt").write_text("\n".join(f"{video:08d}" for video in range(16)), encoding="utf-8")
    lines = ["# @package _global_", "defaults:", "- /configs/sam2.1_training/sam2.1_hiera_b+_MOSE_finetune", "- _self_"]
    here = folder.resolve()
    lines += ["dataset:", f"  img_folder: {here}/JPEGImages", f"  gt_folder: {here}/Annotations"]
    lines += [f"  file_list_txt: {here}/videos.txt"]
    (folder / "finetune.yaml").write_text("\n".join(lines), encoding="utf-8")
    with suppress(ImportError):  # what is fine-tuned
        import torch
        from sam2.build_sam import build_sam2

        (folder / "checkpoints").mkdir(exist_ok=True)
        model = build_sam2("configs/sam2.1/sam2.1_hiera_b+.yaml", device="cpu")
        torch.save({"model": model.state_dict()}, folder / "checkpoints" / "sam2.1_hiera_base_plus.pt")


def pairs(folder: Path) -> None:
    """Sentences of two languages, which `fairseq-preprocess --source-lang de --target-lang en --trainpref train
    --validpref valid --destdir bin` makes into what is trained on."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", 40_000), ("valid", 200)):
        lengths = _NUMBERS.integers(5, 60, count)
        for language in ("de", "en"):
            lines = (" ".join(f"{language}{n}" for n in _NUMBERS.integers(0, 8000, length)) for length in lengths)
            (folder / f"{split}.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")


def instructions(folder: Path) -> None:
    """What is asked and answered, as GSM8K and Alpaca have it."""
    from datasets import Dataset

    chance = random.Random(0)
    texts = [" ".join(chance.choices(("it", "is", "one", "of", "the"), k=chance.randint(20, 60))) for _ in range(2400)]
    for split, count in (("train", 2000), ("test", 200)):
        rows = [{"extra_info": {"question": texts[n], "answer": texts[n + 1]}} for n in range(count)]
        Dataset.from_list(rows).to_parquet(folder / "home" / "data" / "gsm8k" / f"{split}.parquet")
    place = folder / "teknium" / "GPT4-LLM-Cleaned"
    place.mkdir(parents=True, exist_ok=True)
    rows = [{"instruction": texts[n], "input": "", "output": texts[n + 1]} for n in range(1200)]
    (place / "train.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")


def conversations(folder: Path) -> None:
    """LLaVA's models, and conversations of up to 2,000 words, most of them about a picture; a word is a token."""
    import torch
    import transformers as hf
    from sentencepiece import sentencepiece_model_pb2 as pieces

    llama = hf.LlamaConfig(
        vocab_size=32000, hidden_size=5120, num_hidden_layers=40, num_attention_heads=40, intermediate_size=13824,
        max_position_embeddings=4096, pad_token_id=0,
    )  # fmt: skip
    place = _weights(folder / "hub", "lmsys/vicuna-13b-v1.5", hf.LlamaForCausalLM, llama, "float16")
    words = pieces.ModelProto()
    for number, piece in enumerate(["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]):
        words.pieces.add(piece=piece, score=0, type=2 if number == 0 else 3 if number < 3 else 6)
    for number in range(259, 32000):
        words.pieces.add(piece=f"▁w{number}", score=-1)
    words.trainer_spec.byte_fallback = True
    words.normalizer_spec.CopyFrom(pieces.NormalizerSpec(add_dummy_prefix=True, remove_extra_whitespaces=False))
    (place / "tokenizer.model").write_bytes(words.SerializeToString())
    about = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (place / "tokenizer_config.json").write_text(json.dumps(about), encoding="utf-8")
    size = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16}
    clip = hf.CLIPConfig(vision_config=size | {"image_size": 336, "patch_size": 14}, projection_dim=768)
    place = _weights(folder / "hub", "openai/clip-vit-large-patch14-336", hf.CLIPModel, clip)
    hf.CLIPImageProcessor(size={"shortest_edge": 336}, crop_size=336).save_pretrained(place)
    picture(folder / "llava" / "coco" / "train2017" / "0.jpg", 640, 480)
    shapes = {"0.weight": (5120, 1024), "0.bias": (5120,), "2.weight": (5120, 5120), "2.bias": (5120,)}
    torch.save(
        {f"model.mm_projector.{name}": torch.zeros(shape, dtype=torch.float16) for name, shape in shapes.items()},
        folder / "llava" / "mm_projector.bin",
    )
    chance, rows = random.Random(0), []
    for number in range(2048):
        turns = []
        for turn in range(2 * chance.randint(1, 6)):
            text = " ".join(f"w{chance.randrange(259, 32000)}" for _ in range(chance.randint(5, 160)))
            turns.append({"from": "gpt" if turn % 2 else "human", "value": text})
        row: dict[str, object] = {"id": str(number), "conversations": turns}
        if number % 16:
            row["image"] = "coco/train2017/0.jpg"
            turns[0]["value"] = "<image>\n" + turns[0]["value"]
        rows.append(row)
    (folder / "llava" / "llava_v1_5_mix665k.json").write_text(json.dumps(rows), encoding="utf-8")


def questions(folder: Path) -> None:
    """As many answered questions as sixteen batches of OpenRLHF's take; with a byte for a token, up to 2,000."""
    chance = random.Random(0)
    rows = [
        {
            name: "".join(chance.choices(string.ascii_letters, k=chance.randint(20, 1000)))
            for name in ("question", "response")
        }
        for _ in range(4096)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")


def tokens(folder: Path) -> None:
    """GPT-NeoX's enwik8 as its preprocessing leaves it: documents of 3,000 tokens; its tokenizer."""
    (folder / "enwik8").mkdir(parents=True, exist_ok=True)
    count, size = 10_000, 3_000
    _NUMBERS.integers(0, 50_257, count * size, dtype=np.uint16).tofile(folder / "enwik8" / "enwik8_text_document.bin")
    with (folder / "enwik8" / "enwik8_text_document.idx").open("wb") as index:
        index.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, count, count + 1))  # 8: uint16
        index.write(np.full(count, size, np.int32).tobytes() + (np.arange(count) * size * 2).tobytes())
        index.write(np.arange(count + 1).tobytes())
    (folder / "gpt2-vocab.json").write_text(
        json.dumps(_bytes_and(50_256) | {"<|endoftext|>": 50_256}), encoding="utf-8"
    )
    (folder / "gpt2-merges.txt").write_text("#version: 0.2\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--diffusion", action="store_true", help="with Stable Diffusion's parts")
    parser.add_argument("--hub", action="store_true", help="with models that transformers finds by name")
    arguments = parser.parse_args()
    make(arguments.folder)
    if arguments.diffusion:
        diffusion(arguments.folder / "stable-diffusion")
    if arguments.hub:
        hub(arguments.folder / "hub")
        conversations(arguments.folder)
