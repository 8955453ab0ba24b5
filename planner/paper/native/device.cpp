// The device itself: a guard that remembers device and stream, and hooks that say CUDA and cuDNN are there.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

// Without the part that only builds for CUDA generate.
#define C10_CUDA_NO_CMAKE_CONFIGURE_FILE
#include <c10/cuda/CUDAMacros.h>

#include <algorithm>
#include <atomic>

#include "launches.h"
#include "memory.h"
#include "pinned.h"
#include "trace.h"
#include "versions.h"

namespace paper {
namespace {

// torch 2.13 with CUDA 13.0 asks for nvidia-cudnn-cu13 9.20.0 (its package metadata).
constexpr long kCudnnVersion = 92000;
constexpr long kCudaVersion = 13000;
constexpr int64_t kMostFourierPlans = 4096;  // torch 2.13, aten/src/ATen/native/cuda/CuFFTPlanCache.h

thread_local c10::StreamId stream_now = 0;
thread_local c10::DeviceIndex device_now = 0;
std::atomic<c10::StreamId> last_stream{0};
std::atomic<int> device_count{1};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType kType = c10::DeviceType::CUDA;

  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto old = getDevice();
    check_device(device.index());
    device_now = device.index() < 0 ? device_now : device.index();
    return old;
  }
  c10::Device getDevice() const override { return {kType, device_now}; }
  void setDevice(c10::Device device) const override {
    check_device(device.index());
    device_now = device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override { device_now = device.index(); }
  c10::Stream getStream(c10::Device device) const PAPER_NOEXCEPT_BEFORE_2_7 override { return named(device, stream_now); }
  c10::Stream getDefaultStream(c10::Device device) const override { return named(device, 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getNewStream(device, 0); }
  c10::Stream getNewStream(c10::Device device, int) const override { return named(device, ++last_stream); }
  c10::Stream exchangeStream(c10::Stream stream) const PAPER_NOEXCEPT_BEFORE_2_7 override {
    const auto old = getStream(stream.device());
    stream_now = stream.id();
    return old;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(device_count.load()); }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    const auto number = new_event();
    note_launch(LaunchKind::Record, told(stream), number);
    *event = reinterpret_cast<void*>(number);
  }
  void block(void* event, const c10::Stream& stream) const override {
    note_launch(LaunchKind::Wait, told(stream), reinterpret_cast<int64_t>(event));
  }
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream& stream) const override {
    note_launch(LaunchKind::HostWait, told(stream));
  }
  void synchronizeEvent(void* event) const override {
    note_launch(LaunchKind::HostWaitEvent, 0, reinterpret_cast<int64_t>(event));
  }
  void synchronizeDevice(const c10::DeviceIndex) const override { note_launch(LaunchKind::HostWait, kWholeDevice); }
  double elapsedTime(void*, void*, const c10::DeviceIndex) const override { return 0.0; }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    record_use(block_at(data.get()), told(stream));
  }

 private:
  static int32_t told(const c10::Stream& stream) { return stream_of_device(stream.device_index(), stream.id()); }
  static c10::Stream named(c10::Device device, c10::StreamId id) {
    const auto index = device.index() < 0 ? device_now : device.index();
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, index), id);
  }
};

