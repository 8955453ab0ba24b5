// Operators of which it is followed what they make of values that are known.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace paper {

// By which programs get from labels and masks to sizes: cheap on the host, where these are small.
bool is_followed(const c10::OperatorHandle& op);
// The same in place: masks of ones, labels that are padded.
bool is_followed_in_place(const c10::OperatorHandle& op);
// Many values become few.
bool is_reduction(const c10::OperatorHandle& op);
// Where values are followed, Python says what is known of what it makes (paper/followers.py).
bool is_followed_by_python(const c10::OperatorHandle& op);
// Asks Python.
void follow_by_python(const c10::OperatorHandle& op, const torch::jit::Stack& arguments,
                      const torch::jit::Stack& results);
// Numbers are drawn into its first argument.
bool is_draw(const c10::OperatorHandle& op);
// What an operator writes to has other values now; of one that is called with these arguments.
void forget_written(const c10::OperatorHandle& op, const torch::jit::Stack& arguments);
// Positions: `arange` into a tensor that it has made.
void remember_range(const torch::jit::Stack& arguments);
// Numbers that were drawn into a tensor: Python knows which generator draws them (kernels/random_numbers.py).
void draw(const c10::OperatorHandle& op, const torch::jit::Stack& arguments);
// Those of the namespace `paper`, for Python.
void define_value_operators(torch::Library& own);

}  // namespace paper
