// TensorRT as far as the exported runner uses it: says what it is asked for.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

#include "cuda_runtime_api.h"
#ifdef STUB_COLLECTIVES  // with the real CUDA and NCCL: what is enqueued doubles a number
#include "nccl.h"
#endif

namespace nvinfer1 {

class ILogger {
public:
    enum class Severity : int32_t { kINTERNAL_ERROR = 0, kERROR = 1, kWARNING = 2, kINFO = 3, kVERBOSE = 4 };
    virtual void log(Severity severity, char const* message) noexcept = 0;
    virtual ~ILogger() = default;
};

class IExecutionContext {
public:
    explicit IExecutionContext(std::string name) : mName{name} {}
    bool setCommunicator(void* communicator) noexcept {
        std::printf("communicator %s %d\n", mName.c_str(), communicator != nullptr);
#ifdef STUB_COLLECTIVES
        float const one{1};
        mCommunicator = static_cast<ncclComm_t>(communicator);
        cudaMalloc(reinterpret_cast<void**>(&mSum), sizeof one);
        cudaMemcpy(mSum, &one, sizeof one, cudaMemcpyHostToDevice);
#endif
        return mName.find("alone") == std::string::npos;
    }
    bool setTensorAddress(char const* name, void* address) noexcept {
        std::printf("address %s %s %d\n", mName.c_str(), name, address != nullptr);
        return true;
    }
    bool enqueueV3([[maybe_unused]] cudaStream_t stream) noexcept {
        std::printf("enqueue %s\n", mName.c_str());
#ifdef STUB_COLLECTIVES
        if (mSum != nullptr) {
            return ncclAllReduce(mSum, mSum, 1, ncclFloat, ncclSum, mCommunicator, stream) == ncclSuccess;
        }
#endif
        return true;
    }
    virtual ~IExecutionContext() {
#ifdef STUB_COLLECTIVES
        if (mSum != nullptr) {
            float sum{0};
            cudaMemcpy(&sum, mSum, sizeof sum, cudaMemcpyDeviceToHost);
            std::printf("sum %s %.0f\n", mName.c_str(), static_cast<double>(sum));
        }
#endif
        std::printf("closed %s\n", mName.c_str());
    }

private:
    std::string mName;
#ifdef STUB_COLLECTIVES
    ncclComm_t mCommunicator{nullptr};
    float* mSum{nullptr};
#endif
};

class ICudaEngine {
public:
    // Made of lines: its name, and the inputs that it says it has.
    explicit ICudaEngine(std::string const& text) {
        std::istringstream lines{text};
        std::getline(lines, mName);
        for (std::string line; std::getline(lines, line);) {
            mInputs.push_back(line);
        }
    }
    int32_t getNbIOTensors() const noexcept { return static_cast<int32_t>(mInputs.size()); }
    char const* getIOTensorName(int32_t place) const noexcept { return mInputs[static_cast<size_t>(place)].c_str(); }
    IExecutionContext* createExecutionContext() noexcept { return new IExecutionContext{mName}; }
    virtual ~ICudaEngine() = default;

private:
    std::string mName;
    std::vector<std::string> mInputs;
};

class IRuntime {
public:
    ICudaEngine* deserializeCudaEngine(void const* data, std::size_t size) noexcept {
        return new ICudaEngine{std::string{static_cast<char const*>(data), size}};
    }
    virtual ~IRuntime() = default;
};

inline IRuntime* createInferRuntime(ILogger&) noexcept { return new IRuntime; }

}  // namespace nvinfer1
