// What matrix products take besides their results: cuBLAS's workspace, and copies of matrices that it cannot read.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace paper {

bool is_gemm(const c10::OperatorHandle& op);

// To be called when the result is there: copies first, then the workspace of a handle that is used for the first time.
void take_for_gemm(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments);

}  // namespace paper
