#include "followed_operators.h"

#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "asked_values.h"
#include "known_values.h"

namespace paper {
namespace {

using Names = std::unordered_set<std::string>;

const Names kOverwrite = {"aten::fill_", "aten::zero_", "aten::_foreach_zero_", "aten::_cummax_helper",
                          "aten::_cummin_helper"};
const Names kDraw = {"aten::normal_", "aten::uniform_", "aten::random_"};
const Names kEquality = {"aten::eq", "aten::ne", "aten::isin", "aten::isclose"};
const Names kOrder = {"aten::lt", "aten::le", "aten::gt", "aten::ge"};
// Those that give places: the last of their results.
const Names kPlaces = {"aten::argmax", "aten::argmin", "aten::max",  "aten::min",
                       "aten::median", "aten::nanmedian", "aten::mode", "aten::kthvalue"};
// Of values that are all the same they make that one, or of some of them at places.
const Names kKeepUniform = {"aten::all", "aten::any", "aten::max", "aten::min", "aten::amax", "aten::amin", "aten::cat",
                            "aten::sum", "aten::gather", "aten::index", "aten::index_select", "aten::masked_fill"};
// What is known of their results whatever they are given Python says (paper/sized_by_values.py).
const Names kAskPython = {"aten::topk", "aten::sort", "aten::multinomial", "aten::histc"};
// Checks: all hold, and none of what is looked for is there.
const Names kChecks = {"aten::all", "aten::any", "aten::isnan"};
// Of places among so many.
const Names kExtremes = {"aten::max", "aten::amax", "aten::min", "aten::amin"};
const Names kChoose = {"aten::gather", "aten::index", "aten::index_select"};
// Where their masks stand among the arguments, and what those choose where they hold and where they do not.
struct Choice {
  size_t mask, held, otherwise;
};
const std::unordered_map<std::string, Choice> kMasked = {
    {"aten::where", {0, 1, 2}}, {"aten::masked_fill", {1, 2, 0}}, {"aten::_index_put_impl", {1, 2, 0}}};
// Whether a gradient is not finite: none is. It writes that to its second argument, which stays as it was.
const std::string kFindsInfinite = "aten::_amp_foreach_non_finite_check_and_unscale";

Names kernels_in_python;

bool is_in(const Names& names, const std::string& name) { return names.count(name) != 0; }

bool is_equality(const std::string& name) { return is_in(kEquality, name); }

bool is_comparison(const std::string& name) { return is_equality(name) || is_in(kOrder, name); }

// Calls `change` with every tensor in the value, and puts what it gives in its place; false where it gives nothing.
bool change_tensors(c10::IValue& value, const std::function<std::optional<at::Tensor>(const at::Tensor&)>& change) {
  if (value.isTensor()) {
    if (!value.toTensor().defined()) return true;
    const auto changed = change(value.toTensor());
    if (changed) value = *changed;
    return changed.has_value();
  }
  if (value.isTensorList()) {
    std::vector<at::Tensor> changed;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      const auto one = change(tensor);
      if (!one) return false;
      changed.push_back(*one);
    }
    value = changed;
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> changed;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList()) {
      const auto one = tensor && tensor->defined() ? change(*tensor) : std::optional<at::Tensor>();
      if (tensor && tensor->defined() && !one) return false;
      changed.push_back(one);
    }
    value = changed;
  }
  return true;
}

std::vector<at::Tensor> tensors_of(c10::IValue value) {
  std::vector<at::Tensor> tensors;
  change_tensors(value, [&](const at::Tensor& tensor) {
    tensors.push_back(tensor);
    return tensor;
  });
  return tensors;
}

std::vector<at::Tensor> tensors_of(const torch::jit::Stack& values) {
  std::vector<at::Tensor> tensors;
  for (const auto& value : values)
    for (auto& tensor : tensors_of(value)) tensors.push_back(tensor);
  return tensors;
}

