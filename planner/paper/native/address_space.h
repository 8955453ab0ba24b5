// Addresses that are given out, and taken back to be given out again for as many bytes.
#pragma once

#include <c10/util/Exception.h>

#include <algorithm>
#include <unordered_map>
#include <vector>

namespace paper {

constexpr size_t kPieceBytes = size_t{1} << 42;
constexpr size_t kAlignment = 512;

struct Piece {
  char* base;
  size_t bytes;
};

class AddressSpace {
 public:
  // `reserve` gives addresses that nobody else has; null where there are none.
  explicit AddressSpace(void* (*reserve)(size_t bytes)) : reserve_(reserve) {}

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

  Piece reserve(size_t bytes) const {
    void* addresses = reserve_(bytes);
    TORCH_CHECK(addresses != nullptr, "the paper GPU has no address space for ", bytes, " bytes");
    return {static_cast<char*>(addresses), bytes};
  }

  void* (*reserve_)(size_t);

  std::vector<Piece> pieces_;
  std::unordered_map<size_t, std::vector<char*>> given_back_;
  size_t current_ = 0;
  size_t next_ = 0;
};

}  // namespace paper
