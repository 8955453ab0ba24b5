#include "trace.h"

#include "launches.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace paper {
namespace {

std::mutex trace_mutex;
std::vector<Record> records;
std::vector<std::string> names;
std::unordered_map<std::string, int32_t> name_index;
std::vector<int64_t> shapes;  // each: number of dims, then the sizes
std::vector<int64_t> alloc_position;  // block -> its record
std::set<std::string> unknown_workspaces;
bool recording = false;
int64_t allocated_bytes = 0;  // now, of what is written down, as the allocator counts them
int64_t most_allocated_bytes = 0;

// Blocks of which the GPU decides when they are free: another stream uses them, or collectives (so many) keep them.
std::unordered_set<int64_t> used_elsewhere;
std::unordered_map<int64_t, int64_t> keepers;
std::unordered_map<int64_t, std::vector<int64_t>> kept_by;  // the event that ends a collective -> what it keeps
int64_t first_timed_free = -1;  // where the first of them is given up: from there on times matter

// While something is compiled only what stays is written down, and after it: how it comes about is not the program's.
constexpr int64_t kUnwritten = -2;
std::vector<Record> unwritten;
int32_t compiling = 0;

thread_local const std::string* kernel = nullptr;
thread_local int32_t owner = -1;  // the operator that has asked for whatever follows: its name's index
thread_local int32_t module_scope = 0;

// Which module was open when the forward operator with this (thread, sequence number) ran: the autograd
// node that it left behind carries the same pair.
std::unordered_map<uint64_t, int32_t> scope_of_node;

uint64_t node_key(uint64_t thread, int64_t sequence) { return (thread << 40) ^ static_cast<uint64_t>(sequence); }

int64_t rounded_bytes(int64_t bytes) { return (bytes + 511) / 512 * 512; }

// With the lock held.
void write_down(const Record& record) {
  if (record.kind == static_cast<int32_t>(Kind::Alloc)) allocated_bytes += rounded_bytes(record.bytes);
  if (record.kind == static_cast<int32_t>(Kind::Free))
    allocated_bytes -= rounded_bytes(records[alloc_position[record.block]].bytes);
  most_allocated_bytes = std::max(most_allocated_bytes, allocated_bytes);
  records.push_back(record);
}

int32_t index_of(const std::string& name) {
  auto [found, inserted] = name_index.try_emplace(name, static_cast<int32_t>(names.size()));
  if (inserted) names.push_back(name);
  return found->second;
}

// The record of an allocation; null where there is none. With the lock held.
Record* record_of(int64_t block) {
  if (block < 0) return nullptr;
  if (alloc_position[block] >= 0) return &records[alloc_position[block]];
  if (alloc_position[block] != kUnwritten) return nullptr;
  const auto found = std::find_if(unwritten.rbegin(), unwritten.rend(),
                                  [block](const Record& record) { return record.block == block; });
  return found == unwritten.rend() ? nullptr : &*found;
}

struct NodeContext final : at::ObserverContext {
  int32_t previous_scope = 0;
};

std::unique_ptr<at::ObserverContext> enter_function(const at::RecordFunction& function) {
  if (function.scope() == at::RecordScope::BACKWARD_FUNCTION) backward_has_run();
  if (!recording) return nullptr;
  if (function.scope() != at::RecordScope::BACKWARD_FUNCTION) {
    if (module_scope != 0 && function.seqNr() >= 0) {
      std::lock_guard<std::mutex> lock(trace_mutex);
      scope_of_node[node_key(at::RecordFunction::currentThreadId(), function.seqNr())] = module_scope;
    }
    return nullptr;
  }
  auto context = std::make_unique<NodeContext>();
  context->previous_scope = module_scope;
  std::lock_guard<std::mutex> lock(trace_mutex);
  auto found = scope_of_node.find(node_key(function.forwardThreadId(), function.seqNr()));
  if (found != scope_of_node.end()) module_scope = found->second;
  return context;
}

void leave_function(const at::RecordFunction&, at::ObserverContext* context) {
  auto* node = dynamic_cast<NodeContext*>(context);
  if (node == nullptr) return;
  module_scope = node->previous_scope;
}

}  // namespace

KernelScope::KernelScope(const std::string& name) : previous_(kernel) { kernel = &name; }
KernelScope::~KernelScope() { kernel = previous_; }
const std::string& kernel_at_work() {
  static const std::string none;
  return kernel == nullptr ? none : *kernel;
}