bool is_plain(const at::Tensor& tensor) {  // subclasses come back as what they are made of
  return !tensor.defined() || !(tensor.key_set().has(c10::DispatchKey::Python) ||
                                tensor.key_set().has(c10::DispatchKey::FuncTorchBatched));
}

// False where the host has no kernel for these dtypes.
bool run_on_host(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  ComputingOnHost computed;
  try {
    op.callBoxed(&stack);
  } catch (const std::exception&) {
    return false;
  }
  return true;
}

bool is_same_view(const at::Tensor& one, const at::Tensor& other) {
  return share_storage(one, other) && one.storage_offset() == other.storage_offset() && one.sizes() == other.sizes() &&
         one.strides() == other.strides() && one.scalar_type() == other.scalar_type();
}

// A place in the middle, of which nobody knows more; the first, where all are alike.
Uniform place_among(const at::Tensor& reduced, const at::Tensor& result) {
  const auto among = uniform(reduced) ? 0 : reduced.numel() / result.numel();
  return {among / 2, /*is_certain=*/false, /*stands_for_any=*/among > 0, among};
}

bool is_finite(const at::Scalar& value) { return value.isComplex() || std::isfinite(value.to<double>()); }

// A mask that is the same everywhere chooses all of one side, whatever the other one is.
std::optional<Uniform> choose(const std::string& name, const torch::jit::Stack& arguments) {
  const auto found = kMasked.find(name);
  if (found == kMasked.end() || arguments.size() < 3) return std::nullopt;
  const auto masks = tensors_of(arguments[found->second.mask]);
  if (masks.size() != 1 || masks[0].scalar_type() != at::kBool) return std::nullopt;
  const auto mask = uniform(masks[0]);
  if (!mask) return std::nullopt;
  const bool holds = mask->value.toBool();
  if (holds && name == "aten::_index_put_impl" && arguments[3].toBool()) return std::nullopt;  // it adds
  const auto& side = arguments[holds ? found->second.held : found->second.otherwise];
  auto chosen = side.isTensor() ? uniform(side.toTensor()) : std::optional<Uniform>(Uniform{side.toScalar(), true});
  if (!chosen || !is_finite(chosen->value)) return std::nullopt;
  chosen->is_certain = chosen->is_certain && mask->is_certain;
  return chosen;
}

// What decides alone: true in `a | b`, false (or zero) in `a & b`, whatever the other one is.
std::optional<Uniform> decide(const std::string& name, const torch::jit::Stack& arguments, const at::Tensor& result) {
  if (const auto chosen = choose(name, arguments)) return chosen;
  const bool either = name == "aten::logical_or" || name == "aten::bitwise_or";
  const bool both = name == "aten::logical_and" || name == "aten::bitwise_and";
  if (!both && !(either && result.scalar_type() == at::kBool)) return std::nullopt;
  std::optional<Uniform> decided;
  for (const auto& tensor : tensors_of(torch::jit::Stack{arguments[0], arguments[1]})) {
    const auto value = uniform(tensor);
    if (value && value->value.toBool() == either && (!decided || value->is_certain)) decided = value;
  }
  return decided;
}

