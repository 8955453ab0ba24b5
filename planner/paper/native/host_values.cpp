#include "host_values.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

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
// Of known values, whether they are all the same is looked for up to here: flags of sequences, masks of their tokens.
constexpr int64_t kLargestUniform = int64_t{1} << 20;

struct Contents {
  std::optional<at::Tensor> value, draw;
  std::optional<at::Scalar> fill;
  std::optional<Presumption> presumption;
  // Constants that were put together, as ranks do that compare their weights: what they are is not kept.
  bool gathered = false;
};
std::mutex value_mutex;
std::unordered_map<const void*, Contents> contents;  // by the address of a storage
std::atomic<size_t> known_count{0};            // so that the common case, nothing known, takes no lock
std::atomic<bool> follows{false};

Contents contents_of(const at::Tensor& tensor) {
  if (known_count == 0 || !tensor.has_storage()) return {};
  std::lock_guard<std::mutex> lock(value_mutex);
  const auto found = contents.find(tensor.storage().data());
  return found == contents.end() ? Contents{} : found->second;
}

void change_contents(const at::Tensor& tensor, const std::function<void(Contents&)>& change) {
  std::lock_guard<std::mutex> lock(value_mutex);
  change(contents[tensor.storage().data()]);
  known_count = contents.size();
}

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
  change_contents(device, [&](Contents& of) { of.value = copy; });
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
  const auto value = contents_of(device).value;
  if (!value || value->scalar_type() != device.scalar_type() || reach(device) > value->numel()) return std::nullopt;
  return value->as_strided(device.sizes(), device.strides(), device.storage_offset());
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

bool is_equality(const std::string& name) { return name == "aten::eq" || name == "aten::ne" || name == "aten::isin"; }

bool is_comparison(const std::string& name) {
  return is_equality(name) || name == "aten::lt" || name == "aten::le" || name == "aten::gt" || name == "aten::ge";
}

// A place in the middle, of which nobody knows more; the first, where all are alike.
Presumption place_among(const at::Tensor& reduced, const at::Tensor& result) {
  const auto among = presumed(reduced) ? 0 : reduced.numel() / result.numel();
  return {among / 2, /*stands_for_any=*/among > 0};
}

// Of a tensor that is the same everywhere, as far as anybody can say: that value.
std::optional<Presumption> same_everywhere(const at::Tensor& tensor) {
  if (const auto presumption = presumed(tensor)) return presumption;
  if (!is_whole(tensor) || tensor.numel() == 0 || tensor.numel() > kLargestUniform) return std::nullopt;
  const auto value = constant(tensor);
  if (!value.has_value()) return std::nullopt;
  const auto first = value->flatten()[0];
  if (!value->eq(first).all().item<bool>()) return std::nullopt;
  return Presumption{first.item()};
}

bool is_gathered(const at::Tensor& tensor) { return contents_of(tensor).gathered; }

void remember_gathered(const at::Tensor& device) {
  if (device.has_storage() && fills_its_storage(device)) change_contents(device, [](Contents& of) { of.gathered = true; });
}

bool gathers_constants(const c10::OperatorHandle& op, const torch::jit::Stack& arguments) {
  if (op.schema().name() != "aten::cat") return false;
  const auto tensors = arguments[0].toTensorVector();
  return std::all_of(tensors.begin(), tensors.end(),
                     [](const at::Tensor& part) { return constant(part).has_value() || is_gathered(part); });
}

// Operators whose result is the same everywhere if what they are given is.
bool keeps_sameness(const std::string& name) {
  static const std::unordered_set<std::string> names = {
      "aten::logical_and", "aten::logical_or", "aten::logical_xor", "aten::logical_not", "aten::bitwise_and",
      "aten::bitwise_or", "aten::bitwise_xor", "aten::bitwise_not", "aten::eq", "aten::ne", "aten::lt", "aten::le",
      "aten::gt", "aten::ge", "aten::add", "aten::sub", "aten::rsub", "aten::mul", "aten::neg", "aten::where",
      "aten::cat", "aten::masked_fill", "aten::all", "aten::any", "aten::max", "aten::min", "aten::amax", "aten::amin",
      "aten::sum",
  };
  return names.count(name) != 0;
}

