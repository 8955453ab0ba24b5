#include "launches.h"

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "memory.h"
#include "trace.h"

namespace paper {
namespace {

std::mutex launch_mutex;
std::mutex operator_mutex;
std::vector<Launch> launches;
// Of each kernel: operator, dtype, bytes read, bytes written, number of shapes, of each its dims and sizes, then scalars.
std::vector<int64_t> kernel_table;
std::map<std::vector<int64_t>, int64_t> kernel_numbers;
std::atomic<int64_t> last_event{0};
std::unordered_map<int32_t, int64_t> capturing;  // by stream the graph of CUDA that its launches become part of
std::unordered_map<int64_t, std::vector<Launch>> graphs;
thread_local int32_t inside = 0;  // something is at work that is noted by itself: what it calls is part of it
thread_local int64_t heard = 0;        // launches on this thread by the operator that is at work itself
thread_local int32_t heard_stream = 0;  // of the latest

constexpr int64_t kMostShapes = 3;  // of arguments; that of the first result comes last

// What is the same for every call of an operator.
struct Operator {
  bool is_operator = false;
  bool is_product = false;   // of matrices
  bool is_shaped = false;    // its shapes decide how long it takes, not its bytes alone
  bool reads_rows = false;   // of its first argument only what it returns
  bool joins = false;        // the stream waits for collectives
  int32_t name = 0;
  std::vector<bool> read, written;  // by argument
};

const std::unordered_set<std::string> kProducts = {
    "aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_addmm_activation", "aten::_scaled_mm",
    "aten::_grouped_mm", "aten::_scaled_grouped_mm",
};

// What they return is all that they read, or what they write was not read before.
const std::unordered_set<std::string> kReadRows = {"aten::embedding", "aten::index", "aten::index_select", "aten::gather"};
const std::unordered_set<std::string> kWriteAll = {"aten::copy_", "aten::fill_", "aten::zero_", "aten::normal_",
                                                   "aten::uniform_", "aten::random_", "aten::bernoulli_",
                                                   "aten::_foreach_copy_", "aten::_foreach_zero_"};

Operator describe_operator(const c10::OperatorName& named) {
  Operator known;
  const auto& name = named.name;
  known.joins = name == "_c10d_functional::wait_tensor";
  known.is_operator = true;
  const auto has = [&name](const char* part) { return name.find(part) != std::string::npos; };
  known.is_product = kProducts.count(name) > 0;
  known.is_shaped = known.is_product || has("attention") || has("attn") || has("convolution");
  known.reads_rows = kReadRows.count(name) > 0;
  known.name = name_number(name);
  const auto handle = c10::Dispatcher::singleton().findOp(named);
  if (!handle.has_value()) return known;
  for (const auto& argument : handle->schema().arguments()) {
    const bool writes = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    known.written.push_back(writes);
    known.read.push_back(!writes || !(argument.kwarg_only() || kWriteAll.count(name) > 0));
  }
  return known;
}

const Operator& look_up(const at::RecordFunction& function) {
  static std::map<std::pair<std::string, std::string>, Operator> known;
  static const Operator none;
  const auto named = function.operator_name();
  if (!named.has_value()) return none;
  std::lock_guard<std::mutex> lock(operator_mutex);
  auto [found, inserted] = known.try_emplace({named->name, named->overload_name});
  if (inserted) found->second = describe_operator(*named);
  return found->second;
}

// Asked for every call: an operator's name lies where its schema does, and anybody else's where another may lie later.
const Operator& operator_of(const at::RecordFunction& function) {
  thread_local std::unordered_map<const char*, std::pair<std::string, const Operator*>> cache;
  auto& [name, op] = cache[function.name()];
  if (op == nullptr || name != function.name()) {
    name = function.name();
    op = &look_up(function);
  }
  return *op;
}

struct KernelContext final : at::ObserverContext {
  const Operator* op = nullptr;
  int64_t read = 0, written = 0, dtype = -1, shape_count = 0;
  std::vector<int64_t> shapes, scalars;
  bool on_device = false;
  int64_t heard_before = 0;   // launches by the operator that calls this one

