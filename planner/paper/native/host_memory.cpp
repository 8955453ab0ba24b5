#include "host_memory.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "pinned.h"

namespace paper {
namespace {

constexpr size_t kManyBytes = size_t{1} << 20;

std::mutex host_mutex;
std::vector<HostRecord> host_records;
std::unordered_map<const void*, int64_t> host_blocks;  // those that are alive
int64_t next_host_block = 0;
int64_t smallest_counted = 0;
std::atomic<bool> counts_host{false};
thread_local int32_t own_depth = 0;

c10::Allocator* real_allocator = nullptr;
c10::DeleterFnPtr real_deleter = nullptr;

void release_counted(void* address) {
  record_host_give_up(address);
  real_deleter(address);
}

// The CPU's allocator, with a deleter that is heard of. What is too small to be counted costs a comparison.
struct CountingAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr taken = real_allocator->allocate(bytes);
    if (!counts_host || own_depth > 0 || static_cast<int64_t>(bytes) < smallest_counted) return taken;
    if (taken.get() == nullptr || !taken.compare_exchange_deleter(real_deleter, &release_counted)) return taken;
    record_host_take(taken.get(), bytes, /*pinned=*/false);
    return taken;
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release_counted; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
};

// Once for the process: tensors that it has made outlive a program.
void install_counting() {
  static CountingAllocator counting;
  if (real_allocator != nullptr) return;
  auto* found = c10::GetCPUAllocator();
  if (found->raw_deleter() == nullptr) return;  // of somebody else's, whose blocks cannot be followed
  real_allocator = found;
  real_deleter = found->raw_deleter();
  c10::SetCPUAllocator(&counting, /*priority=*/255);
}

}  // namespace

void record_host_take(const void* address, size_t bytes, bool pinned) {
  if (!counts_host || own_depth > 0 || static_cast<int64_t>(bytes) < smallest_counted) return;
  std::lock_guard<std::mutex> lock(host_mutex);
  const int64_t block = next_host_block++;
  host_blocks[address] = block;
  host_records.push_back({1, pinned ? 1 : 0, block, static_cast<int64_t>(bytes)});
}

void record_host_give_up(const void* address) {
  std::lock_guard<std::mutex> lock(host_mutex);
  const auto found = host_blocks.find(address);
  if (found == host_blocks.end()) return;
  if (counts_host) host_records.push_back({0, 0, found->second, 0});
  host_blocks.erase(found);
}

namespace {

// Not of a file, whose pages would come back with what is in it.
bool is_anonymous(const c10::DataPtr& owner) {
  const auto deleter = owner.get_deleter();
  if (deleter == nullptr) return false;
  return deleter == c10::GetCPUAllocator()->raw_deleter() || deleter == real_deleter || is_pinned(owner.get());
}

}  // namespace

void write_zeros(const c10::DataPtr& owner, void* begin, size_t bytes) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto from = reinterpret_cast<uintptr_t>(begin);
  const uintptr_t first = (from + page - 1) / page * page, last = (from + bytes) / page * page;
  if (bytes < kManyBytes || !is_anonymous(owner) ||
      madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED) != 0) {
    std::memset(begin, 0, bytes);
    return;
  }
  std::memset(begin, 0, first - from);
  std::memset(reinterpret_cast<void*>(last), 0, from + bytes - last);
}

NotOfTheProgram::NotOfTheProgram() { ++own_depth; }
NotOfTheProgram::~NotOfTheProgram() { --own_depth; }

}  // namespace paper

extern "C" {

const char* paper_host_record_format() {
  static_assert(sizeof(paper::HostRecord) == 4 + 4 + 8 + 8, "a member of HostRecord is not in its format");
  return "=iiqq";
}

// From here on blocks of so many bytes or more are written down. Returns 0 where the CPU's allocator is one whose
// blocks cannot be followed.
int32_t paper_host_start(int64_t smallest_bytes) {
  paper::install_counting();
  std::lock_guard<std::mutex> lock(paper::host_mutex);
  paper::host_records.clear();
  paper::host_blocks.clear();
  paper::smallest_counted = smallest_bytes;
  paper::counts_host = paper::real_allocator != nullptr;
  return paper::counts_host ? 1 : 0;
}

void paper_host_stop() { paper::counts_host = false; }

// Whether this thread computes what is known of the GPU's contents, which is no work of the program.
bool paper_computes_values() { return paper::own_depth > 0; }

int64_t paper_host_count() {
  std::lock_guard<std::mutex> lock(paper::host_mutex);
  return static_cast<int64_t>(paper::host_records.size());
}

const paper::HostRecord* paper_host_records() { return paper::host_records.data(); }

void paper_write_zeros(c10::StorageImpl* storage) {
  paper::write_zeros(storage->data_ptr(), storage->mutable_data(), storage->nbytes());
}

// The block that begins at this address; -1 if there is none.
int64_t paper_host_block_at(const void* address) {
  std::lock_guard<std::mutex> lock(paper::host_mutex);
  const auto found = paper::host_blocks.find(address);
  return found == paper::host_blocks.end() ? -1 : found->second;
}

}  // extern "C"
