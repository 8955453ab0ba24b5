// The kernel of every operator that allocates only its results.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>

namespace paper {

// Runs the operator's meta kernel and gives what it returns storages on the paper GPU.
void run_meta(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// Whether kernels are those of a GPU, and not those of the CPU that tests compare with.
bool is_gpu();

// While it lives torch does not warn, as it does of every operator of a CUDA build whose kernel is replaced.
class WithoutWarnings {
  struct Handler final : c10::WarningHandler {
    void process(const c10::Warning&) override {}
  };
  Handler handler_;
  c10::WarningUtils::WarningHandlerGuard guard_{&handler_};
};

}  // namespace paper
