"""What an inference engine takes outside of weights, KV cache and activations: reported figures. Sizes are MiB.

None of them was measured here.
"""

from __future__ import annotations

NON_TORCH = 164
"""What grows outside of torch's allocator in the engine's profile run, and so counts in its share: 0.16 GiB in
vllm-project/vllm#12126 (H100) and generative-computing/mellea#416; 0.30 GiB with two ranks in
vllm-project/vllm#15815 (L40S), 0.03 GiB in vllm-project/vllm#13882 (RTX 4060)."""
ASLEEP_OF_SEVERAL_RANKS_LARGEST = 2440
"""What a sleeping vLLM of two ranks held, its context with it: 2,440 MiB, and 7,392 MiB in another commit, where one
rank held 774 MiB (NVIDIA-NeMo/RL#223, 2025-04). The first is the interval's upper end, the second is said."""
ASLEEP_SOURCE = (
    "asleep, engines of two ranks held 2.4 GiB, which the interval has, and in one commit 7.2 GiB (NVIDIA-NeMo/RL#223)"
)
CUDA_GRAPHS = 1024
"""Of captured decoding: 0.13 GiB for a model of 0.6B in generative-computing/mellea#416, an estimate of 0.73 GiB in
vllm-project/vllm#39559; vLLM's own message says 1 to 3 GiB (0.7, vllm/worker/model_runner.py)."""
CUDA_GRAPHS_SMALLEST = 128
CUDA_GRAPHS_LARGEST = 3072
CUDA_GRAPHS_SOURCE = (
    "CUDA graphs of the engine: 1 GiB taken, between 0.13 and 3 GiB reported "
    "(generative-computing/mellea#416, vllm-project/vllm#39559); on top of the engine's share"
)
NON_TORCH_SOURCE = "0.16 GiB of the engine's share lie outside torch (vllm-project/vllm#12126)"
