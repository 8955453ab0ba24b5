#include "host_values.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>

#include <atomic>
#include <mutex>
#include <unordered_map>

#include "host_memory.h"

namespace paper {
namespace {

constexpr size_t kLargestBytes = size_t{1} << 20;
// Of whole numbers and truth values more is kept: the experts to which a mixture routes its tokens, masks of weights.
constexpr size_t kLargestWholeBytes = size_t{1} << 26;
// What operators make of it: the labels and masks of a million tokens, the mask of a weight of 4,096 by 4,096; the choice
// of 32,768 tokens among 128 experts, in 64 bits, which no quantized weight has; of other numbers, boxes and their classes.
constexpr size_t kLargestResultBytes = size_t{1} << 24;
constexpr size_t kLargestIndexBytes = size_t{1} << 28;
constexpr size_t kLargestOtherResultBytes = size_t{1} << 16;

std::mutex value_mutex;
std::unordered_map<const void*, at::Tensor> values;
std::unordered_map<const void*, at::Tensor> draws;
std::unordered_map<const void*, at::Scalar> fills;
std::unordered_map<const void*, bool> presumptions;
std::atomic<size_t> known_count{0};  // so that the common case, nothing known, takes no lock
std::atomic<bool> follows{false};

void count_known() { known_count = values.size() + draws.size() + fills.size() + presumptions.size(); }

bool fills_its_storage(const at::Tensor& tensor) {
  return tensor.is_contiguous() && tensor.storage_offset() == 0 && tensor.nbytes() == tensor.storage().nbytes();
}

// How many elements of its storage a tensor reaches over.
int64_t reach(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return 0;
  int64_t last = tensor.storage_offset();
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) last += (tensor.size(dim) - 1) * tensor.stride(dim);
  return last + 1;
}

void remember_beginning(const at::Tensor& device, const at::Tensor& host) {
  NotOfTheProgram kept;
  at::Tensor copy = host.expand(device.sizes()).to(device.scalar_type()).contiguous().clone().flatten();
  std::lock_guard<std::mutex> lock(value_mutex);
  values[device.storage().data()] = copy;
  count_known();
}

}  // namespace

void remember(const at::Tensor& device, const at::Tensor& host) {
  if (!device.has_storage() || device.storage().data() == nullptr) return;
  const bool whole = at::isIntegralType(device.scalar_type(), /*includeBool=*/true);
  const size_t largest = device.scalar_type() == at::kLong ? kLargestIndexBytes : whole ? kLargestWholeBytes : kLargestBytes;
  if (device.nbytes() > largest || !fills_its_storage(device)) return forget(device);
  remember_beginning(device, host);
}

std::optional<at::Tensor> remembered(const at::Tensor& device) {
  if (known_count == 0 || !device.has_storage()) return std::nullopt;
  std::lock_guard<std::mutex> lock(value_mutex);
  auto found = values.find(device.storage().data());
  if (found == values.end() || found->second.scalar_type() != device.scalar_type()) return std::nullopt;
  if (reach(device) > found->second.numel()) return std::nullopt;
  return found->second.as_strided(device.sizes(), device.strides(), device.storage_offset());
}

bool is_whole(const at::Tensor& tensor) { return at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true); }

std::optional<at::Tensor> on_host(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cuda()) return tensor;
  return remembered(tensor);
}

