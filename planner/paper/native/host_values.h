// Values that came from the host and are still what they were: small tensors that a program copies to the device
// and reads back (sizes that ranks agree on, masks, counters). Everything else on the paper GPU has no value.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace paper {

// The device tensor now holds what the host tensor holds, if both are small enough and it fills its storage.
void remember(const at::Tensor& device, const at::Tensor& host);
std::optional<at::Tensor> remembered(const at::Tensor& device);
// Somebody wrote to this storage, or it is gone.
void forget(const void* address);
void forget(const at::Tensor& device);

}  // namespace paper
