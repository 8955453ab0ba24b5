// Streams of CUDA as the records name them.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace paper {

// Of a stream by its handle (a cudaStream_t; null is the default one), as `stream_of_device` would name it.
int32_t number_of_stream(c10::DeviceIndex device, const void* stream);
void forget_streams();
// Whether a convolution asks for memory on this thread that is no tensor's.
bool is_workspace_of_convolution();
// Whoever launches, records and waits is heard from now on.
void start_listening();

}  // namespace paper
