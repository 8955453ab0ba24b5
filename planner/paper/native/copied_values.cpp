#include "copied_values.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "host_memory.h"
#include "host_values.h"

namespace paper {
namespace {

void bring_values(const at::Tensor& host, const at::Tensor& device) {
  if (const auto value = remembered(device)) {
    host.copy_(*value);
    return;
  }
  const bool many = host.numel() > 1 && (host.is_floating_point() || host.is_complex());
  if (many && host.is_contiguous()) {
    write_zeros(host.storage().data_ptr(), host.mutable_data_ptr(), host.nbytes());
  } else if (many) {
    host.zero_();
  }
  static const auto read = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("paper::read_to_host", "")
                               .typed<void(const at::Tensor&, const at::Tensor&)>();
  read.call(host, device);
}

}  // namespace

at::Scalar read_scalar(const at::Tensor& device) {
  if (const auto value = remembered(device)) return value->item();
  static const auto read = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("paper::read_value", "")
                               .typed<at::Scalar(const at::Tensor&)>();
  return read.call(device);
}

void follow_copy(const at::Tensor& self, const at::Tensor& source) {
  if (!self.is_cuda()) return bring_values(self, source);
  const auto value = is_whole(self) ? constant(source) : on_host(source);
  if (value.has_value()) {
    at::AutoDispatchBelowAutograd below;
    if (!remember_part(self, *value)) forget(self);
  } else {
    forget(self);
    copy_presumption(self, source);
  }
}

}  // namespace paper