// What a comparison, a reduction or a choice of unknown values gives in a healthy step.
std::optional<Uniform> presume(const std::string& name, const torch::jit::Stack& arguments, const at::Tensor& result) {
  if (name == "aten::cat") {  // a prompt and what was chosen after it
    for (const auto& part : tensors_of(arguments[0])) {
      const auto place = uniform(part);
      if (place && place->stands_for_any) return Uniform{place->value, /*is_certain=*/false, /*stands_for_any=*/true};
    }
  }
  if (!arguments[0].isTensor() || !arguments[0].toTensor().defined()) return std::nullopt;
  const at::Tensor& first = arguments[0].toTensor();
  const bool has_second = arguments.size() > 1 && arguments[1].isTensor() && arguments[1].toTensor().defined();
  const at::Tensor second = has_second ? arguments[1].toTensor() : at::Tensor();
  if (is_comparison(name) && has_second && is_same_view(first, second)) {  // `x != x`: no value is NaN
    return Uniform{name != "aten::ne" && name != "aten::lt" && name != "aten::gt"};
  }
  if (is_equality(name) && first.scalar_type() != at::kBool) {  // what is drawn or computed equals no constant
    const bool one_is_constant = constant(first).has_value();
    const bool other_is_constant = !has_second || constant(second).has_value();
    if (one_is_constant == other_is_constant || is_unkept(first) || is_unkept(second)) return std::nullopt;
    Uniform answer{name == "aten::ne" || (name == "aten::isin" && arguments[3].toBool())};
    if (const auto place = uniform(one_is_constant ? second : first); place && name == "aten::eq") answer.among = place->among;
    return answer;
  }
  if (is_in(kPlaces, name) && result.scalar_type() == at::kLong && result.numel() != 0) return place_among(first, result);
  if (is_in(kChecks, name) && result.scalar_type() == at::kBool) return Uniform{name == "aten::all"};
  return std::nullopt;
}

}  // namespace

void run_in_python(std::string name) { kernels_in_python.insert(std::move(name)); }

FollowedOperator::FollowedOperator(const c10::OperatorHandle& handle) : op(handle), name(handle.schema().name()) {
  const auto has = [this](c10::DispatchKey key) { return op.hasKernelForDispatchKey(key); };
  const auto& schema = op.schema();
  draws = is_in(kDraw, name);
  const bool has_kernel = has(c10::DispatchKey::CUDA) && !has(c10::DispatchKey::CompositeImplicitAutograd);
  const bool has_composite = has(c10::DispatchKey::CompositeExplicitAutograd);
  is_kernel = has_kernel && !has_composite;
  calls_others = !has_kernel && name.rfind("aten::", 0) == 0 && !is_equality(name);
  const bool is_view = std::any_of(schema.returns().begin(), schema.returns().end(), [](const c10::Argument& value) {
    return value.alias_info() != nullptr && !value.alias_info()->isWrite();
  });
  const bool runs_kernel = has_kernel && !is_view && !op.hasTag(at::Tag::inplace_view);
  is_in_python = is_in(kernels_in_python, name);
  is_forgotten = runs_kernel && !is_in_python;
  is_computed = runs_kernel && (has(c10::DispatchKey::CPU) || has_composite) && name.rfind("aten::", 0) == 0 &&
                !op.hasTag(at::Tag::nondeterministic_seeded) && name.rfind("aten::empty", 0) != 0;
  for (const auto& argument : schema.arguments()) {
    // The statistics of a normalization are written to though its schema does not say so.
    const bool writes = argument.alias_info() != nullptr ? argument.alias_info()->isWrite()
                                                         : argument.name().rfind("running_", 0) == 0;
    written.push_back(writes && !op.hasTag(at::Tag::inplace_view));
    overwritten.push_back(written.back() && (argument.kwarg_only() || is_in(kOverwrite, name)));
    is_mutable = is_mutable || written.back();
  }
  is_pointwise = op.hasTag(at::Tag::pointwise);
  if (name.back() == '_') name.pop_back();
  has_rule = is_comparison(name) || is_in(kPlaces, name) || is_in(kChecks, name);
  is_python_asked = is_in(kAskPython, name) && !is_mutable;
}

