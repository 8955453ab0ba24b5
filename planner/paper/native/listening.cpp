// What the CUDA runtime on paper is given to do, as launches: kernels, events, who waits for whom.
#include "host_memory.h"
#include "launches.h"
#include "memory.h"
#include "shared.h"
#include "streams.h"
#include "trace.h"

namespace paper {
namespace {

int32_t named(void* stream) { return number_of_stream(current_device(), stream); }

void launched(void* stream) { hear_launch(named(stream)); }

int64_t recorded(void* stream) {
  const auto event = new_event();
  note_launch(LaunchKind::Record, named(stream), event);
  return event;
}

void stream_waits(void* stream, int64_t event) {
  if (event != 0) note_launch(LaunchKind::Wait, named(stream), event);
}

void host_waits(void* stream) { note_launch(LaunchKind::HostWait, named(stream)); }

void host_waits_for_device() { note_launch(LaunchKind::HostWait, kWholeDevice); }

void host_waits_for_event(int64_t event) {
  if (event != 0) note_launch(LaunchKind::HostWaitEvent, 0, event);
}

void works_in(const char* library, void* memory) { name_workspace(block_around(memory), library); }

void unknown(const char* name) { workspace_is_unknown(name); }

void host_memory(void* memory, size_t bytes) {
  if (bytes != 0) return record_host_take(memory, bytes, /*pinned=*/true);
  record_host_give_up(memory);
}

void captures(void* stream, int64_t graph) { capture_launches(named(stream), graph); }

const PaperListener kListener{
    &launched, &recorded, &stream_waits, &host_waits, &host_waits_for_device, &host_waits_for_event,
    &works_in, &unknown,  &host_memory,  &captures,   &end_capture,           &replay_launches};

}  // namespace

void start_listening() { paper_listen(&kListener); }

}  // namespace paper
