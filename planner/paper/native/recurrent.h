#pragma once

#include <torch/library.h>

namespace paper {

void install_recurrent_networks(torch::Library& aten);

}  // namespace paper
