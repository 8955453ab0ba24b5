"""The programs of others that `planner run` is tried on: which, from whose package, and how each is started.

In a command `{packages}` is the folder of installed packages, `{drivers}` that of our own short files which only call a
project's trainer, `{beside}` that of packages which only some of them may find: triton, whose kernels others would
launch, and an older torchao. A program runs in the folder that `materials.py` fills.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One row of the table. `ours`: the file that is started is ours, and calls their trainer. `refused`: it cannot be
    run, and ends with exit code 2 and an error that says this."""

    project: str
    program: str
    layout: str
    command: str
    refused: str = ""

    @property
    def ours(self) -> bool:
        return "{drivers}" in self.command

    @property
    def name(self) -> str:
        return f"{self.project}: {self.program}, {self.layout}"


def _rows(project: str, *rows: tuple[str, str, str]) -> tuple[Client, ...]:
    return tuple(Client(project=project, program=one, layout=two, command=three) for one, two, three in rows)


_TRL = "--model_name_or_path llama --output_dir out --report_to none --logging_steps 1 --max_steps 20"
_TITAN = (
    "-m torchtitan.train --model.name {model} --model.flavor debugmodel --model.hf_assets_path tests/assets/tokenizer "
    "--training.dataset c4_test --training.local_batch_size 4 --training.seq_len 512 --training.steps 10 "
    "--metrics.log_freq 1"
)
_OLDER_TORCHAO = "env PYTHONPATH={beside}/torchao"
_LLAMA, _DEEPSEEK = _TITAN.format(model="llama3"), _TITAN.format(model="deepseek_v3")
_LLAMA4 = _TITAN.format(model="llama4")
_P = "--parallelism."
_TORCHRUN = "env PYTHONPATH={beside}/triton torchrun --nproc-per-node"
_LIT = (
    "--data JSON --data.json_path instructions.json --data.val_split_fraction 0.1 --train.global_batch_size 4 "
    "--train.micro_batch_size 2 --train.max_seq_length 64 --out_dir lit_out --train.epochs 1"
)
_LIT_OF_FOUR = _LIT.replace("global_batch_size 4", "global_batch_size 16")

