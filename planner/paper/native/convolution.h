#pragma once

#include <torch/library.h>

namespace paper {

void install_convolutions(torch::Library& aten);

}  // namespace paper
