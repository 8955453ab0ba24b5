// Kernels that take scratch memory of a size that nobody outside their library knows.
#pragma once

#include <string>

namespace paper {

// Said once per trace and name; the trace carries the names, nothing is counted for them.
void workspace_is_unknown(const std::string& kernel);

}  // namespace paper
