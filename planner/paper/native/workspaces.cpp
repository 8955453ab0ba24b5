#include "workspaces.h"

#include <mutex>
#include <set>
#include <sstream>

namespace paper {
namespace {

std::mutex workspace_mutex;
std::set<std::string> workspace_names;
std::string joined;

}  // namespace

void workspace_is_unknown(const std::string& kernel) {
  std::lock_guard<std::mutex> lock(workspace_mutex);
  workspace_names.insert(kernel);
}

void forget_unknown_workspaces() {
  std::lock_guard<std::mutex> lock(workspace_mutex);
  workspace_names.clear();
}

}  // namespace paper

extern "C" {

void paper_workspace_is_unknown(const char* kernel) { paper::workspace_is_unknown(kernel); }

// Sorted, one per line; valid until the next call.
const char* paper_unknown_workspaces() {
  std::lock_guard<std::mutex> lock(paper::workspace_mutex);
  std::ostringstream lines;
  for (const auto& name : paper::workspace_names) lines << name << '\n';
  paper::joined = lines.str();
  return paper::joined.c_str();
}

}  // extern "C"