// What the operator makes of single values in the place of its tensors; nothing if one of them is not the same everywhere,
// or if all of them are known.
std::optional<Presumption> computed_of_single_values(const c10::OperatorHandle& op, torch::jit::Stack arguments,
                                                     const at::Tensor& result) {
  bool is_presumed = false, stands_for_any = false;
  const auto single = [&](const at::Tensor& tensor) -> std::optional<at::Tensor> {
    const auto value = same_everywhere(tensor);
    if (!value) return std::nullopt;
    is_presumed = is_presumed || presumed(tensor).has_value();
    stands_for_any = stands_for_any || value->stands_for_any;
    const at::Tensor one = at::detail::empty_cpu(at::DimVector(tensor.dim(), 1), tensor.scalar_type());
    return one.fill_(value->value);
  };
  int64_t elements = 0;
  for (auto& argument : arguments) {
    if (argument.isTensor()) {
      elements = std::max(elements, argument.toTensor().numel());
      const auto value = single(argument.toTensor());
      if (!value) return std::nullopt;
      argument = *value;
    } else if (argument.isTensorList()) {
      std::vector<at::Tensor> each_single;
      for (const auto& each : argument.toTensorVector()) {
        const auto value = single(each);
        if (!value) return std::nullopt;
        each_single.push_back(*value);
      }
      argument = each_single;
    }
  }
  if (!is_presumed || (stands_for_any && is_comparison(op.schema().name()))) return std::nullopt;
  op.callBoxed(&arguments);
  at::Scalar value = arguments[0].toTensor().flatten()[0].item();
  if (op.schema().name() == "aten::sum") value = value.toLong() * (elements / result.numel());
  return Presumption{value, stands_for_any};
}

// Nothing if nobody can say.
std::optional<Presumption> presumed_result(const c10::OperatorHandle& op, const torch::jit::Stack& arguments,
                                           const at::Tensor& result) {
  if (!arguments[0].isTensor() && !arguments[0].isTensorList()) return std::nullopt;
  const auto& name = op.schema().name();
  if (keeps_sameness(name)) {
    if (const auto value = computed_of_single_values(op, arguments, result)) return value;
  }
  if (!arguments[0].isTensor()) return std::nullopt;
  const auto& first = arguments[0].toTensor();
  const auto* second = arguments.size() > 1 && arguments[1].isTensor() ? &arguments[1].toTensor() : nullptr;
  if (is_equality(name)) {
    if (first.scalar_type() == at::kBool) return std::nullopt;
    const bool one_is_constant = constant(first).has_value();
    const bool other_is_constant = second == nullptr || constant(*second).has_value();
    if (one_is_constant == other_is_constant || is_gathered(first)) return std::nullopt;
    if (second != nullptr && is_gathered(*second)) return std::nullopt;
    return Presumption{name == "aten::ne" || (name == "aten::isin" && arguments[3].toBool())};
  }
  if (name == "aten::gather" || name == "aten::index_select") return presumed(first);
  if (name == "aten::argmax" || name == "aten::argmin") return place_among(first, result);
  const bool either = name == "aten::logical_or" || name == "aten::bitwise_or";
  const bool both = name == "aten::logical_and" || name == "aten::bitwise_and";
  if (second == nullptr || result.scalar_type() != at::kBool || !(either || both)) return std::nullopt;
  for (const auto& value : {same_everywhere(first), same_everywhere(*second)})
    if (value && value->value.toBool() == either) return value;  // decides alone
  return std::nullopt;
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
  if (!results[0].isTensor() || op.schema().is_mutable()) return;
  if (results.size() == 2 && follows && (op.schema().name() == "aten::max" || op.schema().name() == "aten::min")) {
    const auto& place = results[1].toTensor();
    if (place.numel() != 0) presume(place, place_among(arguments[0].toTensor(), place));
  }
  if (results.size() != 1) return;
  const auto& result = results[0].toTensor();
  if (remember_computed(op, arguments, result) || !follows || result.numel() == 0) return;
  if (known_count != 0 && gathers_constants(op, arguments)) return remember_gathered(result);
  if (!is_whole(result)) return;
  NotOfTheProgram computed;
  if (const auto presumption = presumed_result(op, arguments, result)) presume(result, *presumption);
}

