// Values that came from the host and are still what they were: small tensors that a program copies to the device
// and reads back (sizes that ranks agree on, masks, counters). Everything else on the paper GPU has no value.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <optional>

namespace paper {

// The device tensor now holds what the host tensor holds, if both are small enough and it fills its storage.
void remember(const at::Tensor& device, const at::Tensor& host);
std::optional<at::Tensor> remembered(const at::Tensor& device);
// The device tensor is a part of a storage, and holds what the host tensor holds; the rest of it is as it was.
// False if that rest is not known.
bool remember_part(const at::Tensor& device, const at::Tensor& host);
// Whether values are followed through operators, as a program needs whose sizes are made of them. Otherwise only single
// comparisons and reductions of whole numbers are: inputs that are made up decide nothing.
void follow_values(bool follow);
bool follows_values();
// What an operator makes of whole numbers and truth values that are known: how many classes there are, which tokens
// count for the loss, whether a mask has gaps.
void remember_result(const c10::OperatorHandle& op, const torch::jit::Stack& arguments,
                     const torch::jit::Stack& results);
// What an operator that writes to its first argument makes of it; where that is not known it is forgotten.
void remember_change(const c10::OperatorHandle& op, const torch::jit::Stack& arguments);
// The device tensor holds numbers that were drawn on the device: how, as `paper::draw` describes it. Whoever wants the
// numbers draws them; nothing that is computed of them is known.
void remember_draw(const at::Tensor& device, const at::Tensor& recipe);
std::optional<at::Tensor> remembered_draw(const at::Tensor& device);
// The same tensor on the host; nothing if it lies on the device and is not known.
std::optional<at::Tensor> on_host(const at::Tensor& tensor);
// Whole numbers and truth values.
bool is_whole(const at::Tensor& tensor);
// As `on_host`, also of numbers with which somebody has filled the whole tensor, however large.
std::optional<at::Tensor> constant(const at::Tensor& tensor);
// What a whole number or truth value is taken for that nobody knows. A number that was drawn or computed equals no
// constant, and an `argmax` is a place in the middle, which stands for any: equal to no constant either.
struct Presumption {
  at::Scalar value;
  bool stands_for_any = false;
};
// The values of the device tensor are all this one, as far as anybody can say. Whoever reads one is answered by Python,
// which lists the answer.
void presume(const at::Tensor& device, const Presumption& presumption);
std::optional<Presumption> presumed(const at::Tensor& device);
// The device tensor now holds what the other one holds, of which no more is known than that.
void copy_presumption(const at::Tensor& device, const at::Tensor& source);
// Somebody wrote to this storage, or it is gone.
void forget(const void* address);
void forget(const at::Tensor& device);

}  // namespace paper
