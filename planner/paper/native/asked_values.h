// What Python says of values, and the operators of the namespace `paper` by which it reads and sets what is known.
#pragma once

#include <torch/library.h>

#include <vector>

#include "followed_operators.h"

namespace paper {

// What an operator has made or drawn, where no rule of all operators says it (paper/sized_by_values.py).
void ask_python(const FollowedOperator& followed, const torch::jit::Stack& arguments, const std::vector<at::Tensor>& made);
void define_value_operators(torch::Library& own);

}  // namespace paper
