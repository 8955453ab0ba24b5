"""Where the paper GPU differs from the host in torch's operator database, and why: held to be complete and to hold."""

from __future__ import annotations

from conformance import Difference

_HOLDS = "taken to hold (planner/paper/values.py)"
_SPARSE = "of sparse tensors paper has what is made of parts (planner/paper/native/sparse.cpp)"
_STATISTICS = "a GPU keeps statistics in float32, also in evaluation (cuda/Normalization.cu, cuda/layer_norm_kernel.cu)"
_UNPOOLED = "a GPU's result is contiguous (cuda/MaxUnpooling.cu, max_unpooling2d_forward_out_cuda)"
_ATTENTION = "another kernel than the host's (transformers/cuda/sdp_utils.cpp)"
_SVD = "cuSOLVER gives the right vectors by rows (BatchLinearAlgebra.cpp, svd_uses_cusolver)"
_SLICES = "a GPU selects the distinct slices, and so they are contiguous (cuda/Unique.cu, unique_dim_cuda_template)"
_PLACES = "a GPU writes the places dim by dim (cuda/Nonzero.cu, nonzero_static_cuda)"
_CUFFT = "cuFFT writes batches in the order of their strides (cuda/SpectralOps.cpp)"
_GELS = "`gels` is the only driver on a GPU (BatchLinearAlgebra.cpp, linalg_lstsq); others are refused there too"
_COMPILED = "compiled on a GPU when it is called (ATen/cuda/jiterator.cu)"
_NO_BFLOAT16 = "its backward is not implemented for bfloat16 on a host"

KNOWN: dict[str, tuple[frozenset[Difference], str]] = {
    name: (frozenset(which if isinstance(which, tuple) else (which,)), reason)
    for names, which, reason in (
        ("allclose", Difference.NUMBERS, _HOLDS),
        ("sparse.sampled_addmm sparse.mm.reduce", Difference.NO_KERNEL, _SPARSE),
        ("to_sparse", (Difference.NO_KERNEL, Difference.NO_REFERENCE), _SPARSE),
        ("native_layer_norm native_batch_norm _native_batch_norm_legit", Difference.SHAPES, _STATISTICS),
        ("_batch_norm_with_update", Difference.SHAPES, _STATISTICS),
        ("nn.functional.max_unpool2d nn.functional.max_unpool2d.grad", Difference.STRIDES, _UNPOOLED),
        ("nn.functional.scaled_dot_product_attention", Difference.STRIDES, _ATTENTION),
        ("svd svd_lowrank pca_lowrank linalg.svd", Difference.STRIDES, _SVD),
        ("unique unique_consecutive", Difference.STRIDES, _SLICES),
        ("nonzero_static", Difference.STRIDES, _PLACES),
        ("fft.hfft2 fft.hfftn fft.rfft2 fft.rfftn fft.irfft2 fft.irfftn", Difference.STRIDES, _CUFFT),
        ("linalg.lstsq linalg.lstsq.grad_oriented", Difference.REFUSES, _GELS),
        ("jiterator_unary jiterator_binary jiterator_4inputs_with_extra_args", Difference.NO_REFERENCE, _COMPILED),
        ("jiterator_binary_return_by_ref jiterator_2inputs_2outputs", Difference.NO_REFERENCE, _COMPILED),
        ("special.i1 special.i1e", Difference.NO_REFERENCE, _NO_BFLOAT16),
        ("to", Difference.NO_REFERENCE, "some samples name a GPU themselves"),
    )
    for name in names.split()
}
