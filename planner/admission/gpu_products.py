"""What a cluster calls its GPUs (the node label nvidia.com/gpu.product), as names of the catalog."""

from __future__ import annotations

LABEL = "nvidia.com/gpu.product"
"""Set by NVIDIA's GPU feature discovery: the name that NVML says, with dashes for its spaces
(NVIDIA/k8s-device-plugin, internal/lm/resource.go, productLabel)."""

_PRODUCTS = {
    "Tesla-V100-SXM2-16GB": "V100-SXM2-16GB",
    "Tesla-V100-SXM2-32GB": "V100-SXM2-32GB",
    "Tesla-V100-PCIE-16GB": "V100-PCIE-16GB",
    "Tesla-V100-PCIE-32GB": "V100-PCIE-32GB",
    "Tesla-T4": "T4-16GB",
    "NVIDIA-A10G": "A10G-24GB",
    "NVIDIA-L4": "L4-24GB",
    "NVIDIA-L40S": "L40S-48GB",
    "NVIDIA-A40": "A40-48GB",
    "NVIDIA-GeForce-RTX-3090": "RTX3090-24GB",
    "NVIDIA-GeForce-RTX-4090": "RTX4090-24GB",
    "NVIDIA-A100-SXM4-40GB": "A100-SXM-40GB",
    "NVIDIA-A100-PCIE-40GB": "A100-PCIE-40GB",
    "NVIDIA-A100-SXM4-80GB": "A100-SXM-80GB",
    "NVIDIA-A100-80GB-PCIe": "A100-PCIE-80GB",
    "NVIDIA-H100-PCIe": "H100-PCIE-80GB",
    "NVIDIA-H100-80GB-HBM3": "H100-SXM-80GB",
    "NVIDIA-H100-NVL": "H100-NVL-94GB",
    "NVIDIA-H200": "H200-SXM-141GB",
    "NVIDIA-B200": "B200-SXM-180GB",
}
"""NVML's names as `torch.cuda.get_device_properties` and `nvidia-smi -L` print them; gpus.yaml cites where.
A part of a GPU (`-MIG-1g.10gb`) and a GPU shared in time (`-SHARED`) are not here: what a process may use of them
is not the product's to say."""
_FOLDED = {product.casefold(): name for product, name in _PRODUCTS.items()}


def catalog_name(product: str) -> str:
    """The catalog's name of a product; empty for one that it does not have, or of which a job gets a part only."""
    return _FOLDED.get(product.casefold(), "")