  void take_shape(const at::Tensor& tensor) {
    if (!op->is_shaped) return;
    ++shape_count;
    shapes.push_back(tensor.dim());
    shapes.insert(shapes.end(), tensor.sizes().begin(), tensor.sizes().end());
  }
};

int64_t bytes_of(const at::Tensor& tensor) {
  const auto bytes = static_cast<int64_t>(tensor.numel() * tensor.element_size());
  return tensor.has_storage() ? std::min<int64_t>(bytes, static_cast<int64_t>(tensor.storage().nbytes())) : bytes;
}

// Subclasses come back as what they hold, fakes compute nothing.
bool is_of_paper(const at::Tensor& tensor) { return !tensor.key_set().has(c10::DispatchKey::Python); }

// Whether products of float32 may lose bits; torch refuses to say so where a program has set both of its two settings.
bool allows_tf32() {
  try {
    return at::globalContext().allowTF32CuBLAS();
  } catch (const c10::Error&) {
    return false;
  }
}

std::unique_ptr<at::ObserverContext> enter_operator(const at::RecordFunction& function) {
  if (inside > 0 || !is_written_down()) return nullptr;
  const auto& op = operator_of(function);
  if (op.joins) note_launch(LaunchKind::WaitAll, current_stream());
  if (!op.is_operator) return nullptr;
  auto context = std::make_unique<KernelContext>();
  context->op = &op;
  size_t index = 0;
  for (const auto& value : function.inputs()) {
    const bool reads = index >= op.read.size() || op.read[index], writes = index < op.written.size() && op.written[index];
    const auto take = [&](const at::Tensor& tensor, bool alone) {
      if (!tensor.defined()) return true;
      if (!is_of_paper(tensor)) return false;
      if (!tensor.is_cuda()) return true;
      context->on_device = true;
      if (context->dtype < 0) context->dtype = static_cast<int64_t>(tensor.scalar_type());
      if (reads && !(op.reads_rows && index == 0)) context->read += bytes_of(tensor);
      if (writes) context->written += bytes_of(tensor);
      if (alone && context->shape_count < kMostShapes) context->take_shape(tensor);
      return true;
    };
    if (value.isTensor()) {
      if (!take(value.toTensor(), true)) return nullptr;
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector())
        if (!take(tensor, false)) return nullptr;
    } else if (op.is_shaped && (value.isInt() || value.isBool())) {
      context->scalars.push_back(value.isInt() ? value.toInt() : static_cast<int64_t>(value.toBool()));
    }
    ++index;
  }
  context->heard_before = heard;
  heard = 0;
  return context;
}

void leave_operator(const at::RecordFunction& function, at::ObserverContext* entered) {
  auto* context = dynamic_cast<KernelContext*>(entered);
  if (context == nullptr) return;
  const bool launched = std::exchange(heard, context->heard_before) > 0;
  if (!launched) return;
  int64_t shown = 0;
  for (const auto& value : function.outputs()) {
    const auto take = [&](const at::Tensor& tensor) {
      if (!tensor.defined() || !is_of_paper(tensor) || !tensor.is_cuda()) return;
      context->on_device = true;
      if (context->dtype < 0) context->dtype = static_cast<int64_t>(tensor.scalar_type());
      // What is written in place or into `out=` was counted as an argument.
      if (context->written == 0 || shown > 0) context->written += bytes_of(tensor);
      if (context->op->reads_rows) context->read += bytes_of(tensor);
      if (shown++ == 0) context->take_shape(tensor);
    };
    if (value.isTensor()) take(value.toTensor());
    if (value.isTensorList())
      for (const at::Tensor& tensor : value.toTensorVector()) take(tensor);
  }
  if (!context->on_device) return;
  if (context->op->is_product && context->dtype == static_cast<int64_t>(at::ScalarType::Float))
    context->scalars.push_back(allows_tf32());
  std::vector<int64_t> row{context->op->name, context->dtype, context->read, context->written, context->shape_count};
  row.insert(row.end(), context->shapes.begin(), context->shapes.end());
  row.push_back(static_cast<int64_t>(context->scalars.size()));
  row.insert(row.end(), context->scalars.begin(), context->scalars.end());
  note_launch(LaunchKind::Kernel, heard_stream, kernel_number(row));
}

}  // namespace

