#include "workspaces.h"

#include <mutex>
#include <set>
#include <sstream>

namespace paper {
namespace {

std::mutex mutex;
std::set<std::string> names;
std::string joined;

}  // namespace

void workspace_is_unknown(const std::string& kernel) {
  std::lock_guard<std::mutex> lock(mutex);
  names.insert(kernel);
}

}  // namespace paper

extern "C" {

void paper_workspace_is_unknown(const char* kernel) { paper::workspace_is_unknown(kernel); }

void paper_forget_unknown_workspaces() {
  std::lock_guard<std::mutex> lock(paper::mutex);
  paper::names.clear();
}

// Sorted, one per line; valid until the next call.
const char* paper_unknown_workspaces() {
  std::lock_guard<std::mutex> lock(paper::mutex);
  std::ostringstream lines;
  for (const auto& name : paper::names) lines << name << '\n';
  paper::joined = lines.str();
  return paper::joined.c_str();
}

}  // extern "C"
