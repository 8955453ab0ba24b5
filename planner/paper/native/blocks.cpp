#include "blocks.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "known_values.h"
#include "memory.h"
#include "shared.h"
#include "trace.h"

namespace paper {
namespace {

constexpr size_t kPieceBytes = size_t{1} << 42;
constexpr size_t kAlignment = 512;

struct Piece {
  char* base;
  size_t bytes;
};

// Addresses that are given out, and taken back to be given out again for as many bytes.
class AddressSpace {
 public:
  char* take(size_t bytes) {
    const size_t rounded = round(bytes);
    TORCH_CHECK(rounded >= bytes, "the paper GPU has no address space for ", bytes, " bytes");
    auto& given_back = given_back_[rounded];
    if (!given_back.empty()) {
      char* address = given_back.back();
      given_back.pop_back();
      return address;
    }
    while (current_ < pieces_.size() && rounded > pieces_[current_].bytes - next_) {
      ++current_;
      next_ = 0;
    }
    if (current_ == pieces_.size()) pieces_.push_back(reserve(std::max(rounded, kPieceBytes)));
    char* address = pieces_[current_].base + next_;
    next_ += rounded;
    return address;
  }

  // To be taken again for as many bytes: a step asks for the same sizes over and over.
  void give_back(char* address, size_t bytes) { given_back_[round(bytes)].push_back(address); }

  void begin_again() {
    current_ = next_ = 0;
    given_back_.clear();
  }

 private:
  static size_t round(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

  static Piece reserve(size_t bytes) {
    void* addresses = paper_addresses(bytes);
    TORCH_CHECK(addresses != nullptr, "the paper GPU has no address space for ", bytes, " bytes");
    return {static_cast<char*>(addresses), bytes};
  }

  std::vector<Piece> pieces_;
  std::unordered_map<size_t, std::vector<char*>> given_back_;
  size_t current_ = 0;
  size_t next_ = 0;
};

struct Held {
  int64_t block;
  size_t bytes;
  bool pooled = false;
};

std::mutex block_mutex;
AddressSpace space;
std::unordered_map<const void*, Held> blocks;

// Written down already: the next block that is taken is this one, unless it is -1.
int64_t adopted = -1;

// A graph that is replayed writes to the addresses that it was captured with: those of private pools come only once.
bool once_pooled = false;

std::mutex device_mutex;
std::vector<c10::DeviceIndex> devices;  // those that have had blocks, in the order of their first ones
constexpr int kStreamBits = 24;
// Of a process of the host that the program has started: called before anything is allocated.
void (*on_use)() = nullptr;

void* taken(size_t bytes) {
  std::lock_guard<std::mutex> lock(block_mutex);
  void* address = space.take(bytes);
  blocks[address] = {-1, bytes};  // in use, before it is known as what
  return address;
}

}  // namespace

void* take_block(size_t bytes, int32_t stream, int32_t pool) {
  if (on_use != nullptr) on_use();
  void* address = taken(bytes);
  const int64_t known = std::exchange(adopted, -1);
  const int64_t block = known < 0 ? record_alloc(bytes, stream, pool) : known;
  std::lock_guard<std::mutex> lock(block_mutex);
  blocks[address].block = block;
  blocks[address].pooled = pool != 0;
  once_pooled |= pool != 0;
  return address;
}

void adopt_block(int64_t block) { adopted = block; }

void give_back_block(void* address) {
  forget(address);
  int64_t block = -1;
  {
    std::lock_guard<std::mutex> lock(block_mutex);
    auto found = blocks.find(address);
    if (found == blocks.end()) return;
    block = found->second.block;
    const auto [_, bytes, pooled] = found->second;
    blocks.erase(found);
    if (!pooled) space.give_back(static_cast<char*>(address), bytes);
    if (blocks.empty() && !once_pooled) space.begin_again();  // nothing is in use
  }
  record_free(block);
}

void number_device(c10::DeviceIndex device) {
  std::lock_guard<std::mutex> lock(device_mutex);
  if (std::find(devices.begin(), devices.end(), device) == devices.end()) devices.push_back(device);
}

void describe_tensor(const at::TensorBase& tensor) {
  if (!tensor.has_storage()) return;
  const auto sizes = tensor.sizes();
  describe(block_at(tensor.storage().data()), sizes.data(), sizes.size(), static_cast<int32_t>(tensor.scalar_type()));
}

int32_t stream_of_device(c10::DeviceIndex device, c10::StreamId stream) {
  std::lock_guard<std::mutex> lock(device_mutex);
  const auto found = std::find(devices.begin(), devices.end(), device);
  return static_cast<int32_t>(found - devices.begin()) << kStreamBits | static_cast<int32_t>(stream);
}

void forget_devices() {
  std::lock_guard<std::mutex> lock(device_mutex);
  devices.clear();
}

c10::DeviceIndex device_numbered(int32_t number) {
  std::lock_guard<std::mutex> lock(device_mutex);
  return number < static_cast<int32_t>(devices.size()) ? devices[number] : -1;
}

int64_t block_at(const void* address) {
  std::lock_guard<std::mutex> lock(block_mutex);
  auto found = blocks.find(address);
  return found == blocks.end() ? -1 : found->second.block;
}

int64_t block_around(const void* address) {
  std::lock_guard<std::mutex> lock(block_mutex);
  const auto begins_here = blocks.find(address);
  if (begins_here != blocks.end()) return begins_here->second.block;
  const auto* place = static_cast<const char*>(address);
  for (const auto& [start, held] : blocks) {
    const auto* first = static_cast<const char*>(start);
    if (first < place && place < first + held.bytes) return held.block;
  }
  return -1;
}

}  // namespace paper

extern "C" {
int64_t paper_block_at(const void* address) { return paper::block_at(address); }
int32_t paper_device_numbered(int32_t number) { return paper::device_numbered(number); }
void paper_on_use(void (*function)()) { paper::on_use = function; }
}
