// What is known of values while torch's own CUDA code runs: what came from the host, what operators make of it, and who
// reads what nobody knows. Kernels compute nothing.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/ops/copy_native.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>
#include <torch/library.h>

#include <memory>
#include <optional>
#include <unordered_map>

#include "blocks.h"
#include "followed_operators.h"
#include "host_memory.h"
#include "host_values.h"
#include "launches.h"
#include "memory.h"
#include "streams.h"
#include "trace.h"

namespace paper {
namespace {

// While it lives torch does not warn, as it does of every operator whose kernel is replaced.
class WithoutWarnings {
  struct Handler final : c10::WarningHandler {
    void process(const c10::Warning&) override {}
  };
  Handler handler_;
  c10::WarningUtils::WarningHandlerGuard guard_{&handler_};
};

// What is the same for every call of an operator.
struct Known {
  std::optional<c10::OperatorHandle> op;
  std::string name;
  bool allocates_for_others = false;  // `empty`: an operator that calls it has asked for the memory
  bool is_kernel = false;             // of CUDA's, not one that calls others
  bool is_range = false, is_mutable = false, is_copy = false;
  Following following = Following::No;
};

const Known& known_of(const at::RecordFunction& function) {
  thread_local std::unordered_map<const char*, std::pair<std::string, std::unique_ptr<Known>>> cache;
  auto& [name, known] = cache[function.name()];
  if (known != nullptr && name == function.name()) return *known;
  static const c10::OperatorName range("aten::arange", "start_out");
  name = function.name();
  known = std::make_unique<Known>();
  known->name = name;
  known->allocates_for_others = name.rfind("aten::empty", 0) == 0 || name.rfind("aten::resize_", 0) == 0;
  if (const auto named = function.operator_name()) known->op = c10::Dispatcher::singleton().findOp(*named);
  if (known->op.has_value()) {
    known->is_range = *function.operator_name() == range;
    known->following = following(*known->op);
    const auto has = [&known](c10::DispatchKey key) { return known->op->hasKernelForDispatchKey(key); };
    const bool calls_others = has(c10::DispatchKey::CompositeImplicitAutograd);
    known->is_kernel =
        has(c10::DispatchKey::CUDA) && !calls_others && !has(c10::DispatchKey::CompositeExplicitAutograd);
    // `detach_` and its kind write to no value; of what only calls others those are heard of.
    known->is_mutable = known->op->schema().is_mutable() && !known->op->hasTag(at::Tag::inplace_view) && !calls_others;
    known->is_copy = name == "aten::copy_";
  }
  return *known;
}

thread_local int kernels_at_work = 0;
thread_local int tensors_in_making = 0;

// A kernel that calls operators has asked for what they take.
struct CallContext final : at::ObserverContext {
  explicit CallContext(const Known& of) : known(of) {
    if (kernels_at_work == 0 && (!known.allocates_for_others || kernel_at_work().empty())) scope.emplace(known.name);
    kernels_at_work += known.is_kernel;
    tensors_in_making += known.allocates_for_others;
  }
  ~CallContext() override {
    kernels_at_work -= known.is_kernel;
    tensors_in_making -= known.allocates_for_others;
  }
  const Known& known;
  std::optional<KernelScope> scope;
  torch::jit::Stack arguments;
};

// Whether all tensors are ones of the paper GPU or of the host: subclasses come back as what they hold.
bool are_plain(const c10::ArrayRef<const c10::IValue>& values) {
  const auto is_plain = [](const at::Tensor& tensor) {
    return !tensor.defined() || !tensor.key_set().has(c10::DispatchKey::Python);
  };
  for (const auto& value : values) {
    if (value.isTensor() && !is_plain(value.toTensor())) return false;
    if (value.isTensorList())
      for (const at::Tensor& tensor : value.toTensorVector())
        if (!is_plain(tensor)) return false;
  }
  return true;
}

std::unique_ptr<at::ObserverContext> enter_call(const at::RecordFunction& function) {
  if (!is_recording()) return nullptr;
  const auto& known = known_of(function);
  if (!known.op.has_value()) return nullptr;
  auto context = std::make_unique<CallContext>(known);
  const auto kind = known.following;
  const bool in_program = kind == Following::InProgram || kind == Following::ByPython;
  const bool matters = known.is_mutable || known.is_range || kind == Following::Always ||
                       kind == Following::Reduction || (in_program && follows_values());
  if (matters && !known.is_copy && are_plain(function.inputs()))
    context->arguments.assign(function.inputs().begin(), function.inputs().end());
  return context;
}

// A kernel that fills its result part by part has views of it before it returns it.
void describe_result(const at::Tensor& tensor, bool in_kernel) {
  if (!tensor.defined() || !tensor.is_cuda() || tensor.key_set().has(c10::DispatchKey::Python)) return;
  const bool is_part = tensor.has_storage() && tensor.nbytes() < tensor.storage().nbytes();
  if (!in_kernel || !is_part) describe_tensor(tensor);
}

// Not what vmap wraps: the tensor inside was followed by itself.
bool is_on_device(const torch::jit::Stack& values) {
  if (values.empty() || !values[0].isTensor()) return false;
  const auto& tensor = values[0].toTensor();
  return tensor.defined() && tensor.is_cuda() && !tensor.key_set().has(c10::DispatchKey::FuncTorchBatched);
}

void leave_call(const at::RecordFunction& function, at::ObserverContext* entered) {
  auto* context = dynamic_cast<CallContext*>(entered);
  if (context == nullptr) return;
  const auto& known = context->known;
  const auto& results = function.outputs();
  const bool in_kernel = kernels_at_work > known.is_kernel;
  for (const auto& value : results) {
    if (value.isTensor()) describe_result(value.toTensor(), in_kernel);
    if (value.isTensorList())
      for (const at::Tensor& tensor : value.toTensorVector()) describe_result(tensor, in_kernel);
  }
  const auto& arguments = context->arguments;
  if (arguments.empty()) return;
  if (known.following == Following::InPlace) {
    if (is_on_device(arguments)) remember_change(*known.op, arguments);
  } else if (known.is_range) {
    if (arguments[3].toTensor().is_cuda()) remember_range(arguments);
  } else if (known.is_mutable) {
    forget_written(*known.op, arguments);
    if (known.following == Following::Draw && follows_values() && is_on_device(arguments)) draw(*known.op, arguments);
  } else if (is_on_device(results)) {
    if (known.following == Following::ByPython) return follow_by_python(*known.op, arguments, results);
    remember_result(*known.op, arguments, results);
  }
}

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

// What the device tensor holds, if that is known; else Python answers, or says that nobody can.
at::Scalar read_scalar(const at::Tensor& device) {
  if (const auto value = remembered(device)) return value->item();
  static const auto read = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("paper::read_value", "")
                               .typed<at::Scalar(const at::Tensor&)>();
  return read.call(device);
}

// The copy is made, one of the tensors is of the device: what is known of the device's afterwards; what the host has got.
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

at::Scalar local_scalar_dense(const at::Tensor& self) {
  note_launch(LaunchKind::HostWait, current_stream());
  return read_scalar(self);
}

// One that needs another layout or dtype in between copies several times.
at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  static thread_local int depth = 0;
  ++depth;
  const auto leave = c10::make_scope_exit([] { --depth; });
  at::native::copy_(self, source, non_blocking);
  if (depth == 1 && !self.is_same(source) && self.numel() != 0) follow_copy(self, source);
  return self;
}

}  // namespace

bool is_workspace_of_convolution() {
  return tensors_in_making == 0 && kernel_at_work().find("convolution") != std::string::npos;
}

}  // namespace paper

extern "C" {

// Once for the process, before anything is on the device.
void paper_install() {
  using namespace paper;
  WithoutWarnings quiet;
  static torch::Library own(torch::Library::DEF, "paper", std::nullopt, __FILE__, __LINE__);
  define_value_operators(own);
  static torch::Library aten(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  aten.impl("copy_", TORCH_FN(copy_));
  aten.impl("_local_scalar_dense", TORCH_FN(local_scalar_dense));
  start_following_autograd();
  start_following_operators();
  at::addGlobalCallback(at::RecordFunctionCallback(enter_call, leave_call)
                            .needsInputs(true)
                            .needsOutputs(true)
                            .scopes({at::RecordScope::FUNCTION}));
  install_allocator();
  start_listening();
}

// A trace begins: streams are numbered as in a process that traced nothing before.
void paper_begin() {
  paper::forget_unknown_workspaces();
  paper::forget_devices();
  paper::forget_streams();
}
}
