// The choice between attention kernels, as CUDA takes it.
#pragma once

#include <torch/library.h>

namespace paper {

void install_attention_choice(torch::Library& aten);

}  // namespace paper
