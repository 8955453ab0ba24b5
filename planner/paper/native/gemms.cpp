#include "gemms.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <regex>
#include <string>
#include <unordered_map>
#include <vector>

#include "memory.h"
#include "trace.h"

namespace paper {
namespace {

// cuBLAS takes one workspace for each handle and stream, on first use, and keeps it; a thread has a handle of its own on
// each device, which another thread gets after its end (aten/src/ATen/cuda/detail/DeviceThreadHandles.h). cublasLt
// takes the same one (torch 2.13, aten/src/ATen/cuda/CublasHandlePool.cpp). None: not a GPU.
size_t workspace_bytes = 0;
// Whether a program's CUBLAS_WORKSPACE_CONFIG is still to be read, as torch does with its first workspace.
bool has_config = false;
std::mutex gemm_mutex;
std::map<std::pair<int, int32_t>, c10::DataPtr> workspaces;

struct HandlePool {
  int made = 0;
  std::vector<int> available;
};
// By device; never destroyed: threads end after it would be.
std::map<c10::DeviceIndex, HandlePool>& handle_pools() {
  static auto* const pools = new std::map<c10::DeviceIndex, HandlePool>();
  return *pools;
}

// Those of a thread.
struct Handles {
  std::map<c10::DeviceIndex, int> held;
  // With the lock held.
  int on(c10::DeviceIndex device) {
    if (const auto found = held.find(device); found != held.end()) return found->second;
    auto& pool = handle_pools()[device];
    int handle = pool.made;
    if (pool.available.empty()) {
      ++pool.made;
    } else {
      handle = pool.available.back();
      pool.available.pop_back();
    }
    return held[device] = handle;
  }
  ~Handles() {
    std::lock_guard<std::mutex> lock(gemm_mutex);
    for (const auto& [device, handle] : held) handle_pools()[device].available.push_back(handle);
  }
};
thread_local Handles handles;

// Where the two matrices stand among the arguments; vectors are read where they lie.
const std::unordered_map<std::string, int>& gemms() {
  constexpr int kNoMatrices = -1;
  static const std::unordered_map<std::string, int> known{
      {"aten::mm", 0},      {"aten::bmm", 0},  {"aten::addmm", 1},
      {"aten::baddbmm", 1}, {"aten::_addmm_activation", 1},
      {"aten::addmv", kNoMatrices}, {"aten::addbmm", kNoMatrices}, {"aten::dot", kNoMatrices},
      {"aten::vdot", kNoMatrices},  {"aten::_scaled_mm", kNoMatrices}};
  return known;
}

// `:4096:2:16:8` is KiB times how many, pair by pair; anything else leaves the default.
void read_config() {
  const char* config = has_config ? std::getenv("CUBLAS_WORKSPACE_CONFIG") : nullptr;
  has_config = false;
  if (config == nullptr) return;
  static const std::regex whole("(:[0-9]+:[0-9]+)+"), pair(":([0-9]+):([0-9]+)");
  const std::string text(config);
  if (!std::regex_match(text, whole)) return;
  workspace_bytes = 0;
  for (std::sregex_iterator found(text.begin(), text.end(), pair), end; found != end; ++found)
    workspace_bytes += std::stoull((*found)[1]) * 1024 * std::stoull((*found)[2]);
}

void take_workspace() {
  std::lock_guard<std::mutex> lock(gemm_mutex);
  read_config();
  auto& workspace = workspaces[{handles.on(current_device()), current_stream()}];
  if (workspace.get() != nullptr) return;
  static const std::string name = "cublas::workspace";
  KernelScope scope(name);
  workspace = allocator()->allocate(workspace_bytes);
}

// Rows or columns must be next to each other: prepare_matrix_for_cublas (ATen/native/cuda/cuBlasCommonArgs.h) and
// prepare_batch_matrix_for_cublas (ATen/native/cuda/Blas.cpp), torch 2.13.
bool can_be_read(const at::Tensor& matrix) {
  const auto dims = matrix.dim();
  const auto rows = matrix.size(dims - 2), columns = matrix.size(dims - 1);
  const auto down = matrix.stride(dims - 2), along = matrix.stride(dims - 1);
  if (down == 1 && along >= std::max<int64_t>(1, rows)) return true;
  if (along == 1 && down >= std::max<int64_t>(1, columns)) return true;
  if (dims == 2) return matrix.is_non_overlapping_and_dense();
  return matrix.is_contiguous() && down != 0 && along != 0;
}

}  // namespace

bool is_gemm(const c10::OperatorHandle& op) { return workspace_bytes > 0 && gemms().count(op.schema().name()) > 0; }

void take_for_gemm(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) {
  const int first = gemms().at(op.schema().name());
  std::vector<c10::DataPtr> copies;
  for (int i = first; first >= 0 && i < first + 2; ++i) {
    const auto& matrix = arguments[i].toTensor();
    if (matrix.dim() >= 2 && matrix.numel() > 0 && !can_be_read(matrix))
      copies.push_back(allocator()->allocate(matrix.numel() * matrix.element_size()));
  }
  take_workspace();
}

}  // namespace paper

// cuBLAS gives its workspaces back, and takes others when it is used again.
extern "C" void paper_clear_workspaces() {
  std::lock_guard<std::mutex> lock(paper::gemm_mutex);
  paper::workspaces.clear();
}

// The environment of the program that begins now may say another size.
extern "C" void paper_expect_workspace_config() { paper::has_config = true; }

extern "C" int64_t paper_workspace_bytes() {
  std::lock_guard<std::mutex> lock(paper::gemm_mutex);
  paper::read_config();
  return static_cast<int64_t>(paper::workspace_bytes);
}

// Bytes of a cuBLAS workspace from now on; those that are held are given back.
extern "C" void paper_set_workspace_bytes(int64_t bytes) {
  std::lock_guard<std::mutex> lock(paper::gemm_mutex);
  paper::workspaces.clear();
  paper::workspace_bytes = static_cast<size_t>(bytes);
}
