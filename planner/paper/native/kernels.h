// The kernel of every operator that allocates only its results.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace paper {

// Runs the operator's meta kernel and gives what it returns storages on the paper GPU.
void run_meta(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// Whether kernels are those of a GPU, and not those of the CPU that tests compare with.
bool is_gpu();

}  // namespace paper
