// Softmax reads what is contiguous, and its backward makes the product of gradient and result first, as large as either:
// in attention that is not fused, one more matrix of all weights.
//
// torch 2.13, aten/src/ATen/native/cuda/SoftMax.cu: host_softmax, host_softmax_backward, softmax_backward_cuda_out.
#include "softmax.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/mul.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "kernels.h"
#include "memory.h"
#include "trace.h"

namespace paper {
namespace {

struct Reads {
  size_t tensors;   // so many arguments, from the first
  bool product;     // the first is multiplied by the second before
};

const std::unordered_map<std::string, Reads>& softmaxes() {
  static const std::unordered_map<std::string, Reads> known{
      {"aten::_softmax", {1, false}},
      {"aten::_log_softmax", {1, false}},
      {"aten::_softmax_backward_data", {2, true}},
      {"aten::_log_softmax_backward_data", {2, false}},
  };
  return known;
}

}  // namespace

bool is_softmax(const c10::OperatorHandle& op) { return is_gpu() && softmaxes().count(op.schema().name()) > 0; }

void take_for_softmax(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) {
  const auto reads = softmaxes().at(op.schema().name());
  const OperatorScope scope(op.schema().name().c_str());
  const at::AutoDispatchBelowADInplaceOrView below;
  std::vector<at::Tensor> read;
  for (size_t i = 0; i < reads.tensors; ++i) read.push_back(arguments[i].toTensor());
  if (read[0].numel() == 0) return;
  const auto product = reads.product ? at::mul(read[0], read[1]) : read[0];
  read[0] = product;
  for (auto& each : read) each = each.contiguous();
}

}  // namespace paper
