// Host memory that is page-locked in name only: real bytes of the CPU's allocator, remembered by address.
#pragma once

#include <c10/core/Allocator.h>

namespace paper {

c10::Allocator* pinned_allocator();
// The start of an allocation of `pinned_allocator`; views with an offset are not looked for.
bool is_pinned(const void* address);

}  // namespace paper
