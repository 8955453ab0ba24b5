// Private pools of CUDA graphs: which of them an allocation is made in.
#pragma once

#include <cstdint>

namespace paper {

// The pool that what is allocated now on this thread and stream is told to; 0 is the one of all.
int64_t pool_now();

}  // namespace paper
