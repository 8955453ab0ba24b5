#include "asked_values.h"

#include <string>

#include "known_values.h"

namespace paper {
namespace {

using Tensors = c10::List<std::optional<at::Tensor>>;
using Numbers = c10::List<std::optional<at::Scalar>>;

}  // namespace

void ask_python(const FollowedOperator& followed, const torch::jit::Stack& arguments,
                const std::vector<at::Tensor>& made) {
  static const auto ask = c10::Dispatcher::singleton()
                              .findSchemaOrThrow("paper::follow", "")
                              .typed<void(c10::string_view, Tensors, at::TensorList, Numbers)>();
  NotOfTheProgram computed;
  Tensors tensors;
  Numbers numbers;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].isTensor()) {
      tensors.push_back(arguments[i].toTensor());
    } else if (followed.op.schema().arguments()[i].name() != "generator") {
      numbers.push_back(arguments[i].isScalar() ? std::optional<at::Scalar>(arguments[i].toScalar()) : std::nullopt);
    }
  }
  ask.call(followed.name, tensors, made, numbers);
}

void define_value_operators(torch::Library& own) {
  // Values that are not there: Python decides whether that matters. Of several floats zeros are on the host by then.
  own.def("read_to_host(Tensor host, Tensor device) -> ()");
  own.def("read_value(Tensor device) -> Scalar");
  own.def("follow(str operator, Tensor?[] tensors, Tensor[] results, Scalar?[] numbers) -> ()");
  // How torch numbers a dtype, in its own order.
  own.def("dtype_number(ScalarType dtype) -> int", [](at::ScalarType dtype) { return static_cast<int64_t>(dtype); });
  own.def("known_value(Tensor device) -> Tensor?", [](const at::Tensor& device) { return on_host(device); });
  own.def("remember_value(Tensor device, Tensor host) -> ()",
          [](const at::Tensor& device, const at::Tensor& host) { remember(device, host); });
  own.def("forget_value(Tensor device) -> ()", [](const at::Tensor& device) { forget(device); });
  // A place among so many.
  own.def("presume_place(Tensor device, int among) -> ()", [](const at::Tensor& device, int64_t among) {
    remember(device, {among / 2, /*is_certain=*/false, /*stands_for_any=*/true, among});
  });
  // How many values there can be; 0 if nobody says.
  own.def("places(Tensor device) -> int", [](const at::Tensor& device) {
    const auto presumed = uniform(device);
    return presumed ? presumed->among : 0;
  });
  own.def("presumed(Tensor device) -> Scalar?", [](const at::Tensor& device) -> std::optional<at::Scalar> {
    const auto presumed = uniform(device);
    return presumed ? std::optional<at::Scalar>(presumed->value) : std::nullopt;
  });
  own.def("runs_in_python(str operator) -> ()", [](std::string name) { run_in_python(std::move(name)); });
  own.def("remember_draw(Tensor device, int[] recipe) -> ()",
          [](const at::Tensor& device, at::IntArrayRef recipe) { remember_draw(device, recipe.vec()); });
  own.def("known_draw(Tensor device) -> int[]?", [](const at::Tensor& device) { return known_draw(device); });
}

}  // namespace paper
