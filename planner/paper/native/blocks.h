// Blocks of memory that are in use: addresses without bytes behind them, and what they are written down as.
#pragma once

#include <ATen/core/TensorBase.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>

namespace paper {

// A block of so many bytes, asked for on a stream; its address.
void* take_block(size_t bytes, int32_t stream, int32_t pool);
// The next block that is taken is this one, which was written down already.
void adopt_block(int64_t block);
// An address that is none of a block is left alone.
void give_back_block(void* address);
// The device has a block: it gets the next number if it has none.
void number_device(c10::DeviceIndex device);
// The block of a tensor has its shape and dtype, if nothing was said of it before.
void describe_tensor(const at::TensorBase& tensor);

}  // namespace paper
