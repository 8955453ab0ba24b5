#include "known_values.h"

#include <ATen/EmptyTensor.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <unordered_map>

namespace paper {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
// What a program copies to the device is kept up to these: choices and one-hot masks of a mixture's tokens in 64 bits,
// which no quantized weight has; masks of weights; other numbers.
constexpr size_t kMostIndexBytes = 256 * kMiB, kMostWholeBytes = 64 * kMiB, kMostOtherBytes = kMiB;
// What operators make: labels and masks of a million tokens; of other numbers boxes and their classes.
constexpr size_t kMostWholeResultBytes = 16 * kMiB, kMostOtherResultBytes = kMiB / 16;
// Of a storage of whole numbers that are all the same, bytes are kept up to this; of a larger one only the value.
constexpr size_t kMostFilledBytes = kMiB / 16;
// All together.
constexpr size_t kMostKeptBytes = 1024 * kMiB;
// Up to so many known values it is looked whether they are all the same.
constexpr int64_t kMostCompared = int64_t{1} << 20;

struct Contents {
  at::Tensor bytes;         // from the beginning of the storage; undefined if none are known
  at::Tensor is_byte_known;  // undefined if all are
  std::optional<Uniform> uniform;
  at::ScalarType uniform_dtype = at::kByte;
  std::optional<std::vector<int64_t>> draw;
  bool is_unkept = false;
};
std::mutex contents_mutex;
std::unordered_map<const void*, Contents> contents;  // by the address of a storage
size_t kept_bytes = 0;
std::atomic<size_t> known_storages{0};  // so that the common case, nothing known, takes no lock

bool has_contents(const at::Tensor& tensor) {
  return is_strided(tensor) && tensor.is_cuda() && tensor.has_storage() && tensor.storage().data() != nullptr;
}

Contents contents_of(const at::Tensor& tensor) {
  if (known_storages == 0 || !has_contents(tensor)) return {};
  std::lock_guard<std::mutex> lock(contents_mutex);
  const auto found = contents.find(tensor.storage().data());
  return found == contents.end() ? Contents{} : found->second;
}

size_t bytes_kept(const Contents& of) {
  return (of.bytes.defined() ? of.bytes.nbytes() : 0) + (of.is_byte_known.defined() ? of.is_byte_known.nbytes() : 0);
}

void set_contents(const void* address, std::optional<Contents> changed) {
  std::lock_guard<std::mutex> lock(contents_mutex);
  if (const auto before = contents.find(address); before != contents.end()) {
    kept_bytes -= bytes_kept(before->second);
    contents.erase(before);
  }
  if (changed && kept_bytes + bytes_kept(*changed) <= kMostKeptBytes) {
    kept_bytes += bytes_kept(*changed);
    contents.emplace(address, std::move(*changed));
  }
  known_storages = contents.size();
}

bool fills_its_storage(const at::Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense() && tensor.storage_offset() == 0 &&
         tensor.nbytes() == tensor.storage().nbytes();
}

// How many bytes of its storage a tensor reaches over.
int64_t reach(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return 0;
  int64_t last = tensor.storage_offset();
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) last += (tensor.size(dim) - 1) * tensor.stride(dim);
  return (last + 1) * static_cast<int64_t>(tensor.element_size());
}

// The part of the bytes that the tensor has of its storage.
at::Tensor values_at(const at::Tensor& bytes, const at::Tensor& tensor) {
  at::Tensor values = empty_on_host({0}, tensor.scalar_type());
  values.set_(bytes.storage(), tensor.storage_offset(), tensor.sizes(), tensor.strides());
  values._set_conj(tensor.is_conj());
  values._set_neg(tensor.is_neg());
  return values;
}

// Of every element its first byte.
at::Tensor marks_at(const at::Tensor& is_byte_known, const at::Tensor& tensor) {
  const auto width = static_cast<int64_t>(tensor.element_size());
  at::DimVector strides(tensor.strides().begin(), tensor.strides().end());
  for (auto& stride : strides) stride *= width;
  return is_byte_known.as_strided(tensor.sizes(), strides, tensor.storage_offset() * width);
}

void mark(const at::Tensor& is_byte_known, const at::Tensor& tensor, bool known) {
  const auto width = static_cast<int64_t>(tensor.element_size());
  for (int64_t byte = 0; byte < width; ++byte) {
    const at::Tensor first = marks_at(is_byte_known, tensor);
    first.as_strided(first.sizes(), first.strides(), first.storage_offset() + byte).fill_(known);
  }
}

at::Tensor zero_bytes(int64_t count, const at::Tensor& before) {
  at::Tensor bytes = empty_on_host({count}, at::kByte).zero_();
  if (before.defined()) bytes.narrow(0, 0, before.numel()).copy_(before);
  return bytes;
}

