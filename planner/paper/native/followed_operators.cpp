#include "followed_operators.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>

#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "host_values.h"

namespace paper {

void forget_written(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = arguments[i].alias_info();
    if (alias == nullptr || !alias->isWrite()) continue;
    const auto& value = stack[stack.size() - arguments.size() + i];
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().is_cuda()) forget(value.toTensor());
    if (!value.isTensorList()) continue;
    for (const auto& item : value.toListRef()) {
      if (item.toTensor().defined() && item.toTensor().is_cuda()) forget(item.toTensor());
    }
  }
}

constexpr int64_t kLongestRange = int64_t{1} << 17;

Following following(const c10::OperatorHandle& op) {
  static const std::vector<std::pair<Following, std::vector<std::string>>> kinds = {
      {Following::Always, {"eq", "ne", "lt", "le", "gt", "ge", "isin"}},
      {Following::InProgram,
       {"logical_and", "logical_or", "logical_xor", "logical_not", "bitwise_and", "bitwise_or", "bitwise_xor",
        "bitwise_not", "add", "sub", "rsub", "mul", "remainder", "div", "abs", "neg", "clamp", "clamp_min", "clamp_max",
        "maximum", "minimum", "where", "cat", "flip", "roll", "repeat", "tril", "triu", "masked_fill", "index_select",
        "gather", "scatter"}},
      {Following::Reduction,
       {"sum", "prod", "amax", "amin", "all", "any", "max", "min", "argmax", "argmin", "mean", "linalg_vector_norm"}},
      {Following::ByPython, {"topk", "multinomial", "histc", "index"}},
      {Following::InPlace,
       {"fill_", "zero_", "masked_fill_", "add_", "sub_", "mul_", "clamp_", "bitwise_and_", "bitwise_or_",
        "logical_and_", "logical_or_", "logical_not_", "scatter_"}},
      {Following::Draw, {"normal_", "uniform_", "random_"}},
  };
  static const auto by_name = [] {
    std::unordered_map<std::string, Following> found;
    for (const auto& [kind, names] : kinds)
      for (const auto& name : names) found.emplace("aten::" + name, kind);
    return found;
  }();
  const auto found = by_name.find(op.operator_name().name);
  if (found == by_name.end()) return Following::No;
  const bool writes = found->second == Following::InPlace || found->second == Following::Draw;
  return writes || !op.schema().is_mutable() ? found->second : Following::No;
}

void follow_by_python(const c10::OperatorHandle& op, const torch::jit::Stack& arguments,
                      const torch::jit::Stack& results) {
  using Tensors = c10::List<std::optional<at::Tensor>>;
  using Numbers = c10::List<std::optional<at::Scalar>>;
  static const auto follow = c10::Dispatcher::singleton()
                                 .findSchemaOrThrow("paper::follow", "")
                                 .typed<void(c10::string_view, Tensors, at::TensorList, Numbers)>();
  Tensors tensors;
  Numbers numbers;
  for (const auto& argument : arguments) {
    if (argument.isTensor()) {
      tensors.push_back(argument.toTensor());
    } else if (argument.isOptionalTensorList()) {
      for (const std::optional<at::Tensor>& each : argument.toOptionalTensorList()) tensors.push_back(each);
    } else {
      numbers.push_back(argument.isScalar() ? std::optional<at::Scalar>(argument.toScalar()) : std::nullopt);
    }
  }
  std::vector<at::Tensor> made;
  for (const auto& result : results) made.push_back(result.toTensor());
  follow.call(op.operator_name().name, tensors, made, numbers);
}

// Positions: `arange` into a tensor that it has made.
void remember_range(const torch::jit::Stack& arguments) {
  const auto& out = arguments[3].toTensor();
  if (!follows_values() || !at::isIntegralType(out.scalar_type(), /*includeBool=*/false)) return;
  if (out.numel() > kLongestRange) return;
  remember(out, at::arange(arguments[0].toScalar(), arguments[1].toScalar(), arguments[2].toScalar(),
                           at::TensorOptions().dtype(out.scalar_type())));
}

// Numbers that are drawn into a tensor: Python knows which generator draws them (random_numbers.py).
void draw(const c10::OperatorHandle& op, const torch::jit::Stack& arguments) {
  static const auto draw =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("paper::draw", "")
          .typed<void(const at::Tensor&, c10::string_view, c10::List<std::optional<at::Scalar>>)>();
  const auto self = arguments[0].toTensor();
  c10::List<std::optional<at::Scalar>> numbers;
  for (size_t i = 1; i < arguments.size(); ++i) {
    if (op.schema().arguments()[i].name() == "generator") continue;
    numbers.push_back(arguments[i].isNone() ? std::nullopt : std::optional<at::Scalar>(arguments[i].toScalar()));
  }
  draw.call(self, toString(op.operator_name()), numbers);
}

void define_value_operators(torch::Library& own) {
  // Values that are not there: Python decides whether that matters. Of several floats zeros are on the host by then.
  own.def("read_to_host(Tensor host, Tensor device) -> ()");
  own.def("read_value(Tensor device) -> Scalar");
  // How torch numbers a dtype, in its own order.
  own.def("dtype_number(ScalarType dtype) -> int", [](at::ScalarType dtype) { return static_cast<int64_t>(dtype); });
  // For kernels in Python: what came from the host and still holds, and the end of that.
  own.def("known_value(Tensor device) -> Tensor?", [](const at::Tensor& device) { return remembered(device); });
  own.def("remember_value(Tensor device, Tensor host) -> ()",
          [](const at::Tensor& device, const at::Tensor& host) { remember(device, host); });
  own.def("constant_value(Tensor device) -> Tensor?", [](const at::Tensor& device) { return constant(device); });
  own.def("presume(Tensor device, Scalar value, bool stands_for_any=False) -> ()",
          [](const at::Tensor& device, const at::Scalar& value, bool stands_for_any) {
            presume(device, {value, stands_for_any});
          });
  own.def("presumed(Tensor device) -> Scalar?", [](const at::Tensor& device) -> std::optional<at::Scalar> {
    const auto presumption = presumed(device);
    return presumption ? std::optional<at::Scalar>(presumption->value) : std::nullopt;
  });
  own.def("draw(Tensor device, str operator, Scalar?[] numbers) -> ()");
  own.def("follow(str operator, Tensor?[] tensors, Tensor[] results, Scalar?[] numbers) -> ()");
  own.def("remember_draw(Tensor device, Tensor recipe) -> ()",
          [](const at::Tensor& device, const at::Tensor& recipe) { remember_draw(device, recipe); });
  own.def("known_draw(Tensor device) -> Tensor?", [](const at::Tensor& device) { return remembered_draw(device); });
  own.def("follow_values(bool follow) -> ()", [](bool follow) { follow_values(follow); });
  own.def("follows_values() -> bool", []() { return follows_values(); });
  own.def("forget_value(Tensor device) -> ()", [](const at::Tensor& device) { forget(device); });
}

}  // namespace paper
