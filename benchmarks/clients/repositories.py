"""Popular repositories on paper, each started as its README says, for docs/results/programs.md.

    python benchmarks/clients/repositories.py CHECKOUTS DATA [--only TEXT]

`CHECKOUTS` has a folder for each repository, named as it is; `DATA` is what `repository_data.py` filled. The packages
that the programs import have to be importable. Each row runs `planner run` in a copy of the program's folder and is
shown with its parameters beside those that are published, by which the figures are checked.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

_SECONDS = 600
_MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """`parameters` are those that its paper or README says, in millions, of all that lies on the GPU (copies by EMA and
    frozen parts too); 0 where none are said. `{data}` in a command is the folder with the data."""

    kind: str
    name: str
    folder: str
    """Of the checkouts; empty for the command of a package, which starts in an empty one."""
    gpu: str
    command: str
    parameters: float = 0
    options: str = ""
    """Of `planner run`."""
    data: tuple[str, ...] = ()
    """Folders or files of the data, each followed by where the program looks for it in its own."""


_COCO = "torchrun --nproc_per_node=8 train.py --data-path {data}/coco --dataset coco"
_BOXES = "--epochs 26 --lr-steps 16 22 --aspect-ratio-group-factor 3"
_DIFFUSION = (
    "accelerate launch --mixed_precision=fp16 {script} --pretrained_model_name_or_path={{data}}/stable-diffusion"
)
_PICTURES = "--resolution=512 --center_crop --random_flip --train_batch_size=1 --gradient_accumulation_steps=4"
_HUB = "env HF_HUB_OFFLINE=1 HF_HUB_CACHE={data}/hub"
REPOSITORIES: tuple[Repository, ...] = (
    Repository(
        kind="LLM", name="nanoGPT, GPT of characters", folder="nanoGPT", gpu="A100-SXM-40GB",
        command="python train.py config/train_shakespeare_char.py", parameters=10.65,
        data=("shakespeare_char", "data/shakespeare_char"),
    ),
    Repository(
        kind="LLM", name="PyTorch examples, FSDP and TP", folder="examples/distributed/tensor_parallelism",
        gpu="A100-SXM-40GB", command="torchrun --nproc_per_node 4 fsdp_tp_example.py",
    ),
    Repository(
        kind="LLM", name="PyTorch examples, FSDP2", folder="examples/distributed/FSDP2", gpu="A100-SXM-40GB",
        command="torchrun --nproc_per_node 2 example.py",
    ),
    Repository(
        kind="vision", name="torchvision, classification", folder="vision/references/classification",
        gpu="V100-SXM2-32GB", parameters=25.56,
        command="torchrun --nproc_per_node=8 train.py --data-path {data}/imagefolder --model resnet50",
    ),
    Repository(
        kind="vision", name="timm, SE-ResNet-34", folder="pytorch-image-models", gpu="A100-SXM-40GB", parameters=21.96,
        command="torchrun --nproc_per_node=4 train.py --data-dir {data}/imagefolder --model seresnet34 --sched cosine "
        "--epochs 150 --warmup-epochs 5 --lr 0.4 --reprob 0.5 --remode pixel --batch-size 64 --amp -j 4",
    ),
    Repository(
        kind="vision", name="PyTorch examples, ImageNet", folder="examples/imagenet", gpu="A100-SXM-40GB",
        command="python main.py -a resnet18 --dummy", parameters=11.69,
    ),
    Repository(
        kind="vision", name="PyTorch examples, ImageNet on 8 GPUs", folder="examples/imagenet", gpu="A100-SXM-40GB",
        command="python main.py -a resnet50 --dist-url tcp://127.0.0.1:23456 --dist-backend nccl "
        "--multiprocessing-distributed --world-size 1 --rank 0 --dummy", parameters=25.56,
    ),
    Repository(
        kind="detection", name="torchvision, Faster R-CNN", folder="vision/references/detection", gpu="V100-SXM2-32GB",
        command=f"{_COCO} --model fasterrcnn_resnet50_fpn {_BOXES}", parameters=41.76,
    ),
    Repository(
        kind="segmentation", name="torchvision, Mask R-CNN", folder="vision/references/detection",
        gpu="V100-SXM2-32GB", command=f"{_COCO} --model maskrcnn_resnet50_fpn {_BOXES}", parameters=44.4,
    ),
    Repository(
        kind="segmentation", name="torchvision, FCN", folder="vision/references/segmentation", gpu="V100-SXM2-32GB",
        command=f"{_COCO} -b 4 --model fcn_resnet50 --aux-loss", parameters=35.32,
    ),
    Repository(
        kind="segmentation", name="MONAI tutorials, 3-D U-Net", folder="tutorials/3d_segmentation/torch",
        gpu="A100-SXM-40GB", command="python unet_training_array.py",
    ),
    Repository(
        kind="segmentation", name="MONAI tutorials, 2-D U-Net", folder="tutorials/2d_segmentation/torch",
        gpu="A100-SXM-40GB", command="python unet_training_dict.py",
    ),
    Repository(
        kind="detection", name="DETR", folder="detr", gpu="V100-SXM2-16GB", parameters=41.5,
        command="python -m torch.distributed.launch --nproc_per_node=8 --use_env main.py --coco_path {data}/coco",
    ),
    Repository(
        kind="detection", name="Ultralytics, YOLO11n", folder="", gpu="A100-SXM-40GB",
        command="yolo train model=yolo11n.yaml data={data}/yolo/data.yaml epochs=3 imgsz=640",
    ),
    Repository(
        kind="diffusion", name="DiT-XL/2 with its EMA and autoencoder", folder="DiT", gpu="A100-SXM-80GB",
        command="torchrun --nnodes=1 --nproc_per_node=8 train.py --model DiT-XL/2 --data-path {data}/imagefolder/train",
        parameters=2 * 675.13 + 83.65, data=("stable-diffusion/vae", "stabilityai/sd-vae-ft-ema"),
    ),
    Repository(
        kind="diffusion", name="diffusers, text to image with EMA", folder="diffusers/examples/text_to_image",
        gpu="A100-SXM-40GB", options="--gpus 1",
        command=_DIFFUSION.format(script="train_text_to_image.py") + f" --train_data_dir={{data}}/captions --use_ema "
        f"{_PICTURES} --gradient_checkpointing --max_train_steps=15000 --learning_rate=1e-05 --max_grad_norm=1 "
        "--lr_scheduler=constant --lr_warmup_steps=0 --output_dir=out",
    ),
    Repository(
        kind="diffusion", name="diffusers, LoRA", folder="diffusers/examples/text_to_image", gpu="RTX4090-24GB",
        options="--gpus 1",
        command=_DIFFUSION.format(script="train_text_to_image_lora.py") + " --mixed_precision=fp16 "
        f"--train_data_dir={{data}}/captions --dataloader_num_workers=8 {_PICTURES} --max_train_steps=15000 "
        "--learning_rate=1e-04 --max_grad_norm=1 --lr_scheduler=cosine --lr_warmup_steps=0 --output_dir=out",
    ),
    Repository(
        kind="diffusion", name="diffusers, DreamBooth", folder="diffusers/examples/dreambooth", gpu="A100-SXM-40GB",
        options="--gpus 1",
        command="accelerate launch train_dreambooth.py --pretrained_model_name_or_path={data}/stable-diffusion "
        "--instance_data_dir={data}/imagefolder/train/dog --output_dir=out --instance_prompt=dog --resolution=512 "
        "--train_batch_size=1 --gradient_accumulation_steps=1 --learning_rate=5e-6 --lr_scheduler=constant "
        "--lr_warmup_steps=0 --max_train_steps=400",
    ),
    Repository(
        kind="diffusion", name="diffusers, DDPM of its own", folder="diffusers/examples/unconditional_image_generation",
        gpu="A100-SXM-40GB", options="--gpus 1",
        command="accelerate launch train_unconditional.py --train_data_dir={data}/imagefolder/train --resolution=64 "
        "--center_crop --random_flip --output_dir=out --train_batch_size=16 --num_epochs=100 --use_ema "
        "--gradient_accumulation_steps=1 --learning_rate=1e-4 --lr_warmup_steps=500 --mixed_precision=no",
    ),
    Repository(
        kind="GAN", name="PyTorch examples, DCGAN", folder="examples/dcgan", gpu="A100-SXM-40GB",
        command="python main.py --dataset fake --accel",
    ),
    Repository(
        kind="RL", name="CleanRL, PPO", folder="cleanrl", gpu="A100-SXM-40GB",
        command="python cleanrl/ppo.py --seed 1 --env-id CartPole-v0 --total-timesteps 50000",
    ),
    Repository(
        kind="RL", name="CleanRL, DQN", folder="cleanrl", gpu="A100-SXM-40GB",
        command="env PYTHONPATH=. python cleanrl/dqn.py --env-id CartPole-v1",
    ),
    Repository(
        kind="audio", name="transformers, Whisper", folder="transformers/examples/pytorch/speech-recognition",
        gpu="V100-SXM2-32GB", parameters=241.73, data=("metrics/wer", "wer"),
        command=_HUB + " python run_speech_recognition_seq2seq.py "
        "--model_name_or_path=openai/whisper-small --dataset_name={data}/speech --language=hindi --task=transcribe "
        "--train_split_name=train --eval_split_name=test --max_steps=5000 --output_dir=out "
        "--per_device_train_batch_size=16 --gradient_accumulation_steps=2 --per_device_eval_batch_size=16 "
        "--logging_steps=25 --learning_rate=1e-5 --warmup_steps=500 --eval_strategy=steps --eval_steps=1000 "
        "--save_strategy=steps --save_steps=1000 --generation_max_length=225 --preprocessing_num_workers=16 "
        "--max_duration_in_seconds=30 --text_column_name=sentence --freeze_feature_encoder=False "
        "--gradient_checkpointing --fp16 --do_train --do_eval --predict_with_generate",
    ),
    Repository(
        kind="audio", name="transformers, wav2vec2", folder="transformers/examples/pytorch/speech-recognition",
        gpu="V100-SXM2-32GB", parameters=315.44, data=("metrics/wer", "wer"),
        command=_HUB + " python run_speech_recognition_ctc.py --dataset_name={data}/speech "
        "--model_name_or_path=facebook/wav2vec2-large-xlsr-53 --train_split_name=train --output_dir=out "
        "--num_train_epochs=15 --per_device_train_batch_size=16 --gradient_accumulation_steps=2 --learning_rate=3e-4 "
        "--warmup_steps=500 --eval_strategy=steps --text_column_name=sentence --length_column_name=input_length "
        "--save_steps=400 --eval_steps=100 --layerdrop=0.0 --save_total_limit=3 --freeze_feature_encoder "
        "--gradient_checkpointing --chars_to_ignore , ? . ! - ; : \" “ % ‘ ” � --fp16 --group_by_length --do_train "
        "--do_eval",
    ),
    Repository(
        kind="proteins", name="transformers, ESM-2", folder="transformers/examples/pytorch/language-modeling",
        gpu="A100-SXM-80GB", parameters=651.04, data=("metrics/accuracy", "accuracy"),
        command=_HUB + " python run_mlm.py --model_name_or_path facebook/esm2_t33_650M_UR50D "
        "--train_file {data}/proteins/train.txt --validation_file {data}/proteins/test.txt "
        "--per_device_train_batch_size 8 --per_device_eval_batch_size 8 --line_by_line --do_train --do_eval "
        "--output_dir out",
    ),
    Repository(
        kind="LLM", name="DeepSpeed-Chat, step 1", gpu="A100-SXM-40GB", parameters=1315.76,
        folder="DeepSpeedExamples/applications/DeepSpeed-Chat/training/step1_supervised_finetuning",
        options="--gpus 8 --allow-writes", data=("rlhf", "Dahoas", "rlhf", "yitingxie"),
        command=_HUB + " bash training_scripts/opt/single_node/run_1.3b.sh",
    ),
    Repository(
        kind="LLM", name="minGPT, adder", folder="minGPT/projects/adder", gpu="A100-SXM-40GB", parameters=0.09,
        command="python adder.py",
    ),
    Repository(
        kind="LLM", name="minGPT, GPT of characters", folder="minGPT/projects/chargpt", gpu="A100-SXM-40GB",
        command="python chargpt.py", parameters=2.71, data=("characters.txt", "input.txt"),
    ),
    Repository(
        kind="vision", name="MAE, ViT-L on one node", folder="mae", gpu="V100-SXM2-32GB", parameters=329.54,
        command="torchrun --nproc_per_node=8 main_pretrain.py --batch_size 64 --model mae_vit_large_patch16 "
        "--norm_pix_loss --mask_ratio 0.75 --epochs 800 --warmup_epochs 40 --blr 1.5e-4 --weight_decay 0.05 "
        "--data_path {data}/imagefolder",
    ),
    Repository(
        kind="segmentation", name="nnU-Net, 3-D at full resolution", folder="", gpu="A100-SXM-40GB", parameters=31.2,
        command="env nnUNet_raw={data}/nnunet/raw nnUNet_preprocessed={data}/nnunet/preprocessed "
        "nnUNet_results=results nnUNetv2_train 1 3d_fullres 0",
    ),
    Repository(
        kind="diffusion", name="kohya's scripts, LoRA", folder="sd-scripts", gpu="RTX4090-24GB", options="--gpus 1",
        command="accelerate launch --num_cpu_threads_per_process 1 train_network.py "
        "--pretrained_model_name_or_path={data}/stable-diffusion --dataset_config={data}/kohya/dataset.toml "
        "--output_dir=out --output_name=my_lora --save_model_as=safetensors --network_module=networks.lora "
        "--network_dim=16 --network_alpha=1 --learning_rate=1e-4 --optimizer_type=AdamW8bit --lr_scheduler=constant "
        "--sdpa --max_train_epochs=10 --save_every_n_epochs=1 --mixed_precision=fp16 --gradient_checkpointing "
        "--tokenizer_cache_dir={data}/kohya/tokenizers",
    ),
    Repository(
        kind="audio", name="RVC, as a module", folder="Retrieval-based-Voice-Conversion-WebUI", gpu="RTX4090-24GB",
        command="python -m train.train -e voice -sr 40k -f0 1 -bs 12 -g 0 -te 20 -se 5 -l 0 -c 0 -sw 0 -v v2",
        data=("voice", "logs/voice"),
    ),
    Repository(
        kind="vision", name="PyTorch examples, siamese network", folder="examples/siamese_network",
        gpu="A100-SXM-40GB", command="python main.py", data=("MNIST", "../data/MNIST"),
    ),
    Repository(
        kind="LLM", name="PyTorch examples, LSTM of words", folder="examples/word_language_model",
        gpu="A100-SXM-40GB", command="python main.py --accel --epochs 6", data=("wikitext-2", "data/wikitext-2"),
    ),
    Repository(
        kind="LLM", name="PyTorch examples, Transformer of words", folder="examples/word_language_model",
        gpu="A100-SXM-40GB", command="python main.py --accel --epochs 6 --model Transformer --lr 5",
        data=("wikitext-2", "data/wikitext-2"),
    ),
    Repository(
        kind="graphs", name="PyG, GCN", folder="pytorch_geometric", gpu="A100-SXM-40GB", parameters=0.023,
        command="python examples/gcn.py", data=("Planetoid", "data/Planetoid"),
    ),
    Repository(
        kind="segmentation", name="SAM 2, fine-tuning", folder="sam2", gpu="A100-SXM-80GB", parameters=80.85,
        command="python training/train.py -c configs/finetune.yaml --use-cluster 0 --num-gpus 8",
        data=("MOSE/finetune.yaml", "sam2/configs/finetune.yaml", "MOSE/checkpoints", "checkpoints"),
    ),
    Repository(
        kind="LLM", name="fairseq, translation", folder="fairseq", gpu="A100-SXM-40GB", parameters=39.74,
        command="env CUDA_VISIBLE_DEVICES=0 fairseq-train {data}/iwslt/bin --arch transformer_iwslt_de_en "
        "--share-decoder-input-output-embed --optimizer adam --adam-betas (0.9,0.98) --clip-norm 0.0 --lr 5e-4 "
        "--lr-scheduler inverse_sqrt --warmup-updates 4000 --dropout 0.3 --weight-decay 0.0001 "
        "--criterion label_smoothed_cross_entropy --label-smoothing 0.1 --max-tokens 4096 --eval-bleu "
        '--eval-bleu-args {{"beam":5,"max_len_a":1.2,"max_len_b":10}} --eval-bleu-detok moses --eval-bleu-remove-bpe '
        "--eval-bleu-print-samples --best-checkpoint-metric bleu --maximize-best-checkpoint-metric",
    ),
    Repository(
        kind="LLM", name="Axolotl, LoRA of Llama 3.2 1B", folder="axolotl", gpu="A100-SXM-40GB",
        options="--gpus 1 --with flash-attn==2.8.3", data=("teknium", "teknium"), parameters=1235.81 / 2 + 11.27,
        command=_HUB + " axolotl train examples/llama-3/lora-1b.yml",
    ),
    Repository(
        kind="LLM", name="verl, SFT by LoRA of Qwen2.5-0.5B", folder="verl", gpu="A100-SXM-80GB", parameters=511.63 / 4,
        options="--steps 3",
        command=_HUB + " HOME={data}/home bash examples/sft/gsm8k/run_qwen_05_peft.sh 4 out",
    ),
    Repository(
        kind="detection", name="detectron2, Mask R-CNN", folder="detectron2", gpu="A100-SXM-40GB", parameters=44.4,
        command="env PYTHONPATH=. ./tools/train_net.py --config-file "
        "configs/COCO-InstanceSegmentation/mask_rcnn_R_50_FPN_1x.yaml --num-gpus 1 SOLVER.IMS_PER_BATCH 2 "
        "SOLVER.BASE_LR 0.0025 MODEL.WEIGHTS ''", data=("coco", "datasets/coco"),
    ),
    Repository(
        kind="LLM", name="GPT-NeoX, 125M", folder="gpt-neox", gpu="A100-SXM-40GB", parameters=162.32,
        command="python deepy.py train.py -d configs 125M.yml local_setup.yml", data=("neox", "data"),
    ),
    Repository(
        kind="LLM", name="OpenRLHF, SFT of Llama 3 8B", folder="OpenRLHF", gpu="A100-SXM-80GB", parameters=8030.26,
        options="--gpus 8 --ranks 0 --steps 4", data=("Open-Orca", "Open-Orca"),
        command=_HUB + " PYTHONPATH=. bash examples/scripts/train_sft.sh",
    ),
    Repository(
        kind="LLM", name="LLaVA 13B, tuned whole", folder="LLaVA", gpu="A100-SXM-80GB",
        options="--gpus 8 --ranks 0 --steps 3 --with flash-attn==2.7.4",
        data=("llava", "playground/data", "llava", "checkpoints/llava-v1.5-13b-pretrain"),
        command=_HUB + " PYTHONPATH=. bash scripts/v1_5/finetune.sh",
    ),
    Repository(
        kind="proteins", name="OpenFold, initial training", folder="openfold", gpu="A100-SXM-40GB", parameters=93.23,
        options="--gpus 4 --ranks 0 --torch 2.6 --steps 2 --kernels kernels.py",
        data=("structures", "data", "structures/kernels.py", "kernels.py"),
        command="python train_openfold.py data/mmcifs data/alignments data/mmcifs out 2021-10-10 --config_preset "
        "initial_training --train_chain_data_cache_path data/chain_data_cache.json --template_release_dates_cache_path "
        "data/mmcif_cache.json --obsolete_pdbs_file_path data/obsolete.dat --precision bf16 --seed 42 --num_nodes 1 "
        "--gpus 4",
    ),
    Repository(
        kind="molecules", name="MACE, as its command", folder="", gpu="A100-SXM-40GB",
        data=("conformers/train.xyz", "train.xyz", "conformers/test.xyz", "test.xyz"),
        command="mace_run_train --name=MACE_model --train_file=train.xyz --valid_fraction=0.05 --test_file=test.xyz "
        '--config_type_weights={{"Default":1.0}} --E0s={{1:-13.663,6:-1029.281,7:-1484.119,8:-2042.033}} --model=MACE '
        "--hidden_irreps=128x0e+128x1o --r_max=5.0 --batch_size=10 --max_num_epochs=1500 --stage_two "
        "--start_stage_two=1200 --ema --ema_decay=0.99 --amsgrad --restart_latest --device=cuda",
    ),
    Repository(
        kind="molecules", name="Chemprop, as its command", folder="", gpu="A100-SXM-40GB",
        command="chemprop train --data-path {data}/solubilities.csv --task-type regression --output-dir out",
    ),
    Repository(
        kind="vision", name="pytorch-cifar, SimpleDLA", folder="pytorch-cifar", gpu="A100-SXM-40GB",
        data=("cifar/data", "data"), command="env PYTHONPATH={data}/cifar python main.py", parameters=15.14,
    ),
    Repository(
        kind="time series", name="Time-Series-Library, PatchTST", folder="Time-Series-Library", gpu="A100-SXM-40GB",
        data=("dataset", "dataset"), command="bash scripts/long_term_forecast/ETT_script/PatchTST_ETTh1.sh",
    ),
    Repository(
        kind="vision", name="DINOv3, ViT-L by submitit", folder="dinov3", gpu="H100-SXM-80GB", options="--ranks 0",
        command="env PYTHONPATH=. python -m dinov3.run.submit dinov3/train/train.py --nodes 4 --config-file "
        "dinov3/configs/train/vitl_im1k_lin834.yaml --output-dir out "
        "train.dataset_path=ImageNet:split=TRAIN:root={data}/imagenet:extra={data}/imagenet",
    ),
    Repository(
        kind="recommendation", name="DLRM, drawn data", folder="dlrm", gpu="A100-SXM-40GB",
        command="python dlrm_s_pytorch.py --mini-batch-size=2 --data-size=6 --use-gpu",
    ),
)  # fmt: skip


def show(row: Repository, checkouts: Path, data: Path) -> str:
    """The table's line of one program."""
    with tempfile.TemporaryDirectory() as made:
        place = Path(made, "program")
        if row.folder:
            shutil.copytree(checkouts / row.folder, place, symlinks=True)
        else:
            place.mkdir()
        for made_up, sought in zip(row.data[::2], row.data[1::2], strict=True):
            brought = place / sought
            shutil.rmtree(brought, ignore_errors=True)
            brought.parent.mkdir(parents=True, exist_ok=True)
            brought.symlink_to(data / made_up)
        command = row.command.format(data=data).split()
        began = time.perf_counter()
        ran = subprocess.run(
            [sys.executable, "-m", "planner", "run", "--gpu", row.gpu, *row.options.split(), "--format", "json", "--",
             *command],
            cwd=place, capture_output=True, text=True, timeout=_SECONDS, check=False,
        )  # fmt: skip
        seconds = time.perf_counter() - began
    start = f"| {row.kind} | {row.name} | {row.gpu} |"
    if ran.returncode:
        return f"{start} {ran.stderr.strip().splitlines()[0]} | | | {seconds:.0f} |"
    plan = json.loads(ran.stdout)
    (*_, highest) = sorted(plan["rank_classes"], key=lambda ranks: ranks["peak"]["device_bytes"])
    peak = highest["peak"]
    held = highest["at_peak"].get("parameter", 0) / 4e6
    beside = f"{held:.2f} of {row.parameters:.2f}" if row.parameters else f"{held:.2f}"
    figures = (
        f"{peak['allocated_bytes'] / _MIB:,.0f}",
        f"{peak['reserved_bytes'] / _MIB:,.0f}",
        beside,
        f"{seconds:.0f}",
    )
    return f"{start} {' | '.join(figures)} |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkouts", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    for each in REPOSITORIES:
        if arguments.only in each.name:
            print(show(each, arguments.checkouts, arguments.data.resolve()), flush=True)