FollowedCall::FollowedCall(const FollowedOperator& followed, c10::ArrayRef<const c10::IValue> arguments) : of_(followed) {
  if (of_.calls_others) return;  // which are followed themselves
  bool is_given = false, is_any_known = false;  // tensors that the operator reads
  for (size_t i = 0; i < arguments.size(); ++i) {
    for (const auto& tensor : tensors_of(arguments[i])) {
      if (!is_plain(tensor)) return;
      is_given = is_given || !of_.overwritten[i];
      is_any_known = is_any_known || is_known(tensor);
    }
  }
  is_followed_ = of_.has_rule || of_.is_mutable || of_.is_python_asked || !is_given || is_any_known;
  matters_ = is_followed_ || of_.is_forgotten;
  if (!is_followed_) return;
  arguments_.assign(arguments.begin(), arguments.end());
  if (of_.is_computed) before_ = arguments_;
  const auto outputs = written(arguments_);
  if (outputs.empty()) return;
  for (size_t i = 0; i < before_.size(); ++i) {
    if (of_.overwritten[i]) continue;
    const bool known = change_tensors(before_[i], [&](const at::Tensor& tensor) -> std::optional<at::Tensor> {
      const auto is_written = [&](const at::Tensor& output) { return share_storage(tensor, output); };
      if (std::none_of(outputs.begin(), outputs.end(), is_written)) return tensor;
      if (!is_small_enough(tensor)) return std::nullopt;
      const auto value = on_host(tensor);
      ComputingOnHost copied;
      return value ? std::optional<at::Tensor>(value->clone()) : std::nullopt;
    });
    if (!known) {
      before_.clear();
      return;
    }
  }
}

// The tensors that the call has written to.
std::vector<at::Tensor> FollowedCall::written(const torch::jit::Stack& arguments) const {
  std::vector<at::Tensor> tensors;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!of_.written[i] || (of_.name == kFindsInfinite && i == 1)) continue;
    for (auto& tensor : tensors_of(arguments[i])) tensors.push_back(tensor);
  }
  return tensors;
}

// What the call has written to and made: kernels fill what they call others for.
void FollowedCall::forget_all(const std::vector<at::Tensor>& returned) {
  for (const auto& tensor : written(arguments_)) forget(tensor);
  if (!of_.is_forgotten || of_.is_mutable) return;
  for (const auto& tensor : returned) forget(tensor);
}

bool FollowedCall::compute(const std::vector<at::Tensor>& returned) {
  if (before_.empty() && !arguments_.empty()) return false;
  auto devices = written(arguments_);
  devices.insert(devices.end(), returned.begin(), returned.end());
  const auto is_kept = [](const at::Tensor& tensor) {
    return is_strided(tensor) && tensor.is_cuda() && is_small_enough(tensor);
  };
  if (devices.empty() || !std::all_of(devices.begin(), devices.end(), is_kept)) return false;
  torch::jit::Stack stack(before_);
  for (size_t i = 0; i < stack.size(); ++i) {
    if (stack[i].isGenerator()) return false;
    if (stack[i].isDevice()) stack[i] = c10::Device(c10::kCPU);
    const bool fresh = of_.overwritten[i], compares = is_equality(of_.name);
    const bool known = change_tensors(stack[i], [&](const at::Tensor& tensor) -> std::optional<at::Tensor> {
      if (fresh) return empty_on_host(tensor.sizes(), tensor.scalar_type());
      return compares ? constant(tensor) : on_host(tensor);
    });
    if (!known) return false;
  }
  const torch::jit::Stack given(stack);
  if (!run_on_host(of_.op, stack)) return false;
  auto hosts = written(given);
  for (const auto& tensor : tensors_of(stack)) hosts.push_back(tensor);
  const bool agree = std::equal(devices.begin(), devices.end(), hosts.begin(), hosts.end(),
                                [](const at::Tensor& device, const at::Tensor& host) {
                                  return device.sizes() == host.sizes() && device.scalar_type() == host.scalar_type();
                                });
  if (!agree) return false;
  for (size_t i = 0; i < devices.size(); ++i) remember(devices[i], hosts[i]);
  return true;
}