namespace {

size_t largest_result_bytes(const at::Tensor& result) {
  if (result.scalar_type() == at::kLong) return kLargestIndexBytes;
  return is_whole(result) ? kLargestResultBytes : kLargestOtherResultBytes;
}

bool is_single_answer(const torch::jit::Stack& arguments, const at::Tensor& result) {
  if (result.numel() != 1 || !is_whole(arguments[0].toTensor())) return false;
  for (size_t i = 1; i < arguments.size(); ++i)
    if (arguments[i].isTensor()) return false;  // `out=`
  return true;
}

at::Tensor empty_on_host(const at::Tensor& like) {
  return at::detail::empty_cpu(like.sizes(), like.scalar_type());
}

// What decides alone: true in `a | b`, false (or zero) in `a & b`, whatever the other one is.
std::optional<at::Scalar> decided(const std::string& name, const torch::jit::Stack& arguments, const at::Tensor& result) {
  const bool either = name == "aten::bitwise_or" || name == "aten::logical_or";
  const bool both = name == "aten::bitwise_and" || name == "aten::logical_and";
  if (!(either && result.scalar_type() == at::kBool) && !both) return std::nullopt;
  for (const auto& argument : arguments) {
    if (!argument.isTensor()) continue;
    const auto value = on_host(argument.toTensor());
    if (!value.has_value() || value->numel() == 0) continue;
    if (either ? value->all().item<bool>() : !value->any().item<bool>()) return at::Scalar(either);
  }
  return std::nullopt;
}

bool is_equality(const std::string& name) { return name == "aten::eq" || name == "aten::ne"; }

// A truth value that nobody knows and that is the same everywhere in the result; nothing if nobody can say.
std::optional<bool> presumed_result(const std::string& name, const torch::jit::Stack& arguments) {
  if (!arguments[0].isTensor()) return std::nullopt;
  const auto& first = arguments[0].toTensor();
  const auto* second = arguments.size() > 1 && arguments[1].isTensor() ? &arguments[1].toTensor() : nullptr;
  if (is_equality(name)) {
    if (first.scalar_type() == at::kBool) return std::nullopt;
    const bool one_is_constant = constant(first).has_value();
    const bool other_is_constant = second == nullptr || constant(*second).has_value();
    return one_is_constant == other_is_constant ? std::nullopt : std::optional<bool>(name == "aten::ne");
  }
  const auto holds = presumed(first);
  if (name == "aten::all" || name == "aten::any") return holds;
  if (name == "aten::logical_not" || name == "aten::bitwise_not") return holds ? std::optional<bool>(!*holds) : holds;
  const bool either = name == "aten::logical_or" || name == "aten::bitwise_or";
  if (second == nullptr || !(either || name == "aten::logical_and" || name == "aten::bitwise_and")) return std::nullopt;
  const auto also_holds = presumed(*second);
  if (holds == either || also_holds == either) return either;  // decides alone
  return holds && also_holds ? std::optional<bool>(!either) : std::nullopt;
}

// Whether all of the arguments could be put on the host; what is compared may be a constant.
bool put_on_host(torch::jit::Stack& arguments, bool compares = false) {
  for (auto& argument : arguments) {
    if (argument.isTensor()) {
      const auto value = compares ? constant(argument.toTensor()) : on_host(argument.toTensor());
      if (!value.has_value()) return false;
      argument = *value;
    } else if (argument.isTensorList()) {
      std::vector<at::Tensor> each_on_host;
      for (const auto& each : argument.toTensorVector()) {
        const auto value = on_host(each);
        if (!value.has_value()) return false;
        each_on_host.push_back(*value);
      }
      argument = each_on_host;
    }
  }
  return true;
}

}  // namespace

namespace {

// Whether what the operator makes is known.
bool remember_computed(const c10::OperatorHandle& op, const torch::jit::Stack& arguments, const at::Tensor& result) {
  if (known_count == 0 || (!follows && !is_single_answer(arguments, result))) return false;
  if (result.nbytes() > largest_result_bytes(result)) return false;
  NotOfTheProgram computed;
  if (const auto value = decided(op.schema().name(), arguments, result)) {
    remember(result, empty_on_host(result).fill_(*value));
    return true;
  }
  torch::jit::Stack stack(arguments);
  if (!put_on_host(stack, is_equality(op.schema().name()))) return false;
  op.callBoxed(&stack);
  remember(result, stack[0].toTensor());
  return true;
}

}  // namespace

void remember_result(const c10::OperatorHandle& op, const torch::jit::Stack& arguments,
                     const torch::jit::Stack& results) {
  if (results.size() != 1 || !results[0].isTensor() || op.schema().is_mutable()) return;
  const auto& result = results[0].toTensor();
  if (remember_computed(op, arguments, result) || !follows || result.scalar_type() != at::kBool) return;
  if (result.numel() == 0) return;
  if (const auto holds = presumed_result(op.schema().name(), arguments)) presume(result, *holds);
}

