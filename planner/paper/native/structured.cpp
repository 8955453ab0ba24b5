// Operators whose shapes are worked out by the very functions that CUDA's kernels call first (ATen's structured
// kernels, at::meta), and some that only write. torch answers for meta tensors in Python here (torch 2.13, torch/_refs,
// _decomp), which takes ten times as long, and a step consists of little else than these.
#include "structured.h"

#include <ATen/core/IListRef.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/add_meta_dispatch.h>
#include <ATen/ops/addmm_meta_dispatch.h>
#include <ATen/ops/baddbmm_meta_dispatch.h>
#include <ATen/ops/bmm_meta_dispatch.h>
#include <ATen/ops/cat_meta_dispatch.h>
#include <ATen/ops/clamp_min_meta_dispatch.h>
#include <ATen/ops/cos_meta_dispatch.h>
#include <ATen/ops/div_meta_dispatch.h>
#include <ATen/ops/exp_meta_dispatch.h>
#include <ATen/ops/gelu_meta_dispatch.h>
#include <ATen/ops/mean_meta_dispatch.h>
#include <ATen/ops/mm_meta_dispatch.h>
#include <ATen/ops/mul_meta_dispatch.h>
#include <ATen/ops/neg_meta_dispatch.h>
#include <ATen/ops/pow_meta_dispatch.h>
#include <ATen/ops/rsqrt_meta_dispatch.h>
#include <ATen/ops/sigmoid_meta_dispatch.h>
#include <ATen/ops/silu_meta_dispatch.h>
#include <ATen/ops/sin_meta_dispatch.h>
#include <ATen/ops/sub_meta_dispatch.h>
#include <ATen/ops/tanh_meta_dispatch.h>

#include <unordered_map>