size_t most_bytes(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kLong ? kMostIndexBytes : is_whole(tensor) ? kMostWholeBytes : kMostOtherBytes;
}

// A view as another dtype has other values, but for zeros.
std::optional<Uniform> given_uniform(const at::Tensor& tensor) {
  const auto of = contents_of(tensor);
  auto given = of.uniform;
  if (!given) return std::nullopt;
  if (tensor.scalar_type() != of.uniform_dtype && !given->value.equal(0)) return std::nullopt;
  if (tensor.is_conj()) given->value = given->value.conj();
  if (tensor.is_neg()) given->value = -given->value;
  return given;
}

size_t most_result_bytes(at::ScalarType dtype) {
  if (dtype == at::kLong) return kMostIndexBytes;
  return at::isIntegralType(dtype, /*includeBool=*/true) ? kMostWholeResultBytes : kMostOtherResultBytes;
}

at::Tensor filled_on_host(const at::Tensor& like, const at::Scalar& value) {
  ComputingOnHost kept;
  return empty_on_host({}, like.scalar_type()).fill_(value).expand(like.sizes());
}

bool fits_in_bytes(const at::Tensor& device, const Contents& of) {
  return !of.bytes.defined() && of.uniform && of.uniform->is_certain &&
         device.storage().nbytes() <= most_result_bytes(of.uniform_dtype);
}

// The same with all bytes of a storage that is filled with one value, where so many may be kept.
Contents with_bytes(const at::Tensor& device, Contents of) {
  if (!fits_in_bytes(device, of)) return of;
  ComputingOnHost kept;
  const auto count = static_cast<int64_t>(device.storage().nbytes() / c10::elementSize(of.uniform_dtype));
  of.bytes = empty_on_host({count}, of.uniform_dtype).fill_(of.uniform->value).view(at::kByte);
  return of;
}

// The value that all whole numbers of the host tensor are, where the device keeps nothing else of them.
std::optional<at::Scalar> only_value(const at::Tensor& device, const at::Tensor& host) {
  const bool is_large = device.nbytes() > kMostFilledBytes && fills_its_storage(device);
  if (!is_large || !is_whole(device) || !is_small_enough(device)) return std::nullopt;
  if (host.numel() != 1) {
    if (!host.is_contiguous()) return std::nullopt;
    const auto* bytes = static_cast<const char*>(host.const_data_ptr());
    const size_t width = host.element_size();
    if (std::memcmp(bytes, bytes + width, host.nbytes() - width) != 0) return std::nullopt;
  }
  ComputingOnHost read;
  return host.flatten()[0].item();
}

Contents without_values(const Contents& before) {
  Contents after;
  after.bytes = before.bytes;
  after.is_byte_known = before.is_byte_known;
  return after;
}

// What is known of the whole storage; of a part of it nothing is then, as the rest may hold others.
void set_whole(const at::Tensor& device, Contents after) {
  if (!has_contents(device)) return;
  if (!fills_its_storage(device)) return forget(device);
  set_contents(device.storage().data(), std::move(after));
}

void remember_value(const at::Tensor& device, const Uniform& uniform) {
  Contents after;
  after.uniform = uniform;
  after.uniform_dtype = device.scalar_type();
  if (device.scalar_type() == at::kBool) {
    after.uniform->value = uniform.value.toBool();
  } else if (is_whole(device)) {
    after.uniform->value = uniform.value.toLong();
  } else if (device.is_floating_point()) {
    after.uniform->value = uniform.value.toDouble();
  }
  set_whole(device, std::move(after));
}

// All above those of backends, but for views that are conjugate or negative.
c10::DispatchKeySet keys_of_modes() {
  using c10::DispatchKey;
  using c10::DispatchKeySet;
  return DispatchKeySet(DispatchKeySet::FULL) - DispatchKeySet(DispatchKeySet::FULL_AFTER, DispatchKey::Python) -
         DispatchKeySet({DispatchKey::Conjugate, DispatchKey::Negative});
}

}  // namespace

ComputingOnHost::ComputingOnHost() : keys_(c10::DispatchKeySet(c10::DispatchKey::BackendSelect), keys_of_modes()) {}

bool is_strided(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && !tensor.is_nested();
}

bool share_storage(const at::Tensor& one, const at::Tensor& other) {
  return is_strided(one) && is_strided(other) && one.has_storage() && other.has_storage() && one.is_alias_of(other);
}

at::Tensor empty_on_host(at::IntArrayRef sizes, at::ScalarType dtype) {
  NotOfTheProgram kept;
  return at::detail::empty_cpu(sizes, dtype);
}

bool is_whole(const at::Tensor& tensor) { return at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true); }

bool is_small_enough(const at::Tensor& result) { return result.nbytes() <= most_result_bytes(result.scalar_type()); }

