// libcudnn.so.9 on paper, between torch and the real cuDNN. The real one answers what needs no GPU: descriptors, and
// the heuristics of the backend API, asked in the "deviceless" way that cuDNN documents since 9.8: properties of a
// device instead of a handle.
// - The real library is loaded by path, so both libraries named libcudnn.so.9 live side by side; its parts name each
// other by
//   other names (libcudnn_graph.so.9 ...) and never find this one.
// - Functions that only handle descriptors jump to the real ones (generated: FORWARD in make.py); functions that would
// compute do nothing.
#include <cudnn.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>

#include "device.h"
#include "shared.h"

#if CUDNN_VERSION < 90800  // what newer headers add (cudnn_graph.h of 9.8)
constexpr auto CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR = static_cast<cudnnBackendDescriptorType_t>(38);
constexpr auto CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION = static_cast<cudnnBackendAttributeName_t>(2702);
constexpr auto CUDNN_ATTR_ENGINEHEUR_DEVICEPROP = static_cast<cudnnBackendAttributeName_t>(204);
constexpr auto CUDNN_ATTR_ENGINE_DEVICEPROP = static_cast<cudnnBackendAttributeName_t>(1307);
constexpr auto CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP = static_cast<cudnnBackendAttributeName_t>(407);
#endif

struct Forward {
  const char* name;
  void** place;
};
extern "C" Forward paper_forwards[];  // generated
static void* real;
__attribute__((constructor)) static void
load() {  // the library itself is small; it loads its parts when they are first called
  const char* path = getenv("PAPER_CUDNN");
  if (!path || !(real = dlopen(path, RTLD_NOW | RTLD_LOCAL))) {
    if (path) fprintf(stderr, "paper: %s\n", dlerror());
    return;
  }
  for (Forward* f = paper_forwards; f->name; f++)
    if (void* p = dlsym(real, f->name)) *f->place = p;
}
#define REAL(NAME) ((decltype(&NAME))dlsym(real, #NAME))

// ---------------------------------------------------------------- handles
struct Handle {
  cudaStream_t stream;
};
API cudnnStatus_t cudnnCreate(cudnnHandle_t* h) {
  *h = (cudnnHandle_t) new Handle{};
  return CUDNN_STATUS_SUCCESS;
}
API cudnnStatus_t cudnnDestroy(cudnnHandle_t h) {
  delete (Handle*)h;
  return CUDNN_STATUS_SUCCESS;
}
API cudnnStatus_t cudnnSetStream(cudnnHandle_t h, cudaStream_t s) {
  ((Handle*)h)->stream = s;
  return CUDNN_STATUS_SUCCESS;
}
API cudnnStatus_t cudnnGetStream(cudnnHandle_t h, cudaStream_t* s) {
  *s = ((Handle*)h)->stream;
  return CUDNN_STATUS_SUCCESS;
}

// ---------------------------------------------------------------- the backend API
static std::mutex lock;
static std::map<void*, cudnnBackendDescriptorType_t> kinds;  // alive descriptors that need the device
static cudnnBackendDescriptor_t device() {
  static cudnnBackendDescriptor_t d = [] {
    cudnnBackendDescriptor_t n;
    const std::string& json = Device::get().json;
    cudnnStatus_t e = REAL(cudnnBackendCreateDescriptor)(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &n);
    if (!e)
      e = REAL(cudnnBackendSetAttribute)(n, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, json.size(),
                                         json.data());
    if (!e) e = REAL(cudnnBackendFinalize)(n);
    if (e)
      fprintf(stderr, "paper: cuDNN does not take the description of the device: %s\n", REAL(cudnnGetErrorString)(e));
    return n;
  }();
  return d;
}
static cudnnStatus_t set_device(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t a) {
  cudnnBackendDescriptor_t p = device();
  return REAL(cudnnBackendSetAttribute)(d, a, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &p);
}
API cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t kind, cudnnBackendDescriptor_t* d) {
  cudnnStatus_t e = REAL(cudnnBackendCreateDescriptor)(kind, d);
  if (e) return e;
  std::lock_guard<std::mutex> g(lock);
  kinds[*d] = kind;
  return e;
}
API cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t d) {
  {
    std::lock_guard<std::mutex> g(lock);
    kinds.erase(d);
  }
  return REAL(cudnnBackendDestroyDescriptor)(d);
}
API cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t a,
                                           cudnnBackendAttributeType_t t, int64_t n, const void* v) {
  if (t == CUDNN_TYPE_HANDLE) return CUDNN_STATUS_SUCCESS;  // a handle would be its device: replaced below
  if (a == CUDNN_ATTR_VARIANT_PACK_WORKSPACE && n == 1) paper_works_in("cudnn", *(void* const*)v);
  return REAL(cudnnBackendSetAttribute)(d, a, t, n, v);
}
API cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t d) {
  cudnnBackendDescriptorType_t kind;
  {
    std::lock_guard<std::mutex> g(lock);
    auto k = kinds.find(d);
    kind = k == kinds.end() ? CUDNN_BACKEND_POINTWISE_DESCRIPTOR : k->second;
  }
  if (kind == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR) set_device(d, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP);
  if (kind == CUDNN_BACKEND_ENGINE_DESCRIPTOR) set_device(d, CUDNN_ATTR_ENGINE_DEVICEPROP);
  if (kind == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) set_device(d, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP);
  cudnnStatus_t e = REAL(cudnnBackendFinalize)(d);
  return e;
}
API cudnnStatus_t cudnnBackendExecute(cudnnHandle_t h, cudnnBackendDescriptor_t, cudnnBackendDescriptor_t) {
  if (auto* l = paper_listener()) l->launched((void*)((Handle*)h)->stream);
  return CUDNN_STATUS_SUCCESS;
}

