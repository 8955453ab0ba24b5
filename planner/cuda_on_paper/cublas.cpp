// libcublas and libcublasLt on paper: products are not computed. Only the functions below answer something; the rest is
// generated.
#define __CUDA_FP16_H__  // cublas only points to halves; CUDA 12's header of halves needs another wheel
#define __CUDA_BF16_H__
struct __half;
struct __half2;
struct __nv_bfloat16;
struct __nv_bfloat162;
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <cstring>

#include "shared.h"
#define ENTRY(...) LIBRARY_ENTRY(cublasStatus_t, __VA_ARGS__)
#ifdef PAPER_LIBCUBLAS
struct Handle {
  cublasMath_t math;
  cublasPointerMode_t pointers;
};
ENTRY(cublasCreate_v2, (cublasHandle_t* h),
      *h = (cublasHandle_t) new Handle{CUBLAS_DEFAULT_MATH, CUBLAS_POINTER_MODE_HOST})
ENTRY(cublasSetStream_v2, (cublasHandle_t, cudaStream_t s), paper_library_stream((void*)s))
ENTRY(cublasSetWorkspace_v2, (cublasHandle_t, void* memory, size_t), paper_works_in("cublas", memory))
ENTRY(cublasDestroy_v2, (cublasHandle_t h), delete (Handle*)h)
ENTRY(cublasSetMathMode, (cublasHandle_t h, cublasMath_t m), ((Handle*)h)->math = m)
ENTRY(cublasGetMathMode, (cublasHandle_t h, cublasMath_t* m), *m = ((Handle*)h)->math)
ENTRY(cublasSetPointerMode_v2, (cublasHandle_t h, cublasPointerMode_t m), ((Handle*)h)->pointers = m)
ENTRY(cublasGetPointerMode_v2, (cublasHandle_t h, cublasPointerMode_t* m), *m = ((Handle*)h)->pointers)
// Of many matrices at once these say on the host too whether their arguments were in order.
#define BATCHED(LETTER, T)                                                                                            \
  API cublasStatus_t cublas##LETTER##geqrfBatched(cublasHandle_t, int, int, T* const[], int, T* const[], int* info,   \
                                                  int) {                                                              \
    *info = 0;                                                                                                        \
    return (cublasStatus_t)paper_call();                                                                              \
  }                                                                                                                   \
  API cublasStatus_t cublas##LETTER##getrsBatched(cublasHandle_t, cublasOperation_t, int, int, const T* const[], int, \
                                                  const int*, T* const[], int, int* info, int) {                      \
    *info = 0;                                                                                                        \
    return (cublasStatus_t)paper_call();                                                                              \
  }                                                                                                                   \
  API cublasStatus_t cublas##LETTER##gelsBatched(cublasHandle_t, cublasOperation_t, int, int, int, T* const[], int,   \
                                                 T* const[], int, int* info, int*, int) {                             \
    *info = 0;                                                                                                        \
    return (cublasStatus_t)paper_call();                                                                              \
  }
BATCHED(S, float)
BATCHED(D, double)
BATCHED(C, cuComplex)
BATCHED(Z, cuDoubleComplex)
#else
API cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t, const void*, const void*,
                                  cublasLtMatrixLayout_t, const void*, cublasLtMatrixLayout_t, const void*, const void*,
                                  cublasLtMatrixLayout_t, void*, cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t*,
                                  void* memory, size_t, cudaStream_t s) {
  paper_works_in("cublas", memory);
  paper_launched((void*)s);
  return CUBLAS_STATUS_SUCCESS;
}
API size_t cublasLtGetVersion() { return CUBLAS_VERSION; }
ENTRY(cublasLtCreate, (cublasLtHandle_t* h), *h = (cublasLtHandle_t) "lt")
#define MADE(NAME, ...) ENTRY(NAME, (__VA_ARGS__), *d = (decltype(+*d))new char[256]())
MADE(cublasLtMatmulDescCreate, cublasLtMatmulDesc_t* d, cublasComputeType_t, cudaDataType_t)
MADE(cublasLtMatrixLayoutCreate, cublasLtMatrixLayout_t* d, cudaDataType, uint64_t, uint64_t, int64_t)
MADE(cublasLtMatmulPreferenceCreate, cublasLtMatmulPreference_t* d)
ENTRY(cublasLtMatmulDescDestroy, (cublasLtMatmulDesc_t d), delete[] (char*)d)
ENTRY(cublasLtMatrixLayoutDestroy, (cublasLtMatrixLayout_t d), delete[] (char*)d)
ENTRY(cublasLtMatmulPreferenceDestroy, (cublasLtMatmulPreference_t d), delete[] (char*)d)
// One algorithm, without a workspace: torch takes the workspace before it asks, as large as it is set, whatever the
// answer.
API cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                                  cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                                  cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int,
                                                  cublasLtMatmulHeuristicResult_t r[], int* n) {
  memset(r, 0, sizeof *r);
  r->state = CUBLAS_STATUS_SUCCESS;
  r->wavesCount = 1;
  *n = 1;
  return CUBLAS_STATUS_SUCCESS;
}
#endif