namespace paper {
namespace {

using Stack = torch::jit::Stack;
using Run = at::Tensor (*)(const Stack&);

template <at::Tensor (*function)(const at::Tensor&)>
at::Tensor one(const Stack& taken) {
  return function(taken[0].toTensor());
}

template <at::Tensor (*function)(const at::Tensor&, const at::Tensor&)>
at::Tensor two(const Stack& taken) {
  return function(taken[0].toTensor(), taken[1].toTensor());
}

template <at::Tensor (*function)(const at::Tensor&, const at::Tensor&, const at::Scalar&)>
at::Tensor scaled(const Stack& taken) {
  return function(taken[0].toTensor(), taken[1].toTensor(), taken[2].toScalar());
}

template <at::Tensor& (*function)(at::Tensor&, const at::Tensor&)>
at::Tensor in_place(const Stack& taken) {
  auto self = taken[0].toTensor();
  return function(self, taken[1].toTensor());
}

template <at::Tensor& (*function)(at::Tensor&, const at::Tensor&, const at::Scalar&)>
at::Tensor scaled_in_place(const Stack& taken) {
  auto self = taken[0].toTensor();
  return function(self, taken[1].toTensor(), taken[2].toScalar());
}

at::Tensor cat(const Stack& taken) {
  const auto tensors = taken[0].toTensorVector();
  return at::meta::cat(at::ITensorListRef(tensors), taken[1].toInt());
}

at::Tensor gelu(const Stack& taken) { return at::meta::gelu(taken[0].toTensor(), taken[1].toStringView()); }

at::Tensor power(const Stack& taken) { return at::meta::pow(taken[0].toTensor(), taken[1].toScalar()); }

// As CUDA has it (aten/src/ATen/native/Activation.cpp).
at::Tensor relu(const Stack& taken) { return at::meta::clamp_min(taken[0].toTensor(), 0); }

at::Tensor mean(const Stack& taken) {
  const auto dims = taken[1].toOptional<std::vector<int64_t>>();
  const auto dtype = taken[3].toOptional<at::ScalarType>();
  return at::meta::mean(taken[0].toTensor(), dims ? at::OptionalIntArrayRef(*dims) : std::nullopt, taken[2].toBool(),
                        dtype);
}

template <at::Tensor& (*function)(const at::Tensor&, const at::Tensor&, at::Tensor&)>
at::Tensor two_into(const Stack& taken) {
  auto out = taken[2].toTensor();
  return function(taken[0].toTensor(), taken[1].toTensor(), out);
}

template <at::Tensor (*function)(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Scalar&,
                                 const at::Scalar&)>
at::Tensor added_product(const Stack& taken) {
  const auto added = taken[0].toTensor();
  auto result = function(added, taken[1].toTensor(), taken[2].toTensor(), taken[3].toScalar(), taken[4].toScalar());
  added.expand(result.sizes());  // CUDA's kernels look only now whether it fits
  return result;
}

template <at::Tensor& (*function)(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Scalar&,
                                  const at::Scalar&, at::Tensor&)>
at::Tensor added_product_into(const Stack& taken) {
  const auto added = taken[0].toTensor();
  auto out = taken[5].toTensor();
  function(added, taken[1].toTensor(), taken[2].toTensor(), taken[3].toScalar(), taken[4].toScalar(), out);
  added.expand(out.sizes());
  return out;
}

at::Tensor filled(const Stack& taken) { return taken[0].toTensor(); }

// What fully_shard reduces (aten/src/ATen/native/TensorShape.cpp, _chunk_cat_out): undefined unless it fits as it is.
at::Tensor chunk_cat_into(const Stack& taken) {
  const auto tensors = taken[0].toTensorVector();
  const auto dim = taken[1].toInt(), chunks = taken[2].toInt();
  const auto out = taken[3].toTensor();
  if (dim != 0 || chunks < 1) return {};
  int64_t columns = 0;
  for (const auto& each : tensors) {
    if (each.dim() == 0 || each.numel() == 0 || each.scalar_type() != tensors.front().scalar_type()) return {};
    columns += (each.size(0) + chunks - 1) / chunks * (each.numel() / each.size(0));
  }
  return out.sizes() == c10::IntArrayRef({chunks, columns}) ? out : at::Tensor();
}

// What fully_shard gathered, cut into parameters: undefined unless all of it fits as it is.
at::Tensor split_copied_into(const Stack& taken) {
  const auto whole = taken[0].toTensor();
  const auto counts = taken[1].toIntVector();
  const auto parts = taken[3].toTensorVector();
  if (whole.dim() == 0 || counts.size() != parts.size()) return {};
  const auto dim = c10::maybe_wrap_dim(taken[2].toInt(), whole.dim());
  int64_t rest = whole.size(dim);
  auto sizes = whole.sizes().vec();
  for (size_t i = 0; i < parts.size(); ++i) {
    sizes[dim] = counts[i];
    rest -= counts[i];
    if (parts[i].sizes() != sizes || parts[i].scalar_type() != whole.scalar_type()) return {};
  }
  return rest == 0 ? whole : at::Tensor();
}

const std::unordered_map<c10::OperatorName, Run>& known() {
  static const std::unordered_map<c10::OperatorName, Run> table = {
      {{"aten::add", "Tensor"}, &scaled<at::meta::add>},
      {{"aten::sub", "Tensor"}, &scaled<at::meta::sub>},
      {{"aten::mul", "Tensor"}, &two<at::meta::mul>},
      {{"aten::div", "Tensor"}, &two<at::meta::div>},
      {{"aten::neg", ""}, &one<at::meta::neg>},
      {{"aten::exp", ""}, &one<at::meta::exp>},
      {{"aten::cos", ""}, &one<at::meta::cos>},
      {{"aten::sin", ""}, &one<at::meta::sin>},
      {{"aten::rsqrt", ""}, &one<at::meta::rsqrt>},
      {{"aten::sigmoid", ""}, &one<at::meta::sigmoid>},
      {{"aten::silu", ""}, &one<at::meta::silu>},
      {{"aten::tanh", ""}, &one<at::meta::tanh>},
      {{"aten::gelu", ""}, &gelu},
      {{"aten::pow", "Tensor_Scalar"}, &power},
      {{"aten::relu", ""}, &relu},
      {{"aten::mean", "dim"}, &mean},
      {{"aten::cat", ""}, &cat},
      {{"aten::mm", ""}, &two<at::meta::mm>},
      {{"aten::bmm", ""}, &two<at::meta::bmm>},
      {{"aten::addmm", ""}, &added_product<at::meta::addmm>},
      {{"aten::baddbmm", ""}, &added_product<at::meta::baddbmm>},
      {{"aten::mul", "out"}, &two_into<at::meta::mul_outf>},
      {{"aten::mm", "out"}, &two_into<at::meta::mm_outf>},
      {{"aten::bmm", "out"}, &two_into<at::meta::bmm_outf>},
      {{"aten::addmm", "out"}, &added_product_into<at::meta::addmm_outf>},
      {{"aten::baddbmm", "out"}, &added_product_into<at::meta::baddbmm_outf>},
      {{"aten::add_", "Tensor"}, &scaled_in_place<at::meta::add_>},
      {{"aten::sub_", "Tensor"}, &scaled_in_place<at::meta::sub_>},
      {{"aten::mul_", "Tensor"}, &in_place<at::meta::mul_>},
      {{"aten::div_", "Tensor"}, &in_place<at::meta::div_>},
      {{"aten::normal_", ""}, &filled},
      {{"aten::uniform_", ""}, &filled},
      {{"aten::_chunk_cat", "out"}, &chunk_cat_into},
      {{"aten::split_with_sizes_copy", "out"}, &split_copied_into},
  };
  return table;
}

}  // namespace

bool run_structured(const c10::OperatorHandle& op, Stack& stack) {
  const auto found = known().find(op.operator_name());
  if (found == known().end()) return false;
  auto result = found->second(stack);
  if (!result.defined()) return false;
  stack.clear();
  if (!op.schema().returns().empty()) stack.emplace_back(std::move(result));
  return true;
}

}  // namespace paper