// ---------------------------------------------------------------- the older API: its sizes take a handle and have no
// deviceless way
#define UNKNOWN(NAME, ...) \
  API cudnnStatus_t NAME(__VA_ARGS__) { return (cudnnStatus_t)paper_unknown(#NAME, CUDNN_STATUS_NOT_SUPPORTED); }
UNKNOWN(cudnnGetRNNWeightSpaceSize, cudnnHandle_t, cudnnRNNDescriptor_t, size_t*)
UNKNOWN(cudnnGetRNNTempSpaceSizes, cudnnHandle_t, cudnnRNNDescriptor_t, cudnnForwardMode_t, cudnnRNNDataDescriptor_t,
        size_t*, size_t*)
UNKNOWN(cudnnGetCTCLossWorkspaceSize, cudnnHandle_t, cudnnTensorDescriptor_t, cudnnTensorDescriptor_t, const int*,
        const int*, const int*, cudnnCTCLossAlgo_t, cudnnCTCLossDescriptor_t, size_t*)
UNKNOWN(cudnnGetCTCLossWorkspaceSize_v8, cudnnHandle_t, cudnnCTCLossAlgo_t, cudnnCTCLossDescriptor_t,
        cudnnTensorDescriptor_t, cudnnTensorDescriptor_t, size_t*)
UNKNOWN(cudnnGetConvolutionForwardWorkspaceSize, cudnnHandle_t, cudnnTensorDescriptor_t, cudnnFilterDescriptor_t,
        cudnnConvolutionDescriptor_t, cudnnTensorDescriptor_t, cudnnConvolutionFwdAlgo_t, size_t*)
static const char* const BATCH_NORM = "cuDNN batch normalization";
static cudnnStatus_t not_counted(const char* what, size_t* bytes) {
  *bytes = 0;
  return (cudnnStatus_t)paper_unknown(what, CUDNN_STATUS_SUCCESS);
}
API cudnnStatus_t cudnnDropoutGetStatesSize(cudnnHandle_t, size_t* n) { return not_counted("cuDNN dropout", n); }
// Batch normalization: here nothing.
API cudnnStatus_t cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    cudnnHandle_t, cudnnBatchNormMode_t, cudnnBatchNormOps_t, const cudnnTensorDescriptor_t,
    const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t,
    const cudnnActivationDescriptor_t, size_t* n) {
  return not_counted(BATCH_NORM, n);
}
API cudnnStatus_t cudnnGetBatchNormalizationBackwardExWorkspaceSize(
    cudnnHandle_t, cudnnBatchNormMode_t, cudnnBatchNormOps_t, const cudnnTensorDescriptor_t,
    const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t,
    const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t, const cudnnActivationDescriptor_t, size_t* n) {
  return not_counted(BATCH_NORM, n);
}
API cudnnStatus_t cudnnGetBatchNormalizationTrainingExReserveSpaceSize(cudnnHandle_t, cudnnBatchNormMode_t,
                                                                       cudnnBatchNormOps_t,
                                                                       const cudnnActivationDescriptor_t,
                                                                       const cudnnTensorDescriptor_t, size_t* n) {
  return not_counted(BATCH_NORM, n);
}
