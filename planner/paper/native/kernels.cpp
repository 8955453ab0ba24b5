// Kernels of the paper GPU: what an operator allocates, without what it computes.
//
// The fallback runs the operator's meta kernel on stand-ins of its arguments and gives every new storage that
// comes out of it a storage on the paper GPU. Operators that CUDA implements in its own way are registered from
// Python (planner/paper/kernels/), over this fallback.
#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <memory>
#include <unordered_set>
#include <vector>

#include "attention.h"
#include "blocks.h"
#include "convolution.h"
#include "copied_values.h"
#include "followed_operators.h"
#include "gemms.h"
#include "host_memory.h"
#include "host_values.h"
#include "kernels.h"
#include "launches.h"
#include "memory.h"
#include "recurrent.h"
#include "softmax.h"
#include "sparse.h"
#include "structured.h"
#include "trace.h"

namespace paper {
namespace {

const c10::DispatchKeySet kCuda(c10::DispatchKey::CUDA);
const c10::DispatchKeySet kMeta(c10::DispatchKey::Meta);

// Meta kernels written in Python must not see the modes of the program that is being traced.
struct WithoutFunctionModes {
  WithoutFunctionModes() : before_(at::impl::PythonTorchFunctionTLS::get_disabled_state()) {
    at::impl::PythonTorchFunctionTLS::set_disabled_state(at::impl::TorchFunctionDisabledState::ALL_DISABLED);
  }
  ~WithoutFunctionModes() { at::impl::PythonTorchFunctionTLS::set_disabled_state(before_); }
  at::impl::TorchFunctionDisabledState before_;
};

void resize_storage(c10::StorageImpl* storage, size_t bytes) {
  auto data = allocator()->allocate(bytes);  // first the new, then the old goes: as the real one copies between them
  storage->set_data_ptr_noswap(std::move(data));
  storage->set_nbytes(bytes);
}

// The arguments of one call as meta tensors, and the way back.
class StandIns {
 public:
  c10::IValue of(const c10::IValue& value) {
    if (value.isTensor()) return of(value.toTensor());
    if (value.isDevice()) {
      remember_device(value.toDevice());
      return value.toDevice().is_cuda() ? c10::IValue(c10::Device(c10::DeviceType::Meta)) : value;
    }
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      list.reserve(value.toListRef().size());
      for (const auto& item : value.toListRef()) list.push_back(of(item.toTensor()));
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const auto& item : value.toListRef()) {
        list.push_back(item.isNone() ? std::nullopt : std::optional<at::Tensor>(of(item.toTensor())));
      }
      return list;
    }
    if (value.isGenerator()) return c10::IValue();
    return value;
  }

  c10::IValue back(const c10::IValue& value) {
    if (value.isTensor()) return back(value.toTensor());
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const auto& item : value.toListRef()) list.push_back(back(item.toTensor()));
      return list;
    }
    return value;
  }

  // Where the results lie: with the first argument on a GPU, or where the operator was told to put them.
  std::optional<c10::Device> device() const { return device_; }

  // `out=` arguments and operators like `resize_` change the arguments themselves.
  void carry_over_changes() {
    for (auto& pair : pairs_) {
      auto* meta = pair.meta.unsafeGetTensorImpl();
      auto* real = pair.real.unsafeGetTensorImpl();
      if (!pair.real.is_cuda()) continue;
      if (meta->storage().nbytes() > real->storage().nbytes()) resize_storage(real->unsafe_storage().unsafeGetStorageImpl(), meta->storage().nbytes());
      if (meta->sizes() != real->sizes() || meta->strides() != real->strides()) {
        real->set_sizes_and_strides(meta->sizes(), meta->strides(), meta->storage_offset());
      }
    }
  }

 private:
  struct Pair {
    at::Tensor real, meta;
  };

  at::Tensor of(const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.is_meta()) return tensor;
    // A number among tensors stays what it is: CUDA kernels take it by value.
    if (tensor.is_cpu() && tensor.dim() == 0) return tensor;
    auto* impl = tensor.unsafeGetTensorImpl();
    for (auto& pair : pairs_)
      if (pair.real.unsafeGetTensorImpl() == impl) return pair.meta;
    remember_device(tensor.device());
    auto meta = c10::make_intrusive<c10::TensorImpl>(storage_of(tensor), kMeta, tensor.dtype());
    meta->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
    if (impl->is_wrapped_number()) meta->set_wrapped_number(true);
    pairs_.push_back({tensor, at::Tensor(std::move(meta))});
    mark_lazy(pairs_.back().meta, tensor);
    return pairs_.back().meta;
  }

  // Conjugation and negation that somebody else will carry out decide about copies.
  static void mark_lazy(const at::Tensor& marked, const at::Tensor& as) {
    if (as.is_conj()) marked._set_conj(true);
    if (as.is_neg()) marked._set_neg(true);
  }

  c10::Storage storage_of(const at::Tensor& tensor) {
    const auto& real = tensor.storage();
    for (auto& [meta, known] : storages_)
      if (known.unsafeGetStorageImpl() == real.unsafeGetStorageImpl()) return meta;
    c10::Storage meta(c10::Storage::use_byte_size_t(), real.nbytes(),
                      c10::DataPtr(nullptr, c10::Device(c10::DeviceType::Meta)),
                      c10::GetAllocator(c10::DeviceType::Meta), /*resizable=*/true);
    storages_.emplace_back(meta, real);
    return meta;
  }

  // A view has the keys of its base, also in inference mode, where what is born new loses those of autograd.
  c10::intrusive_ptr<c10::TensorImpl> new_impl(const at::Tensor& meta) {
    for (auto& pair : pairs_)
      if (pair.real.is_cuda() && pair.meta.is_alias_of(meta))
        return c10::make_intrusive<c10::TensorImpl>(c10::TensorImpl::VIEW, real_storage(meta), pair.real.key_set(),
                                                    meta.dtype());
    return c10::make_intrusive<c10::TensorImpl>(real_storage(meta), kCuda, meta.dtype());
  }

  at::Tensor back(const at::Tensor& meta) {
    if (!meta.defined() || !meta.is_meta()) return meta;
    for (auto& pair : pairs_)
      if (pair.meta.unsafeGetTensorImpl() == meta.unsafeGetTensorImpl()) return pair.real;
    auto impl = new_impl(meta);
    impl->set_sizes_and_strides(meta.sizes(), meta.strides(), meta.storage_offset());
    at::Tensor real(std::move(impl));
    mark_lazy(real, meta);
    describe_tensor(real);
    pairs_.push_back({real, meta});
    return real;
  }

  c10::Storage real_storage(const at::Tensor& meta) {
    const auto& storage = meta.storage();
    for (auto& [known, real] : storages_)
      if (known.unsafeGetStorageImpl() == storage.unsafeGetStorageImpl()) return real;
    c10::Storage real(c10::Storage::use_byte_size_t(), storage.nbytes(), allocator()->allocate(storage.nbytes()),
                      allocator(), /*resizable=*/true);
    storages_.emplace_back(storage, real);
    return real;
  }

  void remember_device(c10::Device device) {
    if (!device_.has_value() && device.is_cuda()) device_ = device;
  }

  std::optional<c10::Device> device_;
  std::vector<Pair> pairs_;
  std::vector<std::pair<c10::Storage, c10::Storage>> storages_;  // meta, real
};

}  // namespace

