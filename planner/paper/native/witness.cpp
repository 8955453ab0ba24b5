#include "witness.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "memory.h"

extern "C" int64_t paper_count();
extern "C" void paper_stop_recording();

namespace paper {
namespace attesting {
namespace {

using Digest = std::array<uint8_t, 32>;
using Key = std::array<uint8_t, 64>;

// SHA-256 (FIPS 180-4).
class Sha256 {
 public:
  void add(const void* data, size_t bytes) {
    const auto* next = static_cast<const uint8_t*>(data);
    length_ += bytes;
    while (bytes > 0) {
      const size_t taken = std::min(bytes, block_.size() - filled_);
      std::memcpy(block_.data() + filled_, next, taken);
      filled_ += taken, next += taken, bytes -= taken;
      if (filled_ == block_.size()) mix();
    }
  }

  Digest end() const {
    Sha256 copy = *this;
    const uint64_t bits = length_ * 8;
    const uint8_t one = 0x80, zero = 0;
    copy.add(&one, 1);
    while (copy.filled_ != 56) copy.add(&zero, 1);
    for (int shift = 56; shift >= 0; shift -= 8) {
      const auto part = static_cast<uint8_t>(bits >> shift);
      copy.add(&part, 1);
    }
    Digest found;
    for (size_t i = 0; i < found.size(); ++i) found[i] = static_cast<uint8_t>(copy.state_[i / 4] >> (24 - 8 * (i % 4)));
    return found;
  }

 private:
  static uint32_t turn(uint32_t value, int by) { return (value >> by) | (value << (32 - by)); }

  void mix() {
    static constexpr uint32_t kRound[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
        0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
        0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
        0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
        0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
        0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
        0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
    uint32_t words[64];
    for (int i = 0; i < 16; ++i)
      words[i] = static_cast<uint32_t>(block_[4 * i]) << 24 | static_cast<uint32_t>(block_[4 * i + 1]) << 16 |
                 static_cast<uint32_t>(block_[4 * i + 2]) << 8 | block_[4 * i + 3];
    for (int i = 16; i < 64; ++i) {
      const uint32_t low = turn(words[i - 15], 7) ^ turn(words[i - 15], 18) ^ (words[i - 15] >> 3);
      const uint32_t high = turn(words[i - 2], 17) ^ turn(words[i - 2], 19) ^ (words[i - 2] >> 10);
      words[i] = words[i - 16] + low + words[i - 7] + high;
    }
    auto s = state_;
    for (int i = 0; i < 64; ++i) {
      const uint32_t first = s[7] + (turn(s[4], 6) ^ turn(s[4], 11) ^ turn(s[4], 25)) + ((s[4] & s[5]) ^ (~s[4] & s[6])) +
                             kRound[i] + words[i];
      const uint32_t second =
          (turn(s[0], 2) ^ turn(s[0], 13) ^ turn(s[0], 22)) + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
      s = {first + second, s[0], s[1], s[2], s[3] + first, s[4], s[5], s[6]};
    }
    for (int i = 0; i < 8; ++i) state_[i] += s[i];
    filled_ = 0;
  }

  std::array<uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> block_{};
  size_t filled_ = 0;
  uint64_t length_ = 0;
};

// RFC 2104.
Digest hmac(const Key& key, const void* data, size_t bytes) {
  Key inner, outer;
  for (size_t i = 0; i < key.size(); ++i) inner[i] = key[i] ^ 0x36, outer[i] = key[i] ^ 0x5c;
  Sha256 within, around;
  within.add(inner.data(), inner.size());
  within.add(data, bytes);
  const Digest found = within.end();
  around.add(outer.data(), outer.size());
  around.add(found.data(), found.size());
  return around.end();
}

// As planner.tracing.program.attestation has it: what an allocator would be told, with blocks numbered by their births.
struct Row {
  int64_t kind, number, bytes, stream, pool;
  bool operator==(const Row&) const = default;
};

enum class State { Absent, Attesting, Over };
State state = State::Absent;
Key key{};
Sha256 digest;
int64_t rows = 0;
int64_t births = 0;
std::vector<int64_t> number_of;  // block -> the number of its birth
std::vector<int64_t> freed;      // one directly after the other: their order is that of the threads of the process
Row last{-1, 0, 0, 0, 0};

void add(const Row& row) {
  digest.add(&row, sizeof(Row));
  ++rows;
  last = row;
}

void add_freed() {
  std::sort(freed.begin(), freed.end());
  for (const int64_t number : freed) add({static_cast<int64_t>(Kind::Free), number, 0, 0, 0});
  freed.clear();
}

}  // namespace
}  // namespace attesting

void witness(const Record& record) {
  using namespace attesting;
  if (state != State::Attesting) return;
  const auto kind = static_cast<Kind>(record.kind);
  if (kind == Kind::Free) {
    freed.push_back(number_of[record.block]);
    return;
  }
  add_freed();
  Row row{record.kind, 0, 0, 0, 0};
  if (kind == Kind::Alloc) {
    if (static_cast<int64_t>(number_of.size()) <= record.block) number_of.resize(record.block + 1, -1);
    number_of[record.block] = births;
    row = {record.kind, births++, record.bytes, record.stream, record.pool};
  } else if (kind == Kind::Use) {
    row = {record.kind, number_of[record.block], 0, record.stream, 0};
    if (row == last) return;  // said once for each rank's part of what was gathered
  }
  add(row);
}

void witness_interrupted() {
  using namespace attesting;
  if (state == State::Attesting) state = State::Over;
}

}  // namespace paper

extern "C" {

// From here on every record is attested under this key; once for a process, and before its first record.
int32_t paper_attest(const uint8_t* secret, int64_t bytes) {
  using namespace paper::attesting;
  if (state != State::Absent || bytes > static_cast<int64_t>(key.size()) || paper_count() != 0) return 0;
  std::memcpy(key.data(), secret, bytes);
  state = State::Attesting;
  return 1;
}

// What was attested: the digest of the rows, their number and the highest bytes that were held at one time, recorded or
// not; then the code under the key of these and of the report that goes with them. Once, and nothing is written down
// after it; 80 bytes, or 0.
int32_t paper_seal(const uint8_t* report, int64_t bytes, uint8_t* out) {
  using namespace paper::attesting;
  if (state != State::Attesting) return 0;
  paper_stop_recording();
  state = State::Over;
  add_freed();
  const auto found = digest.end();
  const auto highest = static_cast<int64_t>(paper::highest_requested_bytes());
  std::memcpy(out, found.data(), 32);
  std::memcpy(out + 32, &rows, 8);
  std::memcpy(out + 40, &highest, 8);
  std::vector<uint8_t> said(out, out + 48);
  said.insert(said.end(), report, report + bytes);
  const auto code = hmac(key, said.data(), said.size());
  std::memcpy(out + 48, code.data(), 32);
  key.fill(0);
  return 80;
}

}  // extern "C"
