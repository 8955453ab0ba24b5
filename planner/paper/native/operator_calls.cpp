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
#include <string>
#include <unordered_map>
#include <vector>

#include "asked_values.h"
#include "blocks.h"
#include "host_memory.h"
#include "known_values.h"
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
  std::optional<FollowedOperator> followed;
  std::string name;
  bool allocates_for_others = false;  // `empty`: an operator that calls it has asked for the memory
};

const Known& known_of(const at::RecordFunction& function) {
  thread_local std::unordered_map<const char*, std::pair<std::string, std::unique_ptr<Known>>> cache;
  auto& [name, known] = cache[function.name()];
  if (known != nullptr && name == function.name()) return *known;
  name = function.name();
  known = std::make_unique<Known>();
  known->name = name;
  known->allocates_for_others = name.rfind("aten::empty", 0) == 0 || name.rfind("aten::resize_", 0) == 0;
  const auto named = function.operator_name();
  const auto op = named ? c10::Dispatcher::singleton().findOp(*named) : std::nullopt;
  if (op) known->followed.emplace(*op);
  return *known;
}

thread_local std::vector<const std::string*> operators_at_work;
thread_local int kernels_at_work = 0;
thread_local int tensors_in_making = 0;

// A kernel that calls operators has asked for what they take.
struct CallContext final : at::ObserverContext {
  explicit CallContext(const Known& of) : known(of) {
    if (kernels_at_work == 0 && (!known.allocates_for_others || kernel_at_work().empty())) scope.emplace(known.name);
    operators_at_work.push_back(&known.name);
    if (known.followed->is_in_python) own.emplace();
    kernels_at_work += known.followed->is_kernel;
    tensors_in_making += known.allocates_for_others;
  }
  ~CallContext() override {
    operators_at_work.pop_back();
    kernels_at_work -= known.followed->is_kernel;
    tensors_in_making -= known.allocates_for_others;
  }
  const Known& known;
  std::optional<KernelScope> scope;
  std::optional<NotOfTheProgram> own;
  std::optional<FollowedCall> call;
};

std::unique_ptr<at::ObserverContext> enter_call(const at::RecordFunction& function) {
  if (!is_recording()) return nullptr;
  const auto& known = known_of(function);
  if (!known.followed.has_value()) return nullptr;
  auto context = std::make_unique<CallContext>(known);
  if (known.name != "aten::copy_") context->call.emplace(*known.followed, function.inputs());
  return context;
}

// A kernel that fills its result part by part has views of it before it returns it.
void describe_result(const at::Tensor& tensor, bool in_kernel) {
  if (!is_strided(tensor) || !tensor.is_cuda() || tensor.key_set().has(c10::DispatchKey::Python)) return;
  const bool is_part = tensor.has_storage() && tensor.nbytes() < tensor.storage().nbytes();
  if (!in_kernel || !is_part) describe_tensor(tensor);
}

void leave_call(const at::RecordFunction& function, at::ObserverContext* entered) {
  auto* context = dynamic_cast<CallContext*>(entered);
  if (context == nullptr) return;
  const auto& known = context->known;
  const auto& results = function.outputs();
  const bool in_kernel = kernels_at_work > known.followed->is_kernel;
  for (const auto& value : results) {
    if (value.isTensor()) describe_result(value.toTensor(), in_kernel);
    if (value.isTensorList())
      for (const at::Tensor& tensor : value.toTensorVector()) describe_result(tensor, in_kernel);
  }
  if (context->call) context->call->follow(results);
}

void bring_values(const at::Tensor& host, const at::Tensor& device) {
  if (const auto value = on_host(device)) {
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
  if (const auto value = on_host(device)) return value->item();
  static const auto read = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("paper::read_value", "")
                               .typed<at::Scalar(const at::Tensor&)>();
  return read.call(device);
}

// The copy is made, one of the tensors is of the device: what is known of the device's afterwards; what the host has got.
void follow_copy(const at::Tensor& self, const at::Tensor& source) {
  if (!self.is_cuda()) return bring_values(self, source);
  if (source.is_cpu() && source.requires_grad()) {  // what is trained was drawn, and changes
    forget(self);
  } else if (const auto value = on_host(source)) {
    remember(self, *value);
  } else if (const auto same = uniform(source)) {
    remember(self, *same);
  } else if (is_unkept(source)) {
    remember_unkept(self);
  } else {
    forget(self);
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

// Those that run on this thread, in the order of their calls.
const char* paper_operators_at_work() {
  thread_local std::string names;
  names.clear();
  for (const auto* name : paper::operators_at_work) names += *name + "\n";
  return names.c_str();
}

// A trace begins: streams are numbered as in a process that traced nothing before.
void paper_begin() {
  paper::forget_unknown_workspaces();
  paper::forget_devices();
  paper::forget_streams();
}
}