void remember(const at::Tensor& device, const at::Tensor& host) {
  if (!has_contents(device)) return;
  const int64_t end = reach(device);
  if (static_cast<size_t>(end) > most_bytes(device)) return forget(device);
  if (const auto value = only_value(device, host)) return remember_value(device, {*value, /*is_certain=*/true});
  ComputingOnHost kept;
  const bool fills_it = fills_its_storage(device);
  auto after = fills_it ? Contents{} : without_values(with_bytes(device, contents_of(device)));
  const bool was_known = after.bytes.defined() && !after.is_byte_known.defined();
  const int64_t before = after.bytes.defined() ? after.bytes.numel() : 0;
  if (!was_known || end > before) {
    after.is_byte_known = fills_it ? at::Tensor() : zero_bytes(std::max(end, before), after.is_byte_known);
    if (was_known) after.is_byte_known.narrow(0, 0, before).fill_(1);
    after.bytes = zero_bytes(std::max(end, before), after.bytes);
  }
  values_at(after.bytes, device).copy_(host.expand(device.sizes()));
  if (after.is_byte_known.defined()) mark(after.is_byte_known, device, true);
  set_contents(device.storage().data(), std::move(after));
}

void remember(const at::Tensor& device, const Uniform& uniform) {
  if (!has_contents(device)) return;
  if (!uniform.is_certain || !is_small_enough(device)) return remember_value(device, uniform);
  ComputingOnHost filled;
  remember(device, empty_on_host({}, device.scalar_type()).fill_(uniform.value));
}

void remember_unkept(const at::Tensor& device) {
  Contents after;
  after.is_unkept = true;
  set_whole(device, std::move(after));
}

void remember_draw(const at::Tensor& device, std::vector<int64_t> recipe) {
  if (!has_contents(device) || !fills_its_storage(device)) return;
  Contents after;
  after.draw = std::move(recipe);
  set_contents(device.storage().data(), std::move(after));
}

void forget(const at::Tensor& device) {
  if (known_storages == 0 || !has_contents(device)) return;
  if (fills_its_storage(device)) return forget(device.storage().data());
  const auto before = with_bytes(device, contents_of(device));
  if (!before.bytes.defined()) return forget(device.storage().data());
  ComputingOnHost kept;
  auto after = without_values(before);
  const int64_t known = after.bytes.numel();
  if (!after.is_byte_known.defined()) after.is_byte_known = zero_bytes(known, {}).fill_(1);
  if (reach(device) > known) return forget(device.storage().data());
  mark(after.is_byte_known, device, false);
  set_contents(device.storage().data(), std::move(after));
}

void forget(const void* address) {
  if (known_storages != 0) set_contents(address, std::nullopt);
}

std::optional<at::Tensor> on_host(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cuda()) return tensor;
  if (is_strided(tensor) && tensor.numel() == 0) return empty_on_host(tensor.sizes(), tensor.scalar_type());
  auto of = contents_of(tensor);
  if (fits_in_bytes(tensor, of)) {
    if (const auto given = given_uniform(tensor)) return filled_on_host(tensor, given->value);
    of = with_bytes(tensor, std::move(of));
  }
  if (!of.bytes.defined() || reach(tensor) > of.bytes.numel()) return std::nullopt;
  ComputingOnHost kept;
  if (of.is_byte_known.defined() && !marks_at(of.is_byte_known, tensor).all().item<bool>()) return std::nullopt;
  return values_at(of.bytes, tensor);
}

std::optional<Uniform> uniform(const at::Tensor& tensor) {
  if (const auto given = given_uniform(tensor)) return given;
  if (!is_strided(tensor) || tensor.numel() == 0 || tensor.numel() > kMostCompared) return std::nullopt;
  const auto value = on_host(tensor);
  if (!value) return std::nullopt;
  ComputingOnHost compared;
  const auto first = value->flatten()[0];
  if (!value->eq(first).all().item<bool>()) return std::nullopt;
  return Uniform{first.item(), /*is_certain=*/true};
}

std::optional<at::Tensor> constant(const at::Tensor& tensor) {
  if (const auto value = on_host(tensor)) return value;
  const auto given = given_uniform(tensor);
  if (!given || !given->is_certain) return std::nullopt;
  return filled_on_host(tensor, given->value);
}

std::optional<std::vector<int64_t>> known_draw(const at::Tensor& device) {
  return has_contents(device) && fills_its_storage(device) ? contents_of(device).draw : std::nullopt;
}

bool is_unkept(const at::Tensor& tensor) { return contents_of(tensor).is_unkept; }

bool is_known(const at::Tensor& tensor) {
  if (known_storages == 0 || !has_contents(tensor)) return false;
  std::lock_guard<std::mutex> lock(contents_mutex);
  return contents.count(tensor.storage().data()) != 0;
}

}  // namespace paper
