// Sparse tensors of the paper GPU.
#pragma once

#include <torch/library.h>

namespace paper {

// `sparse` registers for the dispatch key SparseCUDA.
void install_sparse_tensors(torch::Library& sparse);

}  // namespace paper
