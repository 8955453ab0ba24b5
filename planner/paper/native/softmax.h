// What softmax takes besides its result.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

namespace paper {

bool is_softmax(const c10::OperatorHandle& op);
// To be called when the results are there.
void take_for_softmax(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments);

}  // namespace paper