CLIENTS: tuple[Client, ...] = (
    *_rows(
        "TRL",
        ("trl.scripts.sft", "one", f"python -m trl.scripts.sft {_TRL} --dataset_name chats"),
        ("trl.scripts.sft, LoRA, packed", "DDP 4",
         f"torchrun --nproc-per-node 4 -m trl.scripts.sft {_TRL} --dataset_name chats --use_peft --packing "
         "--max_length 64 --attn_implementation sdpa"),
        ("trl.scripts.sft", "FSDP2 4",
         "accelerate launch --num_processes 4 --use_fsdp --fsdp_version 2 --fsdp_auto_wrap_policy "
         f"TRANSFORMER_BASED_WRAP --mixed_precision bf16 -m trl.scripts.sft {_TRL} --dataset_name chats"),
        ("trl.scripts.sft", "ZeRO-3 4",
         "env PYTHONPATH={beside}/triton accelerate launch --num_processes 4 --use_deepspeed --zero_stage 3 "
         f"--mixed_precision bf16 -m trl.scripts.sft {_TRL} --dataset_name chats"),
        ("trl.scripts.dpo", "one", f"python -m trl.scripts.dpo {_TRL} --dataset_name preferences"),
        ("trl.scripts.kto", "one", f"python -m trl.scripts.kto {_TRL} --dataset_name judged"),
        ("trl.scripts.reward", "one",
         f"python -m trl.scripts.reward {_TRL} --dataset_name preferences".replace("path llama", "path judge")),
        ("trl.scripts.grpo: generation inside", "one",
         f"python -m trl.scripts.grpo {_TRL} --dataset_name prompts --reward_model_name_or_path judge "
         "--num_generations 4 --per_device_train_batch_size 4 --max_completion_length 16"),
        ("trl.scripts.grpo: generation inside", "DDP 2",
         f"torchrun --nproc-per-node 2 -m trl.scripts.grpo {_TRL} --dataset_name prompts --reward_model_name_or_path "
         "judge --num_generations 4 --per_device_train_batch_size 4 --max_completion_length 16"),
        ("trl.scripts.rloo: generation inside", "one",
         f"python -m trl.scripts.rloo {_TRL} --dataset_name prompts --reward_model_name_or_path judge "
         "--num_generations 4 --per_device_train_batch_size 4 --max_completion_length 16"),
    ),
    *_rows(
        "torchtitan",
        ("train.py, llama3 debugmodel", "one", f"{_TORCHRUN} 1 {_LLAMA}"),
        ("train.py, llama3 debugmodel", "FSDP2 8", f"{_TORCHRUN} 8 {_LLAMA}"),
        ("train.py, llama3 debugmodel", "FSDP2 2, TP 4",
         f"{_TORCHRUN} 8 {_LLAMA} {_P}tensor_parallel_degree 4"),
        ("train.py, llama3 debugmodel", "HSDP 2x2, CP 2",
         f"{_TORCHRUN} 8 {_LLAMA} {_P}data_parallel_replicate_degree 2 {_P}data_parallel_shard_degree 2 "
         f"{_P}context_parallel_degree 2"),
        ("train.py, llama3 debugmodel", "DDP 4",
         f"{_TORCHRUN} 4 {_LLAMA} {_P}data_parallel_replicate_degree 4 {_P}data_parallel_shard_degree 1"),
        ("train.py, llama3 debugmodel", "PP 2, 1F1B",
         f"{_TORCHRUN} 2 {_LLAMA} {_P}pipeline_parallel_degree 2 {_P}pipeline_parallel_schedule 1F1B"),
        ("train.py, llama3 debugmodel", "FSDP2 2, TP 2, PP 2, interleaved",
         f"{_TORCHRUN} 8 {_LLAMA} {_P}pipeline_parallel_degree 2 {_P}tensor_parallel_degree 2 "
         f"{_P}pipeline_parallel_schedule Interleaved1F1B"),
        ("train.py, deepseek_v3 debugmodel", "FSDP2 4, EP 4",
         f"{_TORCHRUN} 4 {_DEEPSEEK} {_P}expert_parallel_degree 4"),
        ("train.py, llama4 debugmodel", "FSDP2 4", f"{_TORCHRUN} 4 {_LLAMA4}"),
        ("train.py, llama3 debugmodel, compiled", "FSDP2 4",
         f"{_TORCHRUN} 4 {_LLAMA} --compile.enable"),
    ),
    *_rows(
        "litgpt",
        ("finetune_lora", "one", f"python -m litgpt finetune_lora lit/tiny {_LIT}"),
        ("finetune_full", "one", f"python -m litgpt finetune_full lit/tiny {_LIT}"),
        ("finetune_adapter", "one", f"python -m litgpt finetune_adapter lit/tiny {_LIT}"),
        ("finetune_full", "FSDP 4",
         f"torchrun --nproc-per-node 4 -m litgpt finetune_full lit/tiny --devices 4 {_LIT_OF_FOUR}"),
    ),
    *_rows(
        "torchtune",
        *((f"recipes/{recipe}.py", layout,
           f"{_OLDER_TORCHAO} {start} {{packages}}/recipes/{recipe}.py --config tune/{config}.yaml")
          for recipe, config, layout, start in (
              ("full_finetune_single_device", "full", "one", "python"),
              ("lora_finetune_single_device", "lora", "one", "python"),
              ("full_finetune_distributed", "full", "FSDP2 4", "torchrun --nproc-per-node 4"),
              ("lora_dpo_single_device", "dpo", "one", "python"),
          )),
    ),
    *_rows(
        "OpenCLIP",
        *(("open_clip_train.main, synthetic pictures", layout,
           f"{start} -m open_clip_train.main --dataset-type synthetic --train-num-samples 64 --model ViT-S-32 "
           f"--batch-size 8 --workers 2 --epochs 1 --precision amp_bf16 {more}")
          for layout, start, more in (
              ("one", "python", ""),
              ("DDP 4", "torchrun --nproc-per-node 4", "--local-loss --gather-with-grad --grad-checkpointing"),
          )),
    ),
    *_rows(
        "transformers",
        ("Seq2SeqTrainer: evaluation by generation, Adafactor", "one", "python {drivers}/evaluated_trainer.py"),
        ("Seq2SeqTrainer", "DDP 2", "torchrun --nproc-per-node 2 {drivers}/evaluated_trainer.py"),
        ("Seq2SeqTrainer", "ZeRO-2 2",
         "accelerate launch --num_processes 2 --use_deepspeed --zero_stage 2 {drivers}/evaluated_trainer.py "
         "adamw_torch"),
    ),
    *_rows(
        "PEFT",
        *((f"{kind} under transformers' Trainer", "one", f"python {{drivers}}/peft_adapters.py llama {kind}")
          for kind in ("lora", "dora", "adalora", "ia3", "prompts")),
    ),
    *_rows(
        "Lightning",
        ("LightningTransformer", "one", "python {drivers}/lightning_transformer.py"),
        ("LightningTransformer", "DDP 4", "torchrun --nproc-per-node 4 {drivers}/lightning_transformer.py"),
        ("BoringModel: validation, checkpoints", "one", "python {drivers}/lightning_boring.py auto"),
        ("BoringModel: validation, checkpoints", "FSDP 2",
         "torchrun --nproc-per-node 2 {drivers}/lightning_boring.py fsdp"),
    ),
    *_rows(
        "DeepSpeed",
        *((f"engine, stage {stage}", f"ZeRO-{stage} 4",
           f"deepspeed --num_gpus 4 {{drivers}}/deepspeed_engine.py --stage {stage} --model llama")
          for stage in (1, 2, 3)),
    ),
    *_rows(
        "Megatron-core",
        *(("GPT of local layers", layout, f"torchrun --nproc-per-node 4 {{drivers}}/megatron_layers.py {sizes}")
          for layout, sizes in (("DDP 4", "1 1"), ("DDP 2, TP 2", "2 1"), ("TP 2, PP 2", "2 2"))),
    ),
    *_rows(
        "timm",
        ("resnet18, SGD", "one", "python {drivers}/timm_classifier.py resnet18 pictures sgd"),
        ("vit_tiny_patch16_224, LAMB", "one", "python {drivers}/timm_classifier.py vit_tiny_patch16_224 pictures lamb"),
    ),
    *_rows(
        "diffusers",
        ("text to image", "one", "python {drivers}/text_to_image.py"),
        ("text to image", "DDP 2",
         "accelerate launch --num_processes 2 {drivers}/text_to_image.py"),
    ),
    *_rows("sentence-transformers", ("trainer", "one", "python {drivers}/sentence_encoder.py bert")),
    *_rows("Keras", ("fit, on torch", "one", "python {drivers}/keras_fit.py")),
    *_rows("fastai", ("vision learner", "one", "python {drivers}/fastai_learner.py pictures")),
    *_rows("Composer", ("Trainer", "one", "python {drivers}/composer_trainer.py")),
    *_rows("skorch", ("classifier", "one", "python {drivers}/skorch_net.py")),
    *_rows("Stable-Baselines3", ("PPO", "one", "python {drivers}/ppo_agent.py")),
    *_rows("x-transformers", ("training and sampling", "one", "python {drivers}/x_transformer.py")),
    *_rows("denoising-diffusion-pytorch", ("Trainer", "one", "python {drivers}/diffusion_trainer.py pictures/train")),
    *_rows("PyG", ("graph attention", "one", "python {drivers}/graph_network.py")),
    *_rows("segmentation-models-pytorch", ("Unet", "one", "python {drivers}/segmentation.py")),
    *_rows("MONAI", ("supervised trainer, 3-D Unet", "one", "python {drivers}/monai_segmentation.py")),
    Client(project="Ultralytics", program="yolo train", layout="one", refused="size of a result of aten.nonzero",
           command="python {bin}/yolo train model=yolo11n.yaml data=yolo/data.yaml epochs=2 imgsz=64 batch=4"),
    Client(project="pytorch-metric-learning", program="trainer, triplets", layout="one",
           refused="size of a result of aten.nonzero", command="python {drivers}/metric_learning.py"),
    Client(project="Ray Train", program="TorchTrainer", layout="DDP 4", refused="starts a cluster of Ray",
           command="python {drivers}/ray_torch_trainer.py"),
)  # fmt: skip
