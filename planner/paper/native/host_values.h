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
// What an operator makes of a tensor that is known and of plain numbers, if it is one number: how many classes there
// are, whether a mask has gaps.
void remember_result(const c10::OperatorHandle& op, const torch::jit::Stack& arguments,
                     const torch::jit::Stack& results);
// Somebody wrote to this storage, or it is gone.
void forget(const void* address);
void forget(const at::Tensor& device);

}  // namespace paper