void run_meta(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  KernelScope scope(schema.name());
  StandIns stand_ins;
  const auto arguments = torch::jit::last(*stack, schema.arguments().size());
  torch::jit::Stack meta;
  meta.reserve(arguments.size());
  for (const auto& argument : arguments) meta.push_back(stand_ins.of(argument));
  {
    WithoutFunctionModes guard;
    at::AutoDispatchBelowAutograd below;
    if (!run_structured(op, meta)) op.redispatchBoxed(kMeta, &meta);
  }
  DeviceScope where(stand_ins.device());
  stand_ins.carry_over_changes();
  torch::jit::Stack results;
  results.reserve(meta.size());
  for (const auto& result : meta) results.push_back(stand_ins.back(result));
  if (is_gemm(op)) take_for_gemm(op, arguments);
  if (is_softmax(op)) take_for_softmax(op, arguments);
  torch::jit::drop(*stack, arguments.size());
  for (auto& result : results) stack->push_back(std::move(result));
}

namespace {

// An operator that only writes into its arguments and has no meta kernel allocates nothing that we know of.
bool only_writes(const c10::FunctionSchema& schema) {
  if (schema.returns().empty()) return true;
  for (const auto& result : schema.returns())
    if (result.alias_info() == nullptr || !result.alias_info()->isWrite()) return false;
  return true;
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (is_followed_in_place(op)) {
    const auto given = torch::jit::last(*stack, op.schema().arguments().size());
    const torch::jit::Stack arguments(given.begin(), given.end());
    run_meta(op, stack);
    return remember_change(op, arguments);
  }
  if (op.schema().is_mutable()) forget_written(op, *stack);
  if (follows_values() && is_draw(op)) {
    const auto given = torch::jit::last(*stack, op.schema().arguments().size());
    const torch::jit::Stack arguments(given.begin(), given.end());
    run_meta(op, stack);
    return draw(op, arguments);
  }
  if (only_writes(op.schema()) && !op.hasKernelForDispatchKey(c10::DispatchKey::Meta)) {
    torch::jit::drop(*stack, op.schema().arguments().size());
    return;
  }
  static const c10::OperatorName range("aten::arange", "start_out");
  const bool is_range = op.operator_name() == range;
  if (!is_range && !is_followed(op)) return run_meta(op, stack);
  const auto given = torch::jit::last(*stack, op.schema().arguments().size());
  const torch::jit::Stack arguments(given.begin(), given.end());
  run_meta(op, stack);
  if (is_range) return remember_range(arguments);
  remember_result(op, arguments, {stack->back()});
}

at::Tensor empty_memory_format(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype,
                               std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>,
                               std::optional<at::MemoryFormat> format) {
  static const std::string name = "aten::empty";
  KernelScope scope(name);
  DeviceScope where(device);
  at::Tensor out = at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), allocator(), kCuda,
                                             c10::dtype_or_default(dtype), format);
  describe_tensor(out);
  return out;
}