struct Hooks final : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}

  void init() const override {}
  bool isBuilt() const PAPER_OVERRIDE_SINCE_2_7 { return true; }
  bool isAvailable() const PAPER_OVERRIDE_SINCE_2_7 { return true; }
  bool hasCUDA() const override { return true; }
  bool hasCUDART() const override { return true; }
  bool hasCuDNN() const override { return true; }
  bool hasCuSOLVER() const override { return true; }
  bool hasMAGMA() const override { return true; }
  bool hasCuBLASLt() const override { return true; }
  bool compiledWithCuDNN() const override { return true; }
  long versionCuDNN() const override { return kCudnnVersion; }
  long versionRuntimeCuDNN() const PAPER_OVERRIDE_SINCE_2_9 { return kCudnnVersion; }
  long versionCuDNNFrontend() const PAPER_OVERRIDE_SINCE_2_9 { return kCudnnVersion; }
  long versionCUDART() const override { return kCudaVersion; }
  // Part of torch.__config__.show(), which programs write into their logs.
  std::string showConfig() const override {
    return "  - CUDA Runtime (on paper)\n  - CuDNN " + std::to_string(kCudnnVersion) + "\n";
  }
  int64_t cuFFTGetPlanCacheMaxSize(c10::DeviceIndex) const override { return kMostFourierPlans; }
  void cuFFTSetPlanCacheMaxSize(c10::DeviceIndex, int64_t) const override {}
  int64_t cuFFTGetPlanCacheSize(c10::DeviceIndex) const override { return 0; }
  void cuFFTClearPlanCache(c10::DeviceIndex) const override {}
  bool supportsDilatedConvolutionWithCuDNN() const override { return true; }
  bool supportsDepthwiseConvolutionWithCuDNN() const override { return true; }
  bool supportsBFloat16ConvolutionWithCuDNNv8() const override { return true; }
  bool supportsBFloat16RNNWithCuDNN() const PAPER_OVERRIDE_SINCE_2_10 { return true; }
  double batchnormMinEpsilonCuDNN() const override { return 0.0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(device_count.load()); }
  c10::DeviceIndex current_device() const override { return device_now; }
  c10::DeviceIndex getCurrentDevice() const override { return device_now; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override { return std::exchange(device_now, device); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }
  void setCurrentDevice(c10::DeviceIndex device) const override { device_now = device; }
  int getNumGPUs() const override { return device_count; }
  bool isPinnedPtr(const void* address) const override { return is_pinned(address); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  c10::Allocator* getCUDADeviceAllocator() const override { return allocator(); }
  c10::Device getDeviceFromPtr(void*) const override { return {c10::DeviceType::CUDA, device_now}; }
  void deviceSynchronize(c10::DeviceIndex) const override {}
  // No kernel draws from it: a generator is only ever handed around.
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override { return at::detail::getDefaultCPUGenerator(); }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::detail::createCPUGenerator(); }
};

}  // namespace

// CUDA's words for cudaErrorInvalidDevice.
void check_device(c10::DeviceIndex device) {
  TORCH_CHECK(device < device_count.load(), "CUDA error: invalid device ordinal (cuda:", static_cast<int>(device),
              " of ", device_count.load(), ")\nGPU device may be out of range, do you have enough GPUs?");
}

int32_t current_stream() { return stream_of_device(device_now, stream_now); }
c10::DeviceIndex current_device() { return device_now; }

DeviceScope::DeviceScope(std::optional<c10::Device> device) : previous_(device_now) {
  if (device.has_value() && device->is_cuda() && device->index() >= 0) device_now = device->index();
}
DeviceScope::~DeviceScope() { device_now = previous_; }

}  // namespace paper

namespace at {
using PaperHooks = paper::Hooks;
C10_REGISTER_TYPED_CLASS_WITH_PRIORITY(CUDAHooksRegistry, "CUDAHooks", c10::REGISTRY_PREFERRED, PaperHooks)
}  // namespace at

extern "C" {
void paper_install_device() {
  paper::register_device_guard(c10::DeviceType::CUDA, new paper::Guard());
  paper::install_allocator();
}
// A trace begins: streams are numbered as in a process that traced nothing before. Returns how many of the devices torch
// can see.
int paper_set_device_count(int count) {
  paper::device_count = std::min(count, C10_COMPILE_TIME_MAX_GPUS);
  paper::last_stream = 0;
  paper::device_now = 0;
  paper::forget_devices();
  return paper::device_count;
}
int64_t paper_cudnn_version() { return paper::kCudnnVersion; }
}
