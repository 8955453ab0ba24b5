#include "workspaces.h"

#include <c10/core/ScalarType.h>

#include <mutex>
#include <set>
#include <sstream>
#include <vector>

#include "memory.h"
#include "trace.h"

namespace paper {
namespace {

// Bytes for a request, 0 for none, negative where nothing was measured. Shapes are `tensors` runs of `sizes`, each as
// long as its entry of `dims` says. Python answers (paper/kernels/workspaces.py), and takes its lock by itself.
using Answer = int64_t (*)(const char* kernel, const char* dtype, const int64_t* sizes, const int64_t* dims,
                           int64_t tensors, const char* options);

std::mutex workspace_mutex;
std::set<std::string> workspace_names;
std::string joined;
Answer answer = nullptr;

}  // namespace

void workspace_is_unknown(const std::string& kernel) {
  std::lock_guard<std::mutex> lock(workspace_mutex);
  workspace_names.insert(kernel);
}

c10::DataPtr measured_workspace(const char* library, const char* kernel, at::ArrayRef<at::Tensor> tensors,
                                const std::string& options) {
  int64_t bytes = -1;
  if (answer != nullptr) {
    std::vector<int64_t> sizes, dims;
    for (const auto& tensor : tensors) {
      sizes.insert(sizes.end(), tensor.sizes().begin(), tensor.sizes().end());
      dims.push_back(tensor.dim());
    }
    bytes = answer(kernel, c10::toString(tensors[0].scalar_type()), sizes.data(), dims.data(),
                   static_cast<int64_t>(dims.size()), options.c_str());
  }
  if (bytes < 0) workspace_is_unknown(kernel);
  if (bytes <= 0) return {};
  WorkspaceScope scope(library);
  return allocator()->allocate(static_cast<size_t>(bytes));
}

}  // namespace paper

extern "C" {

// Whoever is asked for workspaces from now on; nobody: all of them are unknown.
void paper_ask_for_workspaces(paper::Answer asked) { paper::answer = asked; }

void paper_workspace_is_unknown(const char* kernel) { paper::workspace_is_unknown(kernel); }

void paper_forget_unknown_workspaces() {
  std::lock_guard<std::mutex> lock(paper::workspace_mutex);
  paper::workspace_names.clear();
}

// Sorted, one per line; valid until the next call.
const char* paper_unknown_workspaces() {
  std::lock_guard<std::mutex> lock(paper::workspace_mutex);
  std::ostringstream lines;
  for (const auto& name : paper::workspace_names) lines << name << '\n';
  paper::joined = lines.str();
  return paper::joined.c_str();
}

}  // extern "C"
