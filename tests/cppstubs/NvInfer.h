// TensorRT as far as the exported runner uses it: says what it is asked for.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
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

enum class ExecutionContextAllocationStrategy : int32_t { kSTATIC = 0, kON_PROFILE_CHANGE = 1, kUSER_MANAGED = 2 };

class IExecutionContext {
public:
    IExecutionContext(std::string name, std::vector<std::string> tensors, bool several)
        : mName{name}, mTensors{tensors}, mSeveral{several} {}
    bool setCommunicator(void* communicator) noexcept {
        std::printf("communicator %s %d\n", mName.c_str(), communicator != nullptr);
#ifdef STUB_COLLECTIVES
        float const one{1};
        mCommunicator = static_cast<ncclComm_t>(communicator);
        cudaMalloc(reinterpret_cast<void**>(&mSum), sizeof one);
        cudaMemcpy(mSum, &one, sizeof one, cudaMemcpyHostToDevice);
#endif
        return mSeveral;
    }
    void setDeviceMemoryV2(void* memory, int64_t size) noexcept {
        std::printf("memory %s %p %lld\n", mName.c_str(), memory, static_cast<long long>(size));
    }
    bool setTensorAddress(char const* name, void* address) noexcept {
        std::printf("address %s %s %d\n", mName.c_str(), name, address != nullptr);
        return std::find(mTensors.begin(), mTensors.end(), name) != mTensors.end();
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
    std::vector<std::string> mTensors;
    bool mSeveral;
#ifdef STUB_COLLECTIVES
    ncclComm_t mCommunicator{nullptr};
    float* mSum{nullptr};
#endif
};

class ICudaEngine {
public:
    // Made of lines: its name, how many ranks its layers have, the bytes that it works in, and its tensors.
    explicit ICudaEngine(std::string const& text) {
        std::istringstream lines{text};
        std::string ranks, bytes;
        std::getline(lines, mName);
        std::getline(lines, ranks);
        std::getline(lines, bytes);
        mSeveral = std::atoi(ranks.c_str()) > 1;
        mBytes = std::atoi(bytes.c_str());
        for (std::string line; std::getline(lines, line);) {
            mTensors.push_back(line);
        }
    }
    int32_t getNbIOTensors() const noexcept { return static_cast<int32_t>(mTensors.size()); }
    char const* getIOTensorName(int32_t place) const noexcept { return mTensors[static_cast<size_t>(place)].c_str(); }
    int64_t getDeviceMemorySizeV2() const noexcept { return mBytes; }
    bool setWeightStreamingBudgetV2(int64_t budget) noexcept {
        std::printf("budget %s %lld\n", mName.c_str(), static_cast<long long>(budget));
        return budget <= mBytes;
    }
    IExecutionContext* createExecutionContext(
        ExecutionContextAllocationStrategy strategy = ExecutionContextAllocationStrategy::kSTATIC) noexcept {
        std::printf("context %s %d\n", mName.c_str(), static_cast<int>(strategy));
        return new IExecutionContext{mName, mTensors, mSeveral};
    }
    virtual ~ICudaEngine() { std::printf("unloaded %s\n", mName.c_str()); }

private:
    std::string mName;
    std::vector<std::string> mTensors;
    bool mSeveral{false};
    int64_t mBytes{0};
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

#include "NvInferNetwork.h"
