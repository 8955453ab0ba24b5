"""Where torch's CUDA code on paper differs from the host in torch's operator database, and why: a complete list."""

from __future__ import annotations

from conformance import Difference

_NO_KERNEL = "a GPU has no kernel for it, or none for bfloat16"
_NO_COMPLEX = "its gradient of complex numbers is not implemented on a host"
_STATISTICS = "a GPU keeps statistics in float32, also in evaluation (cuda/Normalization.cu, cuda/layer_norm_kernel.cu)"
_UNPOOLED = "a GPU's result is contiguous (cuda/MaxUnpooling.cu, max_unpooling2d_forward_out_cuda)"
_ATTENTION = "another kernel than the host's (transformers/cuda/sdp_utils.cpp)"
_SVD = "cuSOLVER gives the right vectors by rows (BatchLinearAlgebra.cpp, svd_uses_cusolver)"
_SLICES = "a GPU selects the distinct slices, and so they are contiguous (cuda/Unique.cu, unique_dim_cuda_template)"
_PLACES = "a GPU writes the places dim by dim (cuda/Nonzero.cu, nonzero_static_cuda)"
_CUFFT = "cuFFT writes batches in the order of their strides (cuda/SpectralOps.cpp)"
_GELS = "`gels` is the only driver on a GPU (BatchLinearAlgebra.cpp, linalg_lstsq); others are refused there too"
_EIGENVECTORS = "a GPU copies eigenvectors into a result that lies by rows (BatchLinearAlgebra.cpp, linalg_eig_out)"
_THRUST = "Thrust reads on the host what no device has counted, in rows of more than 2048 (cuda/TensorModeKernel.cu)"
_HERMITIAN = "complex numbers with `hermitian=True` are not supported on a GPU"
_COMPILED = "compiled on a GPU when it is called (ATen/cuda/jiterator.cu)"
_NO_BFLOAT16 = "its backward is not implemented for bfloat16 on a host"

KNOWN: dict[str, tuple[frozenset[Difference], str]] = {
    name: (frozenset(which if isinstance(which, tuple) else (which,)), reason)
    for names, which, reason in (
        ("sparse.mm.reduce nn.functional.embedding_bag", Difference.NO_KERNEL, _NO_KERNEL),
        ("to_sparse", Difference.NO_REFERENCE, _NO_COMPLEX),
        ("native_layer_norm native_batch_norm _native_batch_norm_legit", Difference.SHAPES, _STATISTICS),
        ("_batch_norm_with_update", Difference.SHAPES, _STATISTICS),
        ("nn.functional.max_unpool2d nn.functional.max_unpool2d.grad", Difference.STRIDES, _UNPOOLED),
        ("nn.functional.scaled_dot_product_attention", Difference.STRIDES, _ATTENTION),
        ("svd svd_lowrank pca_lowrank linalg.svd", Difference.STRIDES, _SVD),
        ("linalg.eig", Difference.STRIDES, _EIGENVECTORS),
        ("mode", Difference.REFUSES, _THRUST),
        ("linalg.ldl_solve", Difference.REFUSES, _HERMITIAN),
        ("unique unique_consecutive", Difference.STRIDES, _SLICES),
        ("nonzero_static", Difference.STRIDES, _PLACES),
        ("fft.hfft2 fft.hfftn fft.rfft2 fft.rfftn fft.irfft2 fft.irfftn", Difference.STRIDES, _CUFFT),
        ("linalg.lstsq linalg.lstsq.grad_oriented", Difference.REFUSES, _GELS),
        ("jiterator_unary jiterator_binary jiterator_4inputs_with_extra_args", Difference.NO_REFERENCE, _COMPILED),
        ("jiterator_binary_return_by_ref jiterator_2inputs_2outputs", Difference.NO_REFERENCE, _COMPILED),
        ("special.i1 special.i1e", Difference.NO_REFERENCE, _NO_BFLOAT16),
    )
    for name in names.split()
}
