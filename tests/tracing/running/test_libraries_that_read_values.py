"""Libraries whose sizes follow from values of the GPU: generation in TRL, denoising in RT-DETR, torchmetrics."""

from __future__ import annotations

from program_runs import Program, Run

from planner.events import Alloc
from planner.tracing.program.rank_orders import RankRun


def shapes_of(found: RankRun) -> set[tuple[tuple[int, ...], int]]:
    """Every tensor that was made, by shape and bytes."""
    return {
        (event.origin.shape, event.requested_bytes)
        for event in found.trace.events
        if isinstance(event, Alloc) and event.origin is not None
    }


GRPO = """
import os
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer
words = Tokenizer(models.WordLevel({word: at for at, word in enumerate(["<pad>", "<eos>", *"abcdefgh"])}, "a"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")
config = LlamaConfig(
    hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
    vocab_size=200, pad_token_id=0, bos_token_id=1, eos_token_id=1,
)
def reward(completion_ids, **_):
    assert [len(ids) for ids in completion_ids] == [24] * 4
    return [0.0, 1.0, 2.0, 3.0]
GRPOTrainer(
    model=LlamaForCausalLM(config), reward_funcs=reward, processing_class=tokenizer,
    train_dataset=Dataset.from_list([{"prompt": "a b c d e f g"}] * 8),
    args=GRPOConfig(
        output_dir=os.path.dirname(__file__), per_device_train_batch_size=4, num_generations=4,
        max_completion_length=24, max_steps=2, report_to=[], save_strategy="no",
        bf16=False, gradient_checkpointing=False,
    ),
).train()
"""


def test_completions_of_grpo_are_as_long_as_they_may_be(run: Run, program: Program) -> None:
    """Four of 24 tokens after a prompt of seven, with 32 features in float32: those of the completions are scored."""
    found = run(f"env PYTHONPATH={{beside}} python {program(GRPO)}")

    assert found.iterations == 2
    assert shapes_of(found) >= {((4, 7 + 24, 32), 4 * 31 * 32 * 4), ((4 * 24, 32), 96 * 32 * 4)}


DENOISING = """
import torch
from transformers import RTDetrConfig, RTDetrForObjectDetection, RTDetrResNetConfig
backbone = RTDetrResNetConfig(
    embedding_size=8, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1], layer_type="basic",
    out_features=["stage2", "stage3", "stage4"],
)
model = RTDetrForObjectDetection(RTDetrConfig(
    backbone_config=backbone, encoder_in_channels=[16, 24, 32], encoder_hidden_dim=32, encoder_layers=1,
    encoder_ffn_dim=32, encoder_attention_heads=2, decoder_in_channels=[32, 32, 32], d_model=32, num_queries=20,
    decoder_layers=1, decoder_ffn_dim=32, decoder_attention_heads=2, num_denoising=30, num_labels=5,
)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
labels = [{"class_labels": torch.arange(count).cuda() % 5, "boxes": torch.rand(count, 4).cuda()} for count in (3, 7)]
for _ in range(2):
    output = model(pixel_values=torch.randn(2, 3, 64, 64).cuda(), labels=labels)
    seen = output.denoising_meta_values
    assert seen["dn_num_split"] == [56, 20] and [len(each) for each in seen["dn_positive_idx"]] == [3 * 4, 7 * 4], seen
    output.loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_queries_that_denoise_are_as_many_as_boxes_say(run: Run, program: Program) -> None:
    """Of 30 that are asked for, 4 groups fit of 7 boxes, each right and wrong: 56 beside 20 queries, of 32 features."""
    found = run(f"env PYTHONPATH={{beside}} python {program(DENOISING)}")

    assert found.iterations == 2
    assert ((2, 4 * 7 * 2 + 20, 32), 2 * 76 * 32 * 4) in shapes_of(found)


METRICS = """
import torch
from torchmetrics import MaxMetric, MeanMetric
from torchmetrics.classification import MulticlassAUROC, MulticlassConfusionMatrix
from torchmetrics.classification.accuracy import Accuracy
model = torch.nn.Linear(784, 10).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
accuracy, losses, best = Accuracy(task="multiclass", num_classes=10), MeanMetric(), MaxMetric()
confusion, exact = MulticlassConfusionMatrix(num_classes=10), MulticlassAUROC(num_classes=10)
binned = MulticlassAUROC(num_classes=10, thresholds=50)
metrics = [each.cuda() for each in (accuracy, confusion, binned, exact)]
losses, best = losses.cuda(), best.cuda()
for epoch in range(2):
    for _ in range(3):
        images, classes = torch.randn(128, 784).cuda(), torch.randint(0, 10, (128,)).cuda()
        scores = model(images)
        loss = torch.nn.functional.cross_entropy(scores, classes)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses(loss)
        for each in metrics:
            each(scores.softmax(1), classes)
    best(accuracy.compute())
    assert [tuple(each.compute().shape) for each in (*metrics, losses, best)] == [(), (10, 10), (), (), (), ()]
    for each in (*metrics, losses):
        each.reset()
"""


def test_metrics_of_ten_classes_count_in_as_many_bins(run: Run, program: Program) -> None:
    """A count for each class and each it is taken for; for 50 thresholds of each class four; and, for an exact curve,
    the scores of an epoch's three batches."""
    found = run(f"env PYTHONPATH={{beside}} python {program(METRICS)}", patience=60)

    assert found.iterations == 6
    assert shapes_of(found) >= {((100,), 100 * 8), ((50, 10, 2, 2), 50 * 10 * 4 * 8), ((3 * 128, 10), 3 * 128 * 10 * 4)}