int64_t record_alloc(size_t bytes, int32_t stream, int32_t pool) {
  std::lock_guard<std::mutex> lock(trace_mutex);
  const auto block = static_cast<int64_t>(alloc_position.size());
  const bool written = recording && compiling == 0;
  alloc_position.push_back(written ? static_cast<int64_t>(records.size()) : recording ? kUnwritten : -1);
  if (!recording) return block;
  const int32_t op = owner >= 0 ? owner : index_of(kernel_at_work());
  const Record record{static_cast<int32_t>(Kind::Alloc), op, module_scope, stream, block, static_cast<int64_t>(bytes), -1,
                      -1, pool};
  if (written)
    write_down(record);
  else
    unwritten.push_back(record);
  return block;
}

int64_t record_alloc_again(int64_t position) {
  std::lock_guard<std::mutex> lock(trace_mutex);
  Record record = records[position];
  record.block = static_cast<int64_t>(alloc_position.size());
  alloc_position.push_back(static_cast<int64_t>(records.size()));
  write_down(record);
  return record.block;
}

void record_free(int64_t block) {
  std::lock_guard<std::mutex> lock(trace_mutex);
  if (!recording) return;
  if (alloc_position[block] >= 0) {
    const auto kept = keepers.find(block);
    const bool is_timed = used_elsewhere.count(block) > 0 || (kept != keepers.end() && kept->second > 0);
    if (is_timed && first_timed_free < 0) first_timed_free = static_cast<int64_t>(records.size());
    write_down({static_cast<int32_t>(Kind::Free), 0, 0, 0, block, 0, -1, -1});
  } else if (const auto* record = record_of(block)) {
    unwritten.erase(unwritten.begin() + (record - unwritten.data()));
    alloc_position[block] = -1;
  }
}

void record_use(int64_t block, int32_t stream) {
  std::lock_guard<std::mutex> lock(trace_mutex);
  if (!recording || block < 0 || alloc_position[block] < 0) return;
  if (records[alloc_position[block]].stream != stream) used_elsewhere.insert(block);
  write_down({static_cast<int32_t>(Kind::Use), 0, 0, stream, block, 0, -1, -1});
}

void describe(int64_t block, const int64_t* sizes, size_t dims, int32_t dtype) {
  std::lock_guard<std::mutex> lock(trace_mutex);
  Record* record = record_of(block);
  if (record == nullptr || record->shape >= 0) return;
  record->shape = static_cast<int64_t>(shapes.size());
  record->dtype = dtype;
  shapes.push_back(static_cast<int64_t>(dims));
  shapes.insert(shapes.end(), sizes, sizes + dims);
}

void name_workspace(int64_t block, const std::string& library) {
  std::lock_guard<std::mutex> lock(trace_mutex);
  Record* record = record_of(block);
  if (record == nullptr) return;
  const bool convolves = library == "cudnn" && names[record->op].find("convolution") != std::string::npos;
  record->op = index_of(library + (convolves ? "_convolution::workspace" : "::workspace"));
}

void workspace_is_unknown(const std::string& name) {
  std::lock_guard<std::mutex> lock(trace_mutex);
  unknown_workspaces.insert(name);
}

void forget_unknown_workspaces() {
  std::lock_guard<std::mutex> lock(trace_mutex);
  unknown_workspaces.clear();
}

bool is_recording() { return recording; }
bool is_written_down() { return recording && compiling == 0; }

int32_t name_number(const std::string& name) {
  std::lock_guard<std::mutex> lock(trace_mutex);
  return index_of(name);
}

void start_following_autograd() {
  at::addGlobalCallback(at::RecordFunctionCallback(enter_function, leave_function)
                            .needsIds(true)
                            .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
}

}  // namespace paper

