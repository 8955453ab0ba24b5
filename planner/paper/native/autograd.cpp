// A barrier for the threads in which autograd runs the backward of each GPU.
//
// That thread tells the caller that a graph is done, and only then gives the graph up (torch 2.11 to 2.13,
// torch/csrc/autograd/engine.cpp, Engine::thread_main: what a task holds ends with the turn of the loop). A graph of
// two empty tensors, run in the same thread, begins when that has happened.

#include "memory.h"
#include "trace.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/autograd.h>
#include <unistd.h>

#include <atomic>

namespace paper {
namespace {

// The process whose engine may hold a graph: that of a parent did not come along through a fork.
std::atomic<pid_t> ran_in{0};

void run_empty_graph(c10::DeviceIndex device) {
  c10::InferenceMode usual(false);
  at::AutoGradMode grad(true);
  c10::impl::ExcludeDispatchKeyGuard modes(c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}));
  const auto options = at::TensorOptions().device(c10::Device(c10::DeviceType::CUDA, device)).dtype(at::kFloat);
  const auto leaf = at::empty({0}, options).requires_grad_(true);
  torch::autograd::grad({leaf.view({0})}, {leaf}, {at::empty({0}, options)});
}

}  // namespace

void backward_has_run() { ran_in = getpid(); }

}  // namespace paper

// Returns when the device's thread has given up the graph of every backward that has ended; the caller must not hold
// the GIL, which that thread may need.
extern "C" void paper_settle_backward() {
  if (paper::ran_in.load() != getpid()) return;
  c10::DeviceIndex device;
  for (int32_t number = 0; (device = paper::device_numbered(number)) >= 0; ++number) paper::run_empty_graph(device);
  paper::ran_in = 0;
}