namespace {

bool remember_known_change(const c10::OperatorHandle& op, const torch::jit::Stack& arguments) {
  const auto& self = arguments[0].toTensor();
  if (!follows || !self.is_cuda()) return false;
  NotOfTheProgram computed;
  const auto& name = op.schema().name();
  const bool fills_it = fills_its_storage(self) && (name == "aten::zero_" || name == "aten::fill_");
  if (!is_whole(self) && self.numel() != 1) {
    if (!fills_it || (name == "aten::fill_" && arguments[1].isTensor())) return false;
    forget(self);
    change_contents(self, [&](Contents& of) { of.fill = name == "aten::zero_" ? at::Scalar(0) : arguments[1].toScalar(); });
    return true;
  }
  if (self.nbytes() > largest_result_bytes(self)) return false;
  if (fills_it) remember(self, empty_on_host(self));
  torch::jit::Stack stack(arguments);
  if (!put_on_host(stack)) return false;
  op.callBoxed(&stack);  // on a view of what is kept
  return true;
}

// The operator that computes the same and writes to nothing.
std::optional<c10::OperatorHandle> without_writing(const c10::OperatorHandle& op) {
  const auto& written = op.operator_name();
  return c10::Dispatcher::singleton().findSchema({written.name.substr(0, written.name.size() - 1), written.overload_name});
}

}  // namespace

void remember_change(const c10::OperatorHandle& op, const torch::jit::Stack& arguments) {
  if (remember_known_change(op, arguments)) return;
  const auto& self = arguments[0].toTensor();
  std::optional<Presumption> after;
  if (follows && known_count != 0 && self.is_cuda() && is_whole(self) && self.numel() != 0) {
    NotOfTheProgram computed;
    if (const auto same = without_writing(op)) after = presumed_result(*same, arguments, self);
  }
  forget(self);
  if (after) presume(self, *after);
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
  change_contents(device, [&](Contents& of) { of.draw = recipe; });
}

std::optional<at::Tensor> remembered_draw(const at::Tensor& device) {
  if (known_count == 0 || !device.has_storage() || !fills_its_storage(device)) return std::nullopt;
  return contents_of(device).draw;
}

std::optional<at::Tensor> constant(const at::Tensor& tensor) {
  if (const auto value = on_host(tensor)) return value;
  const auto fill = contents_of(tensor).fill;
  if (!fill) return std::nullopt;
  const at::Tensor filled = at::detail::empty_cpu({}, tensor.scalar_type());
  return filled.fill_(*fill).expand(tensor.sizes());
}

void presume(const at::Tensor& device, const Presumption& presumption) {
  if (!device.has_storage() || device.storage().data() == nullptr) return;
  if (device.nbytes() != device.storage().nbytes()) return forget(device);  // the rest of it may hold others
  const bool is_truth = device.scalar_type() == at::kBool;
  const auto value = is_truth ? at::Scalar(presumption.value.toBool()) : presumption.value;
  change_contents(device, [&](Contents& of) { of.presumption = {value, presumption.stands_for_any}; });
}

std::optional<Presumption> presumed(const at::Tensor& device) {
  return is_whole(device) ? contents_of(device).presumption : std::nullopt;
}

void copy_presumption(const at::Tensor& device, const at::Tensor& source) {
  if (const auto presumption = presumed(source)) {
    if (is_whole(device)) presume(device, *presumption);
    return;
  }
  const auto given = contents_of(source);
  if (given.gathered) return remember_gathered(device);
  if (given.fill && fills_its_storage(device)) change_contents(device, [&](Contents& of) { of.fill = given.fill; });
}

void follow_values(bool follow) { follows = follow; }
bool follows_values() { return follows; }

void forget(const void* address) {
  if (known_count == 0) return;
  std::lock_guard<std::mutex> lock(value_mutex);
  contents.erase(address);
  known_count = contents.size();
}

void forget(const at::Tensor& device) {
  if (known_count != 0 && device.has_storage()) forget(device.storage().data());
}

}  // namespace paper