// The reading side, for ctypes.
extern "C" {

void paper_workspace_is_unknown(const char* name) { paper::workspace_is_unknown(name); }

// Sorted, one per line; valid until the next call.
const char* paper_unknown_workspaces() {
  static std::string joined;
  std::lock_guard<std::mutex> lock(paper::trace_mutex);
  joined.clear();
  for (const auto& name : paper::unknown_workspaces) joined += name + '\n';
  return joined.c_str();
}

void paper_start() {
  std::lock_guard<std::mutex> lock(paper::trace_mutex);
  paper::records.clear();
  paper::shapes.clear();
  paper::scope_of_node.clear();
  paper::unwritten.clear();
  paper::used_elsewhere.clear();
  paper::keepers.clear();
  paper::kept_by.clear();
  paper::first_timed_free = -1;
  paper::forget_launches();
  paper::compiling = 0;
  paper::allocated_bytes = paper::most_allocated_bytes = 0;
  std::fill(paper::alloc_position.begin(), paper::alloc_position.end(), -1);
  paper::recording = true;
}

// The collective that ends with this event keeps a block until it is waited for, or the GPU has passed it.
void paper_keep(int64_t block, int64_t collective) {
  paper::note_launch(paper::LaunchKind::Keep, static_cast<int32_t>(block), collective);
  std::lock_guard<std::mutex> lock(paper::trace_mutex);
  ++paper::keepers[block];
  paper::kept_by[collective].push_back(block);
}

void paper_release(int64_t collective) {
  {
    std::lock_guard<std::mutex> lock(paper::trace_mutex);
    const auto kept = paper::kept_by.find(collective);
    if (kept == paper::kept_by.end()) return;
    for (const auto block : kept->second) --paper::keepers[block];
    paper::kept_by.erase(kept);
  }
  paper::note_launch(paper::LaunchKind::Release, 0, collective);
}

void paper_use(int64_t block, int32_t stream) { paper::record_use(block, stream); }

// The position of the first record after which it is a question of time what is free; -1 if there is none.
int64_t paper_first_timed_free() { return paper::first_timed_free; }

int64_t paper_allocated_bytes() { return paper::allocated_bytes; }
int64_t paper_most_allocated_bytes() { return paper::most_allocated_bytes; }

void paper_stop() {
  std::lock_guard<std::mutex> lock(paper::trace_mutex);
  paper::recording = false;
}

void paper_begin_compiling() {
  paper::note_launch(paper::LaunchKind::Compile, 0);
  std::lock_guard<std::mutex> lock(paper::trace_mutex);
  ++paper::compiling;
}

// What was allocated in between and stays is written down now.
void paper_end_compiling() {
  std::lock_guard<std::mutex> lock(paper::trace_mutex);
  if (paper::compiling == 0 || --paper::compiling > 0) return;
  for (const auto& record : paper::unwritten) {
    paper::alloc_position[record.block] = static_cast<int64_t>(paper::records.size());
    paper::write_down(record);
  }
  paper::unwritten.clear();
}

// Blocks born at or after the record `first` and alive now, oldest first; at most `room` of them.
int64_t paper_born_alive(int64_t first, int64_t* out, int64_t room) {
  std::lock_guard<std::mutex> lock(paper::trace_mutex);
  std::vector<int64_t> born;
  std::unordered_set<int64_t> freed;
  for (size_t i = first; i < paper::records.size(); ++i) {
    const auto& record = paper::records[i];
    if (record.kind == static_cast<int32_t>(paper::Kind::Alloc)) born.push_back(record.block);
    if (record.kind == static_cast<int32_t>(paper::Kind::Free)) freed.insert(record.block);
  }
  int64_t count = 0;
  for (const auto block : born)
    if (freed.count(block) == 0 && count < room) out[count++] = block;
  return count;
}

int64_t paper_count() { return static_cast<int64_t>(paper::records.size()); }
const paper::Record* paper_records() { return paper::records.data(); }

// The name of the operator that asked for a block, as an index; -1 for a block from before `paper_start`.
int32_t paper_operator_of(int64_t block) {
  std::lock_guard<std::mutex> lock(paper::trace_mutex);
  if (block < 0 || paper::alloc_position[block] < 0) return -1;
  return paper::records[paper::alloc_position[block]].op;
}

// The operator whose kernel is at work on this thread; empty between operators.

int64_t paper_shape_count() { return static_cast<int64_t>(paper::shapes.size()); }
const int64_t* paper_shapes() { return paper::shapes.data(); }
int32_t paper_name_count() { return static_cast<int32_t>(paper::names.size()); }
const char* paper_name(int32_t index) { return paper::names[index].c_str(); }

int32_t paper_name_index(const char* name) { return paper::name_number(name); }

// What is allocated until this is called again belongs to the operator of that name, or to nobody (-1).
int32_t paper_enter_kernel(int32_t name) {
  const int32_t previous = paper::owner;
  paper::owner = name;
  return previous;
}

int32_t paper_enter_scope(int32_t scope) {
  const int32_t previous = paper::module_scope;
  paper::module_scope = scope;
  return previous;
}

void paper_empty_cache() {
  std::lock_guard<std::mutex> lock(paper::trace_mutex);
  if (paper::recording)
    paper::write_down({static_cast<int32_t>(paper::Kind::EmptyCache), 0, 0, 0, -1, 0, -1, -1});
}

}  // extern "C"
