// The memory that torch asks for, and on which streams and devices.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <cstdint>

namespace paper {

void install_allocator();
// The block at this address, or -1: an address is never given out twice while it is in use.
int64_t block_at(const void* address);
// The block that this address lies in, or -1.
int64_t block_around(const void* address);

c10::DeviceIndex current_device();
// A stream as the allocator is told of it: 24 bits of its number, above them which of the process's devices it is of. They
// are numbered in the order of their first blocks, so that ranks with one device each say the same.
int32_t stream_of_device(c10::DeviceIndex device, c10::StreamId stream);
// Of the current device.
int32_t current_stream();
void forget_devices();
// Of the device of this number; -1 for more than have blocks.
c10::DeviceIndex device_numbered(int32_t number);

}  // namespace paper
