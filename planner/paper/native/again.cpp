// Writes a stretch of records and launches once more: what was run once stands for what is not run again.
#include <cstdint>
#include <unordered_map>
#include <unordered_set>

#include "blocks.h"
#include "launches.h"
#include "trace.h"

extern "C" {

const paper::Record* paper_records();
const paper::Launch* paper_launches();
void paper_keep(int64_t block, int64_t collective);
void paper_release(int64_t collective);

// `stretch`: the first record, the one after the last, and the same of launches. Blocks that are born in it are new
// ones, which are written to `born` in their order; others are those that `names`, pairs, puts in their place. Those
// of `kept` are freed by somebody else. False for a stretch that frees what is neither its own nor named.
bool paper_write_again(const int64_t* stretch, const int64_t* names, int64_t name_count, const int64_t* kept,
                       int64_t kept_count, int64_t* born) {
  std::unordered_map<int64_t, int64_t> stand_ins;
  for (int64_t i = 0; i < name_count; ++i) stand_ins[names[2 * i]] = names[2 * i + 1];
  const std::unordered_set<int64_t> freed_elsewhere(kept, kept + kept_count);
  const auto name = [&stand_ins](int64_t block) {
    const auto found = stand_ins.find(block);
    return found == stand_ins.end() ? block : found->second;
  };
  auto next_launch = stretch[2];
  const auto launch_until = [&](int64_t position) {
    for (; next_launch < stretch[3]; ++next_launch) {
      const auto launch = paper_launches()[next_launch];
      if (launch.position > position) return;
      const auto kind = static_cast<paper::LaunchKind>(launch.kind);
      if (kind == paper::LaunchKind::Keep)
        paper_keep(name(launch.stream), launch.what);
      else if (kind == paper::LaunchKind::Release)
        paper_release(launch.what);
      else
        paper::note_launch(kind, launch.stream, launch.what);
    }
  };
  for (auto position = stretch[0]; position < stretch[1]; ++position) {
    launch_until(position);
    const auto record = paper_records()[position];
    switch (static_cast<paper::Kind>(record.kind)) {
      case paper::Kind::Alloc:
        stand_ins[record.block] = *born++ = paper::record_alloc_again(position);
        break;
      case paper::Kind::Free:
        if (freed_elsewhere.count(record.block) > 0) break;
        if (stand_ins.count(record.block) == 0) return false;
        paper::record_free(stand_ins[record.block]);
        break;
      case paper::Kind::Use:
        paper::record_use(name(record.block), record.stream);
        break;
      case paper::Kind::EmptyCache:
        return false;
    }
  }
  launch_until(stretch[1]);
  return true;
}

// The next block that is taken is this one, which was written down already.
void paper_adopt_block(int64_t block) { paper::adopt_block(block); }
}
