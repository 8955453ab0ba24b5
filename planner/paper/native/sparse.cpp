// Sparse tensors (COO) on the paper GPU: two tensors on it, which hold the places and the values.
//
// What only looks at them, makes them and masks by them is torch's own code, which is the same for every device
// (torch 2.13, ATen/native/sparse/SparseTensor.cpp, SparseTensorMath.cpp); CUDA has kernels of its own for sums and products
// (sparse/cuda/SparseCUDATensorMath.cu). Sums of two sparse tensors, products of two, and `coalesce`, whose result is as
// large as the values say, have none here.
#include "sparse.h"

#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_coalesced_native.h>
#include <ATen/ops/_indices_native.h>
#include <ATen/ops/_nnz_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors_native.h>
#include <ATen/ops/_to_dense_native.h>
#include <ATen/ops/_values_native.h>
#include <ATen/ops/add_native.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/dense_dim_native.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_native.h>
#include <ATen/ops/is_coalesced_native.h>
#include <ATen/ops/mul_native.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/sparse_dim_native.h>
#include <ATen/ops/sparse_mask_native.h>

namespace at::native {
// Declared in ATen/native/sparse/SparseTensorMath.h, which torch does not ship, and exported.
TORCH_API Tensor& _mul_dense_sparse_out(const Tensor& dense, const Tensor& sparse, Tensor& result);
}  // namespace at::native

namespace paper {
namespace {

// add_out_dense_sparse_cuda. The sum is made in the dtype of both, next to the dense tensor where that has another.
at::Tensor& add_to_dense(const at::Tensor& dense, const at::Tensor& sparse, const at::Scalar& alpha, at::Tensor& out) {
  TORCH_CHECK(!dense.is_sparse() && sparse.is_sparse(), "planner has no sum of two sparse tensors on paper");
  if (sparse._nnz() == 0) return out.resize_as_(dense).copy_(dense);
  const auto dtype = at::result_type(dense, sparse);
  auto sum = out.scalar_type() == dtype ? out : at::empty_like(dense, out.options().dtype(dtype));
  const auto start = dense.to(dtype);
  auto values = sparse._values().to(dtype);
  if (!sum.is_same(start)) sum.resize_as_(dense).copy_(start);
  const auto indices = sparse._indices();
  if (values.numel() > 0 && !sparse.is_coalesced()) {
    const auto places = indices.size(0) == 1 ? indices.squeeze(0) : at::arange(indices.size(1), indices.options());
    const auto rows = c10::multiply_integers(dense.sizes().slice(0, sparse.sparse_dim()));
    values = values.reshape({sparse._nnz(), -1});
    sum.view({rows, -1}).index_add_(0, places, values, alpha);
  }
  return out.copy_(sum);
}

// mul_out_sparse_cuda: what is dense goes first.
at::Tensor& multiply(const at::Tensor& one, const at::Tensor& other, at::Tensor& out) {
  TORCH_CHECK(!one.is_sparse() || !other.is_sparse(), "planner has no product of two sparse tensors on paper");
  return one.is_sparse() ? at::native::_mul_dense_sparse_out(other, one, out)
                         : at::native::_mul_dense_sparse_out(one, other, out);
}

}  // namespace

void install_sparse_tensors(torch::Library& sparse) {
  sparse.impl("_sparse_coo_tensor_with_dims_and_tensors", TORCH_FN(at::native::new_with_dims_and_tensor_sparse_symint));
  sparse.impl("empty.memory_format", TORCH_FN(at::native::empty_sparse_symint));
  sparse.impl("_indices", TORCH_FN(at::native::_indices_sparse));
  sparse.impl("_values", TORCH_FN(at::native::_values_sparse));
  sparse.impl("_nnz", TORCH_FN(at::native::_nnz_sparse));
  sparse.impl("sparse_dim", TORCH_FN(at::native::sparse_dim_sparse));
  sparse.impl("dense_dim", TORCH_FN(at::native::dense_dim_sparse));
  sparse.impl("is_coalesced", TORCH_FN(at::native::is_coalesced_sparse));
  sparse.impl("_coalesced_", TORCH_FN(at::native::_coalesced_sparse_));
  sparse.impl("sparse_mask", TORCH_FN(at::native::sparse_mask));
  sparse.impl("_to_dense", TORCH_FN(at::native::sparse_to_dense));
  sparse.impl("add.Tensor", TORCH_FN(at::native::add_sparse));
  sparse.impl("add_.Tensor", TORCH_FN(at::native::add_sparse_));
  sparse.impl("add.out", TORCH_FN(add_to_dense));
  sparse.impl("mul.Tensor", TORCH_FN(at::native::mul_sparse));
  sparse.impl("mul.out", TORCH_FN(multiply));
}

}  // namespace paper
