#include "host_values.h"

#include <ATen/core/Tensor.h>

#include <atomic>
#include <mutex>
#include <unordered_map>

namespace paper {
namespace {

constexpr size_t kLargestBytes = size_t{1} << 20;
// Of whole numbers more is kept: the experts to which a mixture routes its tokens.
constexpr size_t kLargestWholeBytes = size_t{1} << 26;

std::mutex value_mutex;
std::unordered_map<const void*, at::Tensor> values;
std::atomic<size_t> known_count{0};  // so that the common case, nothing known, takes no lock

bool fills_its_storage(const at::Tensor& tensor) {
  return tensor.is_contiguous() && tensor.storage_offset() == 0 && tensor.nbytes() == tensor.storage().nbytes();
}

}  // namespace

void remember(const at::Tensor& device, const at::Tensor& host) {
  if (!device.has_storage() || device.storage().data() == nullptr) return;
  const bool whole = at::isIntegralType(device.scalar_type(), /*includeBool=*/false);
  if (device.nbytes() > (whole ? kLargestWholeBytes : kLargestBytes) || !fills_its_storage(device)) return forget(device);
  at::Tensor copy = host.expand(device.sizes()).to(device.scalar_type()).contiguous().clone().flatten();
  std::lock_guard<std::mutex> lock(value_mutex);
  values[device.storage().data()] = copy;
  known_count = values.size();
}

std::optional<at::Tensor> remembered(const at::Tensor& device) {
  if (known_count == 0 || !device.has_storage()) return std::nullopt;
  std::lock_guard<std::mutex> lock(value_mutex);
  auto found = values.find(device.storage().data());
  if (found == values.end() || found->second.scalar_type() != device.scalar_type()) return std::nullopt;
  return found->second.as_strided(device.sizes(), device.strides(), device.storage_offset());
}

void remember_result(const c10::OperatorHandle& op, const torch::jit::Stack& arguments,
                     const torch::jit::Stack& results) {
  if (known_count == 0 || results.size() != 1 || !results[0].isTensor() || results[0].toTensor().numel() != 1) return;
  const auto& self = arguments[0].toTensor();
  if (!at::isIntegralType(self.scalar_type(), /*includeBool=*/true)) return;
  for (size_t i = 1; i < arguments.size(); ++i)
    if (arguments[i].isTensor()) return;  // `out=`
  const auto value = remembered(self);
  if (!value.has_value()) return;
  torch::jit::Stack on_host(arguments);
  on_host[0] = *value;
  op.callBoxed(&on_host);
  remember(results[0].toTensor(), on_host[0].toTensor());
}

void forget(const void* address) {
  if (known_count == 0) return;
  std::lock_guard<std::mutex> lock(value_mutex);
  values.erase(address);
  known_count = values.size();
}

void forget(const at::Tensor& device) {
  if (known_count != 0 && device.has_storage()) forget(device.storage().data());
}

}  // namespace paper
