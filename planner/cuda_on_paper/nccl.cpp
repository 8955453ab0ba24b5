// libnccl on paper: collectives move nothing, but small contents come out as if every rank had what this rank has.
#define __CUDA_FP16_H__  // nccl.h points to no halves; their header needs another wheel
#define __CUDA_BF16_H__
#define __CUDA_FP8_H__
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstring>

#include "shared.h"
#define ENTRY(...) LIBRARY_ENTRY(ncclResult_t, __VA_ARGS__)
struct Comm {
  int size, rank;
};
// ncclBfloat16, which older headers have where those of CUDA's own type came before.
static const auto BFLOAT16 = (ncclDataType_t)9;
static size_t width(ncclDataType_t t) {
  return t <= ncclUint8                                          ? 1
         : t == ncclFloat16 || t == BFLOAT16                     ? 2
         : t == ncclInt64 || t == ncclUint64 || t == ncclFloat64 ? 8
         : t > BFLOAT16                                          ? 1
                                                                 : 4;
}
// What only one rank is given has no place on the others.
static ncclResult_t bring(void* to, const void* from, size_t bytes, cudaStream_t stream) {
  paper_launched((void*)stream);
  if (to && to != from) cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream);
  return ncclSuccess;
}
static ncclComm_t made(int size, int rank) { return (ncclComm_t) new Comm{size, rank}; }
ENTRY(ncclGetVersion, (int* v), *v = NCCL_VERSION_CODE)
ENTRY(ncclCommInitRank, (ncclComm_t* c, int size, ncclUniqueId, int rank), *c = made(size, rank))
ENTRY(ncclCommInitRankConfig, (ncclComm_t* c, int size, ncclUniqueId, int rank, ncclConfig_t*), *c = made(size, rank))
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 23, 0)
ENTRY(ncclCommInitRankScalable, (ncclComm_t * c, int size, int rank, int, ncclUniqueId*, ncclConfig_t*),
      *c = made(size, rank))
#endif
ENTRY(ncclCommInitAll, (ncclComm_t * c, int size, const int*), for (int i = 0; i < size; i++) c[i] = made(size, i))
ENTRY(ncclGetUniqueId, (ncclUniqueId * id), memset(id, 0, sizeof *id))
// Nobody computes with it.
ENTRY(ncclRedOpCreatePreMulSum, (ncclRedOp_t * op, void*, ncclDataType_t, ncclScalarResidence_t, ncclComm_t),
      *op = ncclSum)
ENTRY(ncclCommCount, (const ncclComm_t c, int* n), *n = ((Comm*)c)->size)
ENTRY(ncclCommUserRank, (const ncclComm_t c, int* n), *n = ((Comm*)c)->rank)
ENTRY(ncclCommDestroy, (ncclComm_t c), delete (Comm*)c)
ENTRY(ncclCommGetAsyncError, (ncclComm_t, ncclResult_t* e), *e = ncclSuccess)
API ncclResult_t ncclAllReduce(const void* from, void* to, size_t n, ncclDataType_t type, ncclRedOp_t, ncclComm_t,
                               cudaStream_t stream) {
  return bring(to, from, n * width(type), stream);
}
API ncclResult_t ncclReduce(const void* from, void* to, size_t n, ncclDataType_t type, ncclRedOp_t, int, ncclComm_t,
                            cudaStream_t stream) {
  return bring(to, from, n * width(type), stream);
}
API ncclResult_t ncclBroadcast(const void* from, void* to, size_t n, ncclDataType_t type, int, ncclComm_t,
                               cudaStream_t stream) {
  return bring(to, from, n * width(type), stream);
}
API ncclResult_t ncclReduceScatter(const void* from, void* to, size_t n, ncclDataType_t type, ncclRedOp_t, ncclComm_t c,
                                   cudaStream_t stream) {
  return bring(to, (const char*)from + ((Comm*)c)->rank * n * width(type), n * width(type), stream);
}
API ncclResult_t ncclAllGather(const void* from, void* to, size_t n, ncclDataType_t type, ncclComm_t c,
                               cudaStream_t stream) {
  for (int i = 0; i < ((Comm*)c)->size; i++) bring((char*)to + i * n * width(type), from, n * width(type), stream);
  return ncclSuccess;
}
ENTRY(ncclSend, (const void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t s), paper_launched((void*)s))
ENTRY(ncclRecv, (void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t s), paper_launched((void*)s))
