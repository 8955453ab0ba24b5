// What is known of the values of tensors on the paper GPU, whose kernels compute nothing: by storage.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <optional>
#include <vector>

#include "host_memory.h"

namespace paper {

// While it lives this thread computes on the host for the paper GPU: no mode, transform or autograd of the program sees it.
class ComputingOnHost {
  NotOfTheProgram memory_;
  at::DisableRecordFunctionGuard calls_;
  c10::impl::ForceDispatchKeyGuard keys_;

 public:
  ComputingOnHost();
};

// All values of a tensor are this one.
struct Uniform {
  at::Scalar value;
  bool is_certain = false;       // somebody has filled it; else it is what a healthy step has there
  bool stands_for_any = false;   // a place in the middle, of which nobody knows more: it equals no constant
  int64_t among = 0;             // so many values there can be, or a truth value holds for one of so many; 0 if nobody says
};

// The device tensor now holds what the host tensor holds, if that is small enough to be kept; the rest of its storage is
// as it was.
void remember(const at::Tensor& device, const at::Tensor& host);
void remember(const at::Tensor& device, const Uniform& uniform);
// It holds values that are known but too many to be kept, as weights that ranks compare.
void remember_unkept(const at::Tensor& device);
// It holds numbers that were drawn on the device, as paper/random_numbers.py describes them. Python draws them again.
void remember_draw(const at::Tensor& device, std::vector<int64_t> recipe);

// Somebody wrote to it what nobody knows, or the storage at this address is gone.
void forget(const at::Tensor& device);
void forget(const void* address);

// Its values on the host: a view of what is kept. Nothing if it lies on the device and they are not known.
std::optional<at::Tensor> on_host(const at::Tensor& tensor);
// As `on_host`, also where somebody has filled the whole tensor, however large.
std::optional<at::Tensor> constant(const at::Tensor& tensor);
std::optional<Uniform> uniform(const at::Tensor& tensor);
std::optional<std::vector<int64_t>> known_draw(const at::Tensor& device);
bool is_unkept(const at::Tensor& tensor);
// Whether anything of the above is.
bool is_known(const at::Tensor& tensor);

// Neither sparse nor nested.
bool is_strided(const at::Tensor& tensor);
bool share_storage(const at::Tensor& one, const at::Tensor& other);
at::Tensor empty_on_host(at::IntArrayRef sizes, at::ScalarType dtype);
// What a result may take to be kept.
bool is_small_enough(const at::Tensor& result);
// Whole numbers and truth values.
bool is_whole(const at::Tensor& tensor);

}  // namespace paper
