// Operators of which it is followed what they make of values that are known.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace paper {

enum class Following {
  No,
  Always,     // comparisons
  InProgram,  // where values are followed: by these programs get from labels and masks to sizes; cheap, as those are small
  Reduction,  // many values become few
  ByPython,   // where values are followed, Python says what is known of what it makes (paper/sized_by_values.py)
  InPlace,    // it writes to its first argument: masks of ones, labels that are padded
  Draw,       // numbers are drawn into its first argument
};
Following following(const c10::OperatorHandle& op);
// Asks Python.
void follow_by_python(const c10::OperatorHandle& op, const torch::jit::Stack& arguments,
                      const torch::jit::Stack& results);
// What an operator writes to has other values now; of one that is called with these arguments.
void forget_written(const c10::OperatorHandle& op, const torch::jit::Stack& arguments);
// Positions: `arange` into a tensor that it has made.
void remember_range(const torch::jit::Stack& arguments);
// Numbers that were drawn into a tensor: Python knows which generator draws them (kernels/random_numbers.py).
void draw(const c10::OperatorHandle& op, const torch::jit::Stack& arguments);
// Those of the namespace `paper`, for Python.
void define_value_operators(torch::Library& own);

}  // namespace paper
