// Kernels that take scratch memory of a size that nobody outside their library knows.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <string>

namespace paper {

// Said once per trace and name; the trace carries the names, nothing is counted for them.
void workspace_is_unknown(const std::string& kernel);

// The workspace of a kernel of this library (`cudnn`) as it was measured for tensors of these shapes and all else that
// the library hears; where nothing was measured it is empty, and the kernel is noted as unknown.
c10::DataPtr measured_workspace(const char* library, const char* kernel, at::ArrayRef<at::Tensor> tensors,
                                const std::string& options);

}  // namespace paper
