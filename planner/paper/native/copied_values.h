// Values that are copied to the device, or that somebody reads from it.
#pragma once

#include <ATen/core/Tensor.h>

namespace paper {

// What the device tensor holds, if that is known; else Python answers, or says that nobody can.
at::Scalar read_scalar(const at::Tensor& device);
// The copy is made, one of the tensors is of the device: what is known of the device's afterwards; what the host has got.
void follow_copy(const at::Tensor& self, const at::Tensor& source);

}  // namespace paper