bool FollowedCall::follow_uniform(const at::Tensor& made) {
  const bool fills = !of_.overwritten.empty() && of_.overwritten[0];
  if (!of_.is_pointwise && !is_in(kKeepUniform, of_.name) && !fills) return false;
  Uniform result{0, /*is_certain=*/true};
  std::optional<at::Scalar> first;
  int64_t elements = 0;
  bool is_one = true;  // element that stands for all
  torch::jit::Stack stack(arguments_);
  const bool chooses = is_in(kChoose, of_.name);
  if (chooses) stack.resize(1);
  for (size_t i = 0; i < stack.size(); ++i) {
    const bool fresh = of_.overwritten[i];
    const bool known = change_tensors(stack[i], [&](const at::Tensor& tensor) -> std::optional<at::Tensor> {
      const auto value = fresh ? std::optional<Uniform>(Uniform{0}) : uniform(tensor);
      if (!value) {  // many that are known, which may come to the same
        is_one = !of_.is_pointwise || !is_small_enough(made);
        return is_one ? std::nullopt : on_host(tensor);
      }
      const at::Tensor one = empty_on_host(at::DimVector(tensor.dim(), 1), tensor.scalar_type());
      if (fresh) return one;
      elements = std::max(elements, tensor.numel());
      result.is_certain = result.is_certain && value->is_certain;
      if (value->stands_for_any) result.among = result.stands_for_any ? 0 : value->among;
      result.stands_for_any = result.stands_for_any || value->stands_for_any;
      if (of_.name == "aten::cat" && first && first->toComplexDouble() != value->value.toComplexDouble()) return std::nullopt;
      first = value->value;
      ComputingOnHost filled;
      return one.fill_(value->value);
    });
    if (!known) return false;
  }
  if (result.stands_for_any && is_comparison(of_.name)) return false;
  if (!chooses && !run_on_host(of_.op, stack)) return false;
  {
    ComputingOnHost read;
    const at::Tensor all = tensors_of(stack)[0].flatten();
    if (!is_one && !all.eq(all[0]).all().item<bool>()) return false;
    result.value = all[0].item();
  }
  if (of_.name == "aten::sum" && result.value.isComplex()) return false;
  if (of_.name == "aten::sum") result.value = result.value.to<double>() * static_cast<double>(elements / made.numel());
  if (result.among > 0 && is_in(kExtremes, of_.name)) {
    const bool is_largest = of_.name == "aten::max" || of_.name == "aten::amax";
    result = {is_largest ? result.among - 1 : 0, /*is_certain=*/false};
  }
  if (!is_finite(result.value)) return false;
  remember(made, result);
  return true;
}

void FollowedCall::follow(const std::vector<c10::IValue>& results) {
  if (!matters_) return;
  const auto returned = tensors_of(results);
  if (!is_followed_) return forget_all(returned);
  if (of_.draws) {
    forget_all(returned);
    if (arguments_[0].toTensor().is_cuda()) ask_python(of_, arguments_, returned);
    return;
  }
  if (compute(returned)) return;
  std::vector<at::Tensor> made;
  std::copy_if(returned.begin(), returned.end(), std::back_inserter(made), [](const at::Tensor& tensor) {
    return is_strided(tensor) && tensor.is_cuda() && tensor.numel() != 0;
  });
  if (made.empty()) return forget_all(returned);
  auto presumed = made.size() == 1 ? decide(of_.name, arguments_, made[0]) : std::nullopt;
  if (!presumed && made.size() == 1 && follow_uniform(made[0])) return;
  if (!presumed && made.size() == 1) presumed = presume(of_.name, arguments_, made[0]);
  forget_all(returned);
  if (presumed) return remember(made[0], *presumed);
  if (of_.is_python_asked) return ask_python(of_, arguments_, made);
  const auto given = tensors_of(arguments_);
  const auto is_constant = [](const at::Tensor& tensor) { return constant(tensor) || is_unkept(tensor); };
  if (of_.is_computed && !of_.is_mutable && !given.empty() && std::all_of(given.begin(), given.end(), is_constant)) {
    for (const auto& tensor : made) remember_unkept(tensor);
    return;
  }
  if (made.size() == 2 && is_in(kPlaces, of_.name)) remember(made[1], place_among(arguments_[0].toTensor(), made[1]));
}

}  // namespace paper
