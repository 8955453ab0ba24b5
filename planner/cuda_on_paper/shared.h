// What the stand-ins share; implemented in cudart.cpp, called by the others.
#pragma once
#include <cstddef>
#include <cstdint>
#define API extern "C" __attribute__((visibility("default")))
// A function that does one thing and succeeds, which is zero in every library of CUDA.
#define LIBRARY_ENTRY(STATUS, NAME, PARAMETERS, ...) \
  API STATUS NAME PARAMETERS {                       \
    __VA_ARGS__;                                     \
    return (STATUS)0;                                \
  }
API void paper_launched(void* stream);                       // the device is given something to do
API int paper_call();                                        // by a library, on its stream
API void paper_library_stream(void* stream);                 // of its next calls on this thread
API void paper_works_in(const char* library, void* memory);  // that it was given
// An answer that decides memory, and that nobody can give; returns the error.
API int paper_unknown(const char* name, int error);
API long paper_refuse(const char* function, const char* library, long error);  // nobody wrote it; returns the error
API const char* paper_refused_function();  // the last one (`ncclMemAlloc of libnccl`); empty if there was none
API bool paper_take(size_t bytes, int device);  // count physical memory; false: the GPU is full
API void paper_give(size_t bytes, int device);
API void* paper_addresses(size_t bytes);  // addresses that nobody else has
API void paper_addresses_free(void* address, size_t bytes);
API void paper_forget(void* address, size_t bytes);  // contents become zero

// Whoever hears what the host gives the device to do, in its order.
// The default stream is null.
struct PaperListener {
  void (*launched)(void* stream);     // a kernel
  int64_t (*recorded)(void* stream);  // an event; returns its number
  void (*stream_waits)(void* stream, int64_t event);
  void (*host_waits)(void* stream);
  void (*host_waits_for_device)();
  void (*host_waits_for_event)(int64_t event);
  void (*works_in)(const char* library, void* memory);  // memory that a library was given to work in
  void (*unknown)(const char* name);                    // an answer that nobody can give without a GPU
  void (*host_memory)(void* memory, size_t bytes);      // page-locked memory of so many bytes; 0: it is given up
  void (*captures)(void* stream, int64_t graph);        // what is launched on the stream becomes part of the graph
  void (*captured)(int64_t graph);
  void (*replayed)(int64_t graph);
};
API void paper_listen(const PaperListener* listener);  // null: nobody
API const PaperListener* paper_listener();
