// Libraries that take scratch memory of a size that nobody outside of them knows.
#pragma once

#include <string>

namespace paper {

// Said once per trace and name; the trace carries the names, nothing is counted for them.
void workspace_is_unknown(const std::string& name);
void forget_unknown_workspaces();

}  // namespace paper