bool remember_change(const c10::OperatorHandle& op, const torch::jit::Stack& arguments) {
  const auto& self = arguments[0].toTensor();
  if (!follows || !self.is_cuda()) return false;
  NotOfTheProgram computed;
  const auto& name = op.schema().name();
  const bool fills_it = fills_its_storage(self) && (name == "aten::zero_" || name == "aten::fill_");
  if (!is_whole(self) && self.numel() != 1) {
    if (!fills_it || (name == "aten::fill_" && arguments[1].isTensor())) return false;
    forget(self);
    std::lock_guard<std::mutex> lock(value_mutex);
    fills[self.storage().data()] = name == "aten::zero_" ? at::Scalar(0) : arguments[1].toScalar();
    count_known();
    return true;
  }
  if (self.nbytes() > largest_result_bytes(self)) return false;
  if (fills_it) remember(self, empty_on_host(self));
  torch::jit::Stack stack(arguments);
  if (!put_on_host(stack)) return false;
  op.callBoxed(&stack);  // on a view of what is kept
  return true;
}

bool remember_part(const at::Tensor& device, const at::Tensor& host) {
  if (fills_its_storage(device)) {
    remember(device, host);
    return true;
  }
  if (!follows) return false;
  if (const auto before = remembered(device)) {
    before->copy_(host);
    return true;
  }
  // The beginning of a storage of which no more is known: a result that is cut to its size.
  if (!device.is_contiguous() || device.storage_offset() != 0 || device.nbytes() > kLargestBytes) return false;
  if (!device.has_storage() || device.storage().data() == nullptr) return false;
  remember_beginning(device, host);
  return true;
}

void remember_draw(const at::Tensor& device, const at::Tensor& recipe) {
  if (!device.has_storage() || device.storage().data() == nullptr || !fills_its_storage(device)) return;
  std::lock_guard<std::mutex> lock(value_mutex);
  draws[device.storage().data()] = recipe;
  count_known();
}

std::optional<at::Tensor> remembered_draw(const at::Tensor& device) {
  if (known_count == 0 || !device.has_storage() || !fills_its_storage(device)) return std::nullopt;
  std::lock_guard<std::mutex> lock(value_mutex);
  auto found = draws.find(device.storage().data());
  return found == draws.end() ? std::nullopt : std::optional<at::Tensor>(found->second);
}

std::optional<at::Tensor> constant(const at::Tensor& tensor) {
  if (const auto value = on_host(tensor)) return value;
  if (known_count == 0 || !tensor.has_storage()) return std::nullopt;
  std::lock_guard<std::mutex> lock(value_mutex);
  auto found = fills.find(tensor.storage().data());
  if (found == fills.end()) return std::nullopt;
  const at::Tensor filled = at::detail::empty_cpu({}, tensor.scalar_type());
  return filled.fill_(found->second).expand(tensor.sizes());
}

void presume(const at::Tensor& device, bool holds) {
  if (!device.has_storage() || device.storage().data() == nullptr) return;
  if (device.nbytes() != device.storage().nbytes()) return forget(device);  // the rest of it may hold others
  std::lock_guard<std::mutex> lock(value_mutex);
  presumptions[device.storage().data()] = holds;
  count_known();
}

std::optional<bool> presumed(const at::Tensor& device) {
  if (known_count == 0 || !device.has_storage() || device.scalar_type() != at::kBool) return std::nullopt;
  std::lock_guard<std::mutex> lock(value_mutex);
  auto found = presumptions.find(device.storage().data());
  return found == presumptions.end() ? std::nullopt : std::optional<bool>(found->second);
}

void copy_presumption(const at::Tensor& device, const at::Tensor& source) {
  if (const auto holds = presumed(source)) return presume(device, *holds);
  if (known_count == 0 || !source.has_storage() || !fills_its_storage(device)) return;
  std::lock_guard<std::mutex> lock(value_mutex);
  if (auto found = fills.find(source.storage().data()); found != fills.end()) {
    const at::Scalar filled = found->second;
    fills[device.storage().data()] = filled;
    count_known();
  }
}

void follow_values(bool follow) { follows = follow; }
bool follows_values() { return follows; }

void forget(const void* address) {
  if (known_count == 0) return;
  std::lock_guard<std::mutex> lock(value_mutex);
  values.erase(address);
  draws.erase(address);
  fills.erase(address);
  presumptions.erase(address);
  count_known();
}

void forget(const at::Tensor& device) {
  if (known_count != 0 && device.has_storage()) forget(device.storage().data());
}

}  // namespace paper
