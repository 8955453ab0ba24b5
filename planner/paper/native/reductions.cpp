// Reductions: a kernel that spreads one output over several blocks takes a staging buffer and semaphores.
//
// The arithmetic of ATen/native/cuda/Reduce.cuh (setReduceConfig, gpu_reduce_kernel), read in torch 2.13; the buffers
// that it gives are those recorded with torch 2.6 and 2.11.
#include <ATen/core/Tensor.h>
#include <ATen/native/ReduceOpsUtils.h>
#include <ATen/native/TensorIterator.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_map>

#include "host_values.h"
#include "kernels.h"
#include "memory.h"
#include "trace.h"

namespace paper {
namespace {

constexpr int64_t kWarp = 32;
constexpr int64_t kMinValuesPerThread = 16, kMaxValuesPerThread = 256;

// The target's; no multiprocessors: not a GPU, its reductions take nothing.
int64_t multiprocessors = 0;
int64_t threads_per_multiprocessor = 2048;

// What one accumulator is: a number, a number with its place, or mean and variance with their counts.
enum class Accumulator { Sum, Value, Placed, Welford };

struct Reduction {
  Accumulator accumulator;
  bool to_result_type;  // the input is converted first, unless the kernel converts 16 bits to float itself
  bool wide_loads;      // 16-bit inputs are read eight at a time: ReduceSumProdKernel.cu, ReduceMomentKernel.cu
};

const std::unordered_map<std::string, Reduction>& reductions() {
  static const std::unordered_map<std::string, Reduction> known{
      {"aten::sum", {Accumulator::Sum, true, true}},
      {"aten::nansum", {Accumulator::Sum, true, false}},
      {"aten::prod", {Accumulator::Sum, true, false}},
      {"aten::mean", {Accumulator::Sum, true, true}},
      {"aten::linalg_vector_norm", {Accumulator::Sum, true, false}},
      {"aten::amax", {Accumulator::Value, false, false}},
      {"aten::amin", {Accumulator::Value, false, false}},
      {"aten::all", {Accumulator::Value, false, false}},
      {"aten::any", {Accumulator::Value, false, false}},
      {"aten::max", {Accumulator::Placed, false, false}},
      {"aten::min", {Accumulator::Placed, false, false}},
      {"aten::argmax", {Accumulator::Placed, false, false}},
      {"aten::argmin", {Accumulator::Placed, false, false}},
      {"aten::std", {Accumulator::Welford, false, false}},
      {"aten::var", {Accumulator::Welford, false, false}},
      {"aten::std_mean", {Accumulator::Welford, false, false}},
      {"aten::var_mean", {Accumulator::Welford, false, false}},
  };
  return known;
}

bool is_sixteen_bits(at::ScalarType type) { return type == at::kHalf || type == at::kBFloat16; }

int64_t accumulator_bytes(Accumulator accumulator, at::ScalarType type) {
  const int64_t bytes = static_cast<int64_t>(c10::elementSize(type));
  switch (accumulator) {
    case Accumulator::Sum: return is_sixteen_bits(type) ? 4 : bytes;
    case Accumulator::Value: return bytes;
    case Accumulator::Placed: return 16;  // a pair with an int64
    case Accumulator::Welford: return type == at::kDouble ? 32 : 16;
  }
  return bytes;
}

int64_t input_vector(const Reduction& reduction, at::ScalarType type) {
  if (reduction.accumulator == Accumulator::Welford) return 2;
  return reduction.wide_loads && is_sixteen_bits(type) ? 8 : 4;
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t last_power_of_two(int64_t n) {
  int64_t power = 1;
  while (power * 2 <= n) power *= 2;
  return power;
}

// How many neighbouring outputs one thread can load at once: alignment and strides decide.
int64_t output_vector(const at::TensorIterator& iter, int64_t element_bytes) {
  int64_t size = 4;
  const auto fit = [&size](uint64_t n) {
    while (n % size != 0) size /= 2;
  };
  const int input = iter.noutputs(), output_dim = iter.num_reduce_dims();
  fit(reinterpret_cast<uint64_t>(iter.data_ptr(input)) / element_bytes);
  fit(iter.shape()[output_dim]);
  int dim = 0;
  for (const auto stride : iter.strides(input))
    if (dim++ != output_dim) fit(stride / element_bytes);
  return size;
}

struct Buffers {
  int64_t staging = 0, semaphores = 0;
};

Buffers buffers_of(const at::TensorIterator& iter, const Reduction& reduction) {
  const int input = iter.ntensors() - 1;
  const auto type = iter.dtype(input);
  const auto element_bytes = static_cast<int64_t>(c10::elementSize(type));
  const int64_t outputs = iter.num_output_elements(), inputs = iter.numel() / outputs;
  const int reduced = iter.num_reduce_dims();

  bool along_fastest = true;
  int64_t dim0 = 1, dim1 = 1, fastest_stride = element_bytes;
  if (iter.ndim() > 0) {
    const auto strides = iter.strides(input);
    along_fastest = reduced == iter.ndim() || strides[0] < strides[reduced];
    dim0 = along_fastest ? inputs : outputs;
    dim1 = along_fastest ? outputs : inputs;
    fastest_stride = along_fastest ? strides[0] : strides[reduced];
  }
  int64_t vector = 1;
  if (fastest_stride == element_bytes) {
    if (along_fastest && dim0 >= 128 && reduced == 1) {
      dim0 /= input_vector(reduction, type);
    } else if (!along_fastest) {
      vector = output_vector(iter, element_bytes);
      dim0 /= vector;
    }
  }

  const int64_t max_threads = (type == at::kComplexDouble ? 256 : 512) / vector;
  const int64_t width_limit = last_power_of_two(std::min(dim0, max_threads));
  const int64_t height_limit = last_power_of_two(std::min(dim1, max_threads));
  int64_t width = std::min(width_limit, kWarp);
  const int64_t height = std::min(height_limit, max_threads / width);
  width = std::min(width_limit, max_threads / height);

  int64_t step_input = 1, step_output = 1;
  (along_fastest ? step_input : step_output) *= width;
  const int64_t threshold = std::min(height * 16, kMaxValuesPerThread);
  const bool across_warps = ceil_div(inputs, step_input) >= threshold;
  (across_warps ? step_input : step_output) *= height;

  const int64_t per_thread = ceil_div(inputs, step_input);
  const int64_t grid = ceil_div(outputs / vector, step_output);
  const int64_t target_grid = multiprocessors * (threads_per_multiprocessor / (width * height));
  if (!across_warps || per_thread < kMaxValuesPerThread || grid > target_grid) return {};
  const int64_t blocks = std::max(std::min(ceil_div(target_grid, grid), ceil_div(per_thread, kMinValuesPerThread)),
                                  ceil_div(per_thread, kMaxValuesPerThread));
  if (blocks <= 1) return {};
  const int64_t staging = accumulator_bytes(reduction.accumulator, type) * outputs * blocks;
  return {along_fastest ? staging : staging * width * vector, static_cast<int64_t>(sizeof(int)) * grid};
}

void take(const at::TensorIterator& iter, const Reduction& reduction) {
  const auto buffers = buffers_of(iter, reduction);
  if (buffers.staging == 0) return;
  const auto staging = allocator()->allocate(buffers.staging);
  const auto semaphores = allocator()->allocate(buffers.semaphores);
}

void run_kernel(at::TensorIterator& iter, const Reduction& reduction) {
  if (iter.can_use_32bit_indexing()) return take(iter, reduction);
  // 16-bit results cannot hold the sums between the pieces that 32-bit indices reach.
  c10::DataPtr sums;
  const auto type = iter.dtype(iter.ntensors() - 1);
  if (is_sixteen_bits(iter.dtype(0)) && is_sixteen_bits(type))
    sums = allocator()->allocate(iter.num_output_elements() * accumulator_bytes(reduction.accumulator, type));
  for (auto& piece : iter.with_32bit_indexing()) take(piece, reduction);
}

// The result with the reduced dims in their places, as the iterator wants it.
at::Tensor with_reduced_dims(const at::Tensor& result, const at::native::DimMask& mask, int64_t dims) {
  if (result.dim() == dims) return result;
  at::DimVector sizes(result.sizes()), strides(result.strides());
  for (int64_t dim = 0; dim < dims; ++dim) {
    if (!mask[dim]) continue;
    sizes.insert(sizes.begin() + dim, 1);
    strides.insert(strides.begin() + dim, 0);
  }
  auto impl = c10::make_intrusive<c10::TensorImpl>(c10::Storage(result.storage()), result.key_set(), result.dtype());
  impl->set_sizes_and_strides(sizes, strides, result.storage_offset());
  return at::Tensor(std::move(impl));
}

at::DimVector dims_of(const c10::FunctionSchema& schema, const torch::jit::Stack& arguments) {
  const auto index = schema.argumentIndexWithName("dim");
  if (!index) return {};
  const auto& value = arguments[*index];
  if (value.isInt()) return {value.toInt()};
  if (!value.isIntList()) return {};
  const auto list = value.toIntVector();
  return at::DimVector(list.begin(), list.end());
}

at::Tensor input_of(const Reduction& reduction, const at::Tensor& self, const at::Tensor& result) {
  const auto wanted = result.scalar_type();
  const bool converts_itself = is_sixteen_bits(self.scalar_type()) && wanted == at::kFloat;
  if (!reduction.to_result_type || wanted == self.scalar_type() || converts_itself) return self;
  return at::empty_like(self, self.options().dtype(wanted));
}

void take_temporaries(Reduction reduction, const c10::FunctionSchema& schema, const torch::jit::Stack& arguments,
                      const torch::jit::Stack& results) {
  const auto& self = arguments[0].toTensor();
  const auto& first = results[0].toTensor();
  if (!self.is_cuda() || self.numel() == 0 || first.numel() == 0) return;
  const auto dims = dims_of(schema, arguments);
  const bool over_all = !schema.argumentIndexWithName("dim");
  // max() and min() of everything keep no place.
  if (over_all && reduction.accumulator == Accumulator::Placed) reduction.accumulator = Accumulator::Value;
  const auto mask = at::native::make_dim_mask(dims, self.dim(), /*allow_empty_dims=*/false);
  const auto input = input_of(reduction, self, first);
  auto viewed = with_reduced_dims(first, mask, self.dim());
  if (results.size() == 1) {
    auto iter = at::TensorIterator::reduce_op(viewed, input);
    return run_kernel(iter, reduction);
  }
  auto second = with_reduced_dims(results[1].toTensor(), mask, self.dim());
  auto iter = at::TensorIterator::reduce_op(viewed, second, input);
  run_kernel(iter, reduction);
}

void reduce(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  if (multiprocessors == 0) return run_meta(op, stack);
  const auto given = torch::jit::last(*stack, schema.arguments().size());
  const torch::jit::Stack arguments(given.begin(), given.end());
  run_meta(op, stack);
  KernelScope scope(schema.name());
  at::AutoDispatchBelowADInplaceOrView below;
  const auto returned = torch::jit::last(*stack, schema.returns().size());
  const torch::jit::Stack results(returned.begin(), returned.end());
  take_temporaries(reductions().at(schema.name()), schema, arguments, results);
  remember_result(op, arguments, results);
}

}  // namespace

bool is_gpu() { return multiprocessors > 0; }

}  // namespace paper

extern "C" {

// To be called after every other registration: it stands above the fallback.
void paper_install_reductions() {
  paper::WithoutWarnings quiet;
  static torch::Library aten(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  for (const char* name :
       {"sum.dim_IntList", "sum.IntList_out", "nansum", "nansum.out", "prod", "prod.dim_int", "prod.int_out", "mean.dim",
        "mean.out", "linalg_vector_norm", "linalg_vector_norm.out", "amax", "amax.out", "amin", "amin.out", "all",
        "all.all_out", "all.dim", "all.out", "any", "any.all_out", "any.dim", "any.out", "max", "max.dim",
        "max.dim_max", "min", "min.dim", "min.dim_min", "argmax", "argmax.out", "argmin", "argmin.out",
        "std.correction", "std.correction_out", "var.correction", "var.correction_out", "std_mean.correction",
        "var_mean.correction"})
    aten.impl(name, torch::CppFunction::makeFromBoxedFunction<&paper::reduce>());
}

// The multiprocessors of the target, and the threads that each can hold.
void paper_set_multiprocessors(int64_t count, int64_t threads) {
  paper::multiprocessors = count;
  paper::threads_per_multiprocessor = threads;
}

}  // extern "C"
