// CUDA on host memory.
#pragma once
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

typedef enum { cudaSuccess = 0, cudaErrorMemoryAllocation = 2 } cudaError_t;
typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;  // in TensorRT's own headers
typedef struct CUgraph_st* cudaGraph_t;
typedef struct CUgraphExec_st* cudaGraphExec_t;
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDeviceToDevice = 3 };
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal = 1 };
#define cudaStreamNonBlocking 1

inline char const* cudaGetErrorString(cudaError_t) { return "out of memory"; }
inline cudaError_t cudaSetDevice(int device) {
    std::printf("device %d\n", device);
    return cudaSuccess;
}
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t*, unsigned) { return cudaSuccess; }
inline cudaError_t cudaMalloc(void** address, size_t size) {
    *address = std::malloc(size);
    std::printf("allocated %zu\n", size);
    return *address != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}
inline cudaError_t cudaFree(void* address) {
    std::free(address);
    std::printf("freed\n");
    return cudaSuccess;
}
inline cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaMemset(void* address, int value, size_t size) {
    std::memset(address, value, size);
    return cudaSuccess;
}
inline cudaError_t cudaMemcpy(void* target, void const* source, size_t size, cudaMemcpyKind) {
    std::memcpy(target, source, size);
    return cudaSuccess;
}
inline cudaError_t cudaMemcpyAsync(void* target, void const* source, size_t size, cudaMemcpyKind, cudaStream_t) {
    std::printf("copy %zu\n", size);
    std::memmove(target, source, size);
    return cudaSuccess;
}
inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) { return cudaSuccess; }
inline cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t*) { return cudaSuccess; }
inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t* graph, cudaGraph_t, unsigned long long) {
    *graph = reinterpret_cast<cudaGraphExec_t>(1);
    return cudaSuccess;
}
inline cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaSuccess; }
inline cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) {
    std::printf("graph\n");
    return cudaSuccess;
}
inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return cudaSuccess; }
