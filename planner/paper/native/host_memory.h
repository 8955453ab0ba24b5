// What a program takes of the host's memory through torch, written down as it is taken and given up.
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <cstdint>

namespace paper {

// Read from Python as a flat array of the format that `paper_host_record_format` says.
struct HostRecord {
  int32_t taken;   // 1 where a block is taken, 0 where it is given up
  int32_t pinned;  // 1 for page-locked memory
  int64_t block;   // never used twice in a process
  int64_t bytes;   // as they were asked for; 0 where it is given up
};

void record_host_take(const void* address, size_t bytes, bool pinned);
void record_host_give_up(const void* address);

// What is taken inside on this thread is the paper GPU's own: a program on a GPU would not have it.
struct NotOfTheProgram {
  NotOfTheProgram();
  ~NotOfTheProgram();
};

// Zeros, for what would have been copied here from a device that has no values. Of large memory of torch's own the pages
// are given back: such read as zeros, and are no memory until somebody writes there.
void write_zeros(const c10::DataPtr& owner, void* begin, size_t bytes);

}  // namespace paper
