// Operators whose shapes are worked out by the very functions that CUDA's kernels call first.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace paper {

// Runs the operator on meta tensors if it is one of these; its arguments on the stack give way to its result.
bool run_structured(const c10::OperatorHandle& op, torch::jit::Stack& stack);

}  // namespace paper
