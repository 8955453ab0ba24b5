// What the paper GPU writes down: one record for each thing that a caching allocator would be told.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace paper {

// As native_records.py numbers them.
enum class Kind : int32_t { Alloc, Free, Use, EmptyCache };

// Read from Python as a flat array (RECORD in native_records.py).
struct Record {
  int32_t kind;
  int32_t op;      // index into the table of names
  int32_t scope;   // module scope that was open, as numbered by Python; 0 is none
  int32_t stream;
  int64_t block;
  int64_t bytes;
  int64_t shape;   // index into the table of shapes, -1 if not known
  int32_t dtype;   // c10::ScalarType, -1 if not known
  int32_t pool = 0; // the private pool of a CUDA graph; 0 is the one of all
};
static_assert(sizeof(Record) == 48, "RECORD in native_records.py has no such members");

// The operator whose kernel is at work on this thread; empty between operators.
struct KernelScope {
  explicit KernelScope(const std::string& name);
  ~KernelScope();

 private:
  const std::string* previous_;
};
// None: empty.
const std::string& kernel_at_work();

int64_t record_alloc(size_t bytes, int32_t stream, int32_t pool = 0);
// As the record at this position says, of a new block.
int64_t record_alloc_again(int64_t position);
void record_free(int64_t block);
void record_use(int64_t block, int32_t stream);
void describe(int64_t block, const int64_t* sizes, size_t dims, int32_t dtype);
// A library was given this block to work in, whoever asked for it.
void name_workspace(int64_t block, const std::string& library);
// Said once per trace and name: a library takes scratch memory of a size that nobody outside of it knows.
void workspace_is_unknown(const std::string& name);
void forget_unknown_workspaces();
void start_following_autograd();
// An autograd node has run in this process; see autograd.cpp.
void backward_has_run();
// Whether what happens now is written down: not before a trace, and not while something is compiled.
bool is_written_down();
bool is_recording();
int32_t name_number(const std::string& name);

}  // namespace paper

extern "C" int64_t paper_count();