at::Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  static const std::string name = "aten::empty_strided";
  KernelScope scope(name);
  DeviceScope where(device);
  at::Tensor out = at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
                                                     allocator(), kCuda, c10::dtype_or_default(dtype));
  describe_tensor(out);
  return out;
}

void record_stream(at::Tensor& self, at::Stream stream) {
  record_use(block_at(self.storage().data()), stream_of_device(stream.device_index(), stream.id()));
}

at::Tensor& set_source_storage(at::Tensor& self, at::Storage source, c10::SymInt offset, c10::SymIntArrayRef size,
                               c10::SymIntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_sizes_and_strides(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), offset.expect_int());
  return self;
}

// `a.set_(b)` makes an alias of b: nothing is allocated (torch 2.13, aten/src/ATen/native/TensorFactories.h, set_tensor_).
at::Tensor& set_source_tensor(at::Tensor& self, const at::Tensor& source) {
  if (self.is_same(source)) return self;
  return set_source_storage(self, source.storage(), source.sym_storage_offset(), source.sym_sizes(), source.sym_strides());
}

at::Tensor& set_whole_storage(at::Tensor& self, at::Storage source) {
  const auto elements = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_storage_offset(0);
  impl->set_sizes_contiguous({elements});
  return self;
}

// What a copy between host and device allocates on the device (torch 2.13, aten/src/ATen/native/cuda/Copy.cu): a
// contiguous twin where the device's side is not contiguous, and one of the host's dtype where the device converts.
at::Tensor& copy_between(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  const bool same_dtype = self.scalar_type() == source.scalar_type();
  if (same_dtype && self.is_contiguous() && source.is_contiguous() && self.sizes() == source.sizes()) return self;
  if (self.is_cuda()) {
    at::Tensor twin = self.is_contiguous() ? self : at::empty_like(self, at::MemoryFormat::Contiguous);
    if (non_blocking && !same_dtype) twin = at::empty_like(self, self.options().dtype(source.scalar_type()));
    return self;
  }
  at::Tensor twin = source;
  if (non_blocking && !same_dtype) twin = source.to(self.scalar_type());
  twin = twin.expand_as(self).contiguous();
  return self;
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  static const std::string name = "aten::copy_";
  KernelScope scope(name);
  if (self.is_same(source) || self.numel() == 0) return self;
  TORCH_CHECK(at::is_expandable_to(source.sizes(), self.sizes()), "The size of the source ", source.sizes(),
              " does not broadcast to the size of the destination ", self.sizes());
  if (!self.is_cuda() || !source.is_cuda()) copy_between(self, source, non_blocking);
  follow_copy(self, source);
  return self;
}

std::vector<std::unique_ptr<torch::Library>> libraries;

torch::Library& library(torch::Library::Kind kind, const char* ns,
                        c10::DispatchKey implements = c10::DispatchKey::CUDA) {
  const auto key = kind == torch::Library::IMPL ? std::make_optional(implements) : std::nullopt;
  libraries.push_back(std::make_unique<torch::Library>(kind, ns, key, __FILE__, __LINE__));
  return *libraries.back();
}

}  // namespace
}  // namespace paper

extern "C" {

void paper_install_kernels() {
  using namespace paper;
  WithoutWarnings quiet;
  library(torch::Library::IMPL, "_").fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
  define_value_operators(library(torch::Library::DEF, "paper"));
  auto& aten = library(torch::Library::IMPL, "aten");
  aten.impl("empty.memory_format", TORCH_FN(empty_memory_format));
  aten.impl("empty_strided", TORCH_FN(empty_strided));
  aten.impl("copy_", TORCH_FN(copy_));
  aten.impl("_local_scalar_dense", TORCH_FN(read_scalar));
  aten.impl("record_stream", TORCH_FN(record_stream));
  aten.impl("set_.source_Storage", TORCH_FN(set_whole_storage));
  aten.impl("set_.source_Storage_storage_offset", TORCH_FN(set_source_storage));
  aten.impl("set_.source_Tensor", TORCH_FN(set_source_tensor));
  install_attention_choice(aten);
  install_convolutions(aten);
  install_recurrent_networks(aten);
  install_sparse_tensors(library(torch::Library::IMPL, "aten", c10::DispatchKey::SparseCUDA));
  start_following_autograd();
  start_following_operators();
}

// An operator that has a composite kernel in the CPU build but a kernel of its own on CUDA.
void paper_prefer_meta(const char* name) {
  paper::WithoutWarnings quiet;
  static auto& aten = paper::library(torch::Library::IMPL, "aten");
  aten.impl(name, torch::CppFunction::makeFromBoxedFunction<&paper::fallback>());
}

// `UntypedStorage.resize_` of the CPU build does not know the device.
void paper_resize_storage(c10::StorageImpl* storage, int64_t bytes) {
  static const std::string name = "storage::resize_";
  paper::KernelScope scope(name);
  paper::resize_storage(storage, static_cast<size_t>(bytes));
}

}  // extern "C"
