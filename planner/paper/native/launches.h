// What the paper GPU would compute: every kernel that the host launches, with its stream, and who waits for whom.
#pragma once

#include <cstdint>
#include <vector>

namespace paper {

enum class LaunchKind : int32_t {
  Kernel,    // `what` is its number in the table of kernels
  Record,    // an event, numbered `what`, on a stream
  Wait,      // the stream waits for the event `what`
  WaitAll,   // the stream waits for everything launched so far
  HostWait,  // the host waits for the stream; for the whole device with stream -1
  HostWaitEvent = 6,  // the host waits for the event `what`
  Compile,   // the host compiles
  Issue,     // a collective whose end is the event `what`; in the place of a stream, its group
  Keep,      // that collective keeps a block, which is in the place of a stream
  Release,   // it gives up what it keeps
};

// Read from Python as a flat array (_LAUNCH in work_records.py).
struct Launch {
  int32_t kind;
  int32_t stream;
  int64_t what;
  int64_t position;  // how many records of memory there were
};

constexpr int32_t kWholeDevice = -1;  // in the place of a stream

void note_launch(LaunchKind kind, int32_t stream, int64_t what = 0);
// Of a kernel in the table, which it joins if it is new.
int64_t kernel_number(const std::vector<int64_t>& row);
int64_t new_event();
void forget_launches();
// From now on what is launched on this stream is part of this graph instead, until that is captured.
void capture_launches(int32_t stream, int64_t graph);
void end_capture(int64_t graph);
void replay_launches(int64_t graph);
// From now on an operator that launches something is a kernel in the table.
void start_following_operators();
void hear_launch(int32_t stream);

}  // namespace paper