int64_t kernel_number(const std::vector<int64_t>& row) {
  std::lock_guard<std::mutex> lock(launch_mutex);
  auto [found, inserted] = kernel_numbers.try_emplace(row, static_cast<int64_t>(kernel_numbers.size()));
  if (inserted) {
    kernel_table.push_back(static_cast<int64_t>(row.size()));
    kernel_table.insert(kernel_table.end(), row.begin(), row.end());
  }
  return found->second;
}

void note_launch(LaunchKind kind, int32_t stream, int64_t what) {
  if (!is_written_down()) return;
  const auto position = static_cast<int64_t>(paper_count());
  std::lock_guard<std::mutex> lock(launch_mutex);
  const auto graph = capturing.find(stream);
  auto& to = graph == capturing.end() ? launches : graphs[graph->second];
  to.push_back({static_cast<int32_t>(kind), stream, what, position});
}

void capture_launches(int32_t stream, int64_t graph) {
  std::lock_guard<std::mutex> lock(launch_mutex);
  capturing[stream] = graph;
}

void end_capture(int64_t graph) {
  std::lock_guard<std::mutex> lock(launch_mutex);
  std::erase_if(capturing, [graph](const auto& captured) { return captured.second == graph; });
}

// Events are recorded anew each time.
void replay_launches(int64_t graph) {
  std::vector<Launch> captured;
  {
    std::lock_guard<std::mutex> lock(launch_mutex);
    captured = graphs[graph];
  }
  std::unordered_map<int64_t, int64_t> events;
  for (const auto& launch : captured) {
    const auto kind = static_cast<LaunchKind>(launch.kind);
    auto what = launch.what;
    if (kind == LaunchKind::Record) what = events[what] = new_event();
    if (kind == LaunchKind::Wait && events.count(what) > 0) what = events[what];
    note_launch(kind, launch.stream, what);
  }
}

int64_t new_event() { return ++last_event; }

void forget_launches() {
  std::lock_guard<std::mutex> lock(launch_mutex);
  launches.clear();
  kernel_table.clear();
  kernel_numbers.clear();
  graphs.clear();
}

void hear_launch(int32_t stream) {
  ++heard;
  heard_stream = stream;
}

void start_following_operators() {
  at::addGlobalCallback(at::RecordFunctionCallback(enter_operator, leave_operator)
                            .needsInputs(true)
                            .needsOutputs(true)
                            .scopes({at::RecordScope::FUNCTION}));
}

}  // namespace paper

extern "C" {

int64_t paper_launch_count() { return static_cast<int64_t>(paper::launches.size()); }
const paper::Launch* paper_launches() { return paper::launches.data(); }
int64_t paper_kernel_table_length() { return static_cast<int64_t>(paper::kernel_table.size()); }
const int64_t* paper_kernel_table() { return paper::kernel_table.data(); }

// A kernel that no operator of torch is: `row` as in the table of kernels, without its length. Stream -1: the current.
void paper_launch(const int64_t* row, int64_t length, int32_t stream) {
  if (paper::inside > 0 || !paper::is_written_down()) return;
  const auto number = paper::kernel_number(std::vector<int64_t>(row, row + length));
  paper::note_launch(paper::LaunchKind::Kernel, stream < 0 ? paper::current_stream() : stream, number);
}

void paper_note_launch(int32_t kind, int32_t stream, int64_t what) {
  paper::note_launch(static_cast<paper::LaunchKind>(kind), stream, what);
}

int64_t paper_new_event() { return paper::new_event(); }
int32_t paper_current_stream() { return paper::current_stream(); }

// Inside of it operators are parts of something that is noted by itself.
void paper_enter_launch() { ++paper::inside; }
void paper_leave_launch() { --paper::inside; }
}
