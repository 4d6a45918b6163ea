// TensorRT as far as the exported builder uses it: says each call as the line that it was read from.
// Shapes and types of tensors are those that the file STUB_CALLS names expects.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <initializer_list>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#define STUB_ENUM(NAME, ...)                                                        \
    enum class NAME : int32_t { __VA_ARGS__ };                                      \
    inline std::string word(NAME value) {                                           \
        return #NAME "." + memberOf(#__VA_ARGS__, static_cast<int32_t>(value));     \
    }

namespace nvinfer1 {

inline std::string memberOf(std::string const& all, int32_t place) {
    std::istringstream members{all};
    std::string name;
    for (int32_t number = 0; number <= place; ++number) {
        std::getline(members >> std::ws, name, ',');
    }
    return name.substr(1);
}

STUB_ENUM(ActivationType, kRELU, kSIGMOID, kGELU_ERF, kGELU_TANH)
STUB_ENUM(AttentionNormalizationOp, kNONE, kSOFTMAX)
STUB_ENUM(BuilderFlag, kREFIT, kWEIGHT_STREAMING)
STUB_ENUM(CausalMaskKind, kNONE, kUPPER_LEFT, kLOWER_RIGHT)
STUB_ENUM(CollectiveOperation, kALL_REDUCE, kALL_GATHER, kBROADCAST, kREDUCE, kREDUCE_SCATTER, kALL_TO_ALL, kGATHER, kSCATTER)
STUB_ENUM(ElementWiseOperation, kSUM, kPROD, kMAX, kMIN, kSUB, kDIV, kPOW, kFLOOR_DIV, kAND, kOR, kXOR, kEQUAL, kGREATER, kLESS)
STUB_ENUM(KVCacheMode, kLINEAR)
STUB_ENUM(MatrixOperation, kNONE, kTRANSPOSE, kVECTOR)
STUB_ENUM(MemoryPoolType, kWORKSPACE)
STUB_ENUM(ProfilingVerbosity, kLAYER_NAMES_ONLY, kNONE, kDETAILED)
STUB_ENUM(ReduceOperation, kSUM, kPROD, kMAX, kMIN, kAVG, kNONE)
STUB_ENUM(TopKOperation, kMAX, kMIN)
STUB_ENUM(UnaryOperation, kEXP, kLOG, kSQRT, kSIN, kCOS, kNOT)

enum class DataType : int32_t { kFLOAT, kHALF, kINT8, kINT32, kBOOL, kFP8, kBF16, kFP4 };

inline std::pair<char const*, int64_t> typeOf(DataType type) {
    std::pair<char const*, int64_t> const all[]{{"float32", 32}, {"float16", 16}, {"int8", 8}, {"int32", 32}, {"bool", 8},
        {"fp8", 8}, {"bfloat16", 16}, {"fp4", 4}};
    return all[static_cast<int32_t>(type)];
}

struct Dims {
    static constexpr int32_t MAX_DIMS{8};
    int32_t nbDims;
    int64_t d[MAX_DIMS];
};

struct Permutation {
    int32_t order[Dims::MAX_DIMS];
};

struct Weights {
    DataType type;
    void const* values;
    int64_t count;
};

template <class Item>
std::string listed(Item const* items, int64_t count) {
    std::ostringstream text;
    for (int64_t place = 0; place < count; ++place) {
        text << (place == 0 ? "" : ",") << items[place];
    }
    return "[" + text.str() + "]";
}

inline std::string word(std::string const& text) { return text; }
inline std::string word(DataType type) { return typeOf(type).first; }
inline std::string word(int64_t number) { return std::to_string(number); }
inline std::string word(Dims const& dims) { return listed(dims.d, dims.nbDims); }
inline std::string word(Permutation const& all) {
    int32_t last{0};
    for (auto const axis : all.order) {
        last = axis > last ? axis : last;
    }
    return listed(all.order, last + 1);
}
inline std::string word(char const* text) {
    std::string quoted;
    for (; *text != 0; ++text) {
        quoted += *text == '"' || *text == '\\' ? std::string{'\\', *text} : std::string{*text};
    }
    return '"' + quoted + '"';
}
inline std::string word(Weights const& weights) {
    if (weights.count == 0) {
        return "Weights()";
    }
    auto const [name, bits] = typeOf(weights.type);
    uint64_t sum{0};
    for (int64_t place = 0; place < (weights.count * bits + 7) / 8; ++place) {
        sum += static_cast<unsigned char const*>(weights.values)[place];
    }
    return std::string{"Weights("} + name + "," + std::to_string(weights.count) + "," + std::to_string(sum) + ")";
}

class INoCopy {
protected:
    virtual ~INoCopy() = default;
};

inline void say(std::string const& who, char const* method, std::initializer_list<std::string> words) {
    std::printf("%s %s", who.c_str(), method);
    for (auto const& one : words) {
        std::printf(" %s", one.c_str());
    }
    std::printf("\n");
}

template <class... Given>
void say(std::string const& who, char const* method, Given const&... given) {
    say(who, method, {word(given)...});
}

class ITensor : public INoCopy {
public:
    explicit ITensor(std::string name) : mName{std::move(name)} {}
    ~ITensor() override = default;
    void setName(char const* name) noexcept { say(mName, "name=", name); }
    Dims getDimensions() const noexcept {
        Dims dims{};
        std::istringstream axes{wanted().first};
        for (char between{0}; axes >> between >> dims.d[dims.nbDims];) {
            ++dims.nbDims;
        }
        return dims;
    }
    DataType getType() const noexcept {
        int32_t place{0};
        while (wanted().second != typeOf(static_cast<DataType>(place)).first) {
            ++place;
        }
        return static_cast<DataType>(place);
    }
    std::string const& name() const noexcept { return mName; }

private:
    std::pair<std::string, std::string> wanted() const {
        static auto const all = expected();
        return all.at(mName);
    }
    static std::map<std::string, std::pair<std::string, std::string>> expected() {
        std::map<std::string, std::pair<std::string, std::string>> found;
        std::ifstream file{std::getenv("STUB_CALLS")};
        for (std::string line; std::getline(file, line);) {
            std::istringstream words{line};
            std::string who, method, shape, type;
            words >> who >> method >> shape >> type;
            if (method == "expect") {
                found[who] = {shape, type};
            }
        }
        return found;
    }
    std::string mName;
};

inline std::string word(ITensor const& tensor) { return tensor.name(); }

class Adds : public INoCopy {
public:
    explicit Adds(int64_t number) : mName{std::to_string(number)}, mOutputs{} {}
    ~Adds() override = default;
    ITensor* getOutput(int32_t place) noexcept {
        auto& output = mOutputs[place];
        output = output ? std::move(output) : std::make_unique<ITensor>(mName + "." + std::to_string(place));
        return place < 0 ? nullptr : output.get();
    }

protected:
    std::string mName;

private:
    std::map<int32_t, std::unique_ptr<ITensor>> mOutputs;
};

class ILayer : public Adds {
public:
    using Adds::Adds;
    void setName(char const* name) noexcept { say(mName, "name=", name); }
    void setMetadata(char const* text) noexcept { say(mName, "metadata=", text); }
    bool setNbRanks(int32_t ranks) noexcept { return say(mName, "num_ranks=", ranks), ranks > 0; }
    void setInput(int32_t place, ITensor& tensor) noexcept { say(mName, "set_input", place, tensor); }
};

class IAttention : public Adds {
public:
    using Adds::Adds;
    bool setMask(ITensor& mask) noexcept { return say(mName, "mask=", mask), true; }
    bool setDecomposable(bool may) noexcept { return say(mName, "decomposable=", may), true; }
    bool setNbRanks(int32_t ranks) noexcept { return say(mName, "num_ranks=", ranks), true; }
};

class IConvolutionLayer : public ILayer {
public:
    using ILayer::ILayer;
    void setNbGroups(int64_t groups) noexcept { say(mName, "num_groups=", groups); }
    void setPaddingNd(Dims const& padding) noexcept { say(mName, "padding_nd=", padding); }
};

class IShuffleLayer : public ILayer {
public:
    using ILayer::ILayer;
    void setFirstTranspose(Permutation order) noexcept { say(mName, "first_transpose=", order); }
    void setReshapeDimensions(Dims const& dims) noexcept { say(mName, "reshape_dims=", dims); }
    void setSecondTranspose(Permutation order) noexcept { say(mName, "second_transpose=", order); }
};

class IConcatenationLayer : public ILayer {
public:
    using ILayer::ILayer;
    void setAxis(int32_t axis) noexcept { say(mName, "axis=", axis); }
};

class ISoftMaxLayer : public ILayer {
public:
    using ILayer::ILayer;
    void setAxes(uint32_t axes) noexcept { say(mName, "axes=", axes); }
};

class IQuantizeLayer : public ILayer {
public:
    using ILayer::ILayer;
};

class IDequantizeLayer : public ILayer {
public:
    using ILayer::ILayer;
    void setAxis(int32_t axis) noexcept { say(mName, "axis=", axis); }
};

class INetworkDefinition : public INoCopy {
public:
    ~INetworkDefinition() override = default;
    void setName(char const* name) noexcept { say("network", "name=", name); }
    void markOutput(ITensor& tensor) noexcept { say("network", "mark_output", tensor); }
    ITensor* addInput(char const* name, DataType type, Dims const& dims) noexcept {
        return add<ILayer>("add_input", name, type, dims)->getOutput(0);
    }
    ILayer* addConstant(Dims const& dims, Weights weights) noexcept { return add<ILayer>("add_constant", dims, weights); }
    ILayer* addMatrixMultiply(ITensor& a, MatrixOperation how, ITensor& b, MatrixOperation other) noexcept {
        return add<ILayer>("add_matrix_multiply", a, how, b, other);
    }
    IConvolutionLayer* addConvolutionNd(ITensor& x, int64_t features, Dims const& side, Weights kernel, Weights) noexcept {
        return add<IConvolutionLayer>("add_convolution_nd", x, features, side, kernel);
    }
    ILayer* addElementWise(ITensor& a, ITensor& b, ElementWiseOperation how) noexcept {
        return add<ILayer>("add_elementwise", a, b, how);
    }
    ILayer* addUnary(ITensor& x, UnaryOperation how) noexcept { return add<ILayer>("add_unary", x, how); }
    ILayer* addActivation(ITensor& x, ActivationType how) noexcept { return add<ILayer>("add_activation", x, how); }
    ILayer* addReduce(ITensor& x, ReduceOperation how, uint32_t axes, bool keep) noexcept {
        return add<ILayer>("add_reduce", x, how, axes, keep);
    }
    ILayer* addCast(ITensor& x, DataType type) noexcept { return add<ILayer>("add_cast", x, type); }
    ILayer* addIdentity(ITensor& x) noexcept { return add<ILayer>("add_identity", x); }
    IShuffleLayer* addShuffle(ITensor& x) noexcept { return add<IShuffleLayer>("add_shuffle", x); }
    ILayer* addSlice(ITensor& x, Dims const& start, Dims const& size, Dims const& step) noexcept {
        return add<ILayer>("add_slice", x, start, size, step);
    }
    IConcatenationLayer* addConcatenation(ITensor* const* parts, int32_t count) noexcept {
        std::vector<std::string> names;
        for (int32_t place = 0; place < count; ++place) {
            names.push_back(parts[place]->name());
        }
        return add<IConcatenationLayer>("add_concatenation", listed(names.data(), count));
    }
    ILayer* addGather(ITensor& x, ITensor& places, int32_t axis) noexcept { return add<ILayer>("add_gather", x, places, axis); }
    ISoftMaxLayer* addSoftMax(ITensor& x) noexcept { return add<ISoftMaxLayer>("add_softmax", x); }
    ILayer* addTopK(ITensor& x, TopKOperation how, int32_t count, uint32_t axes, DataType) noexcept {
        return add<ILayer>("add_topk", x, how, count, axes);
    }
    IQuantizeLayer* addQuantize(ITensor& x, ITensor& scale, DataType type) noexcept {
        return add<IQuantizeLayer>("add_quantize", x, scale, type);
    }
    IDequantizeLayer* addDequantize(ITensor& x, ITensor& scale, DataType type) noexcept {
        return add<IDequantizeLayer>("add_dequantize", x, scale, type);
    }
    ILayer* addDynamicQuantize(ITensor& x, int32_t axis, int32_t block, DataType type, DataType scale) noexcept {
        return add<ILayer>("add_dynamic_quantize", x, axis, block, type, scale);
    }
    ILayer* addDistCollective(
        ITensor& x, CollectiveOperation how, ReduceOperation reduce, int64_t root, int64_t* ranks, int64_t count) noexcept {
        return add<ILayer>("add_dist_collective", x, how, reduce, root, listed(ranks, count));
    }
    IAttention* addAttentionV2(ITensor& q, ITensor& k, ITensor& v, AttentionNormalizationOp how, CausalMaskKind kind) noexcept {
        return add<IAttention>("add_attention_v2", q, k, v, how, kind);
    }
    ILayer* addKVCacheUpdate(ITensor& cache, ITensor& update, ITensor& places, KVCacheMode mode) noexcept {
        return add<ILayer>("add_kv_cache_update", cache, update, places, mode);
    }

private:
    template <class Layer, class... Given>
    Layer* add(char const* method, Given const&... given) {
        say(std::to_string(mLayers.size()), method, given...);
        auto made = std::make_shared<Layer>(static_cast<int64_t>(mLayers.size()));
        mLayers.push_back(made);
        return std::getenv("STUB_REFUSES") != nullptr && std::string{std::getenv("STUB_REFUSES")} == method ? nullptr : made.get();
    }
    std::vector<std::shared_ptr<INoCopy>> mLayers;
};

class IHostMemory {
public:
    void const* data() const noexcept { return "times"; }
    std::size_t size() const noexcept { return 5; }
    virtual ~IHostMemory() = default;
};

class ITimingCache {
public:
    IHostMemory* serialize() const noexcept { return new IHostMemory; }
    virtual ~ITimingCache() = default;
};

class IBuilderConfig : public INoCopy {
public:
    ~IBuilderConfig() override = default;
    void setBuilderOptimizationLevel(int32_t level) noexcept { say("config", "builder_optimization_level=", level); }
    void setProfilingVerbosity(ProfilingVerbosity how) noexcept { say("config", "profiling_verbosity=", how); }
    void setFlag(BuilderFlag flag) noexcept { say("config", "set_flag", flag); }
    void setMemoryPoolLimit(MemoryPoolType pool, std::size_t bytes) noexcept {
        say("config", "set_memory_pool_limit", pool, static_cast<int64_t>(bytes));
    }
    ITimingCache* createTimingCache(void const*, std::size_t size) const noexcept {
        std::printf("timings %zu\n", size);
        return new ITimingCache;
    }
    bool setTimingCache(ITimingCache const& cache, bool) noexcept { return mCache = &cache, true; }
    ITimingCache const* getTimingCache() const noexcept { return mCache; }

private:
    ITimingCache const* mCache{nullptr};
};

class IStreamWriter {
public:
    virtual int64_t write(void const* data, int64_t bytes) = 0;
    virtual ~IStreamWriter() = default;
};

class IBuilder {
public:
    INetworkDefinition* createNetworkV2(uint32_t) noexcept { return new INetworkDefinition; }
    IBuilderConfig* createBuilderConfig() noexcept { return new IBuilderConfig; }
    bool buildSerializedNetworkToStream(INetworkDefinition&, IBuilderConfig&, IStreamWriter& file) noexcept {
        std::printf("build\n");
        return std::getenv("STUB_REFUSES") == nullptr && file.write("engine", 6) == 6;
    }
    virtual ~IBuilder() = default;
};

inline IBuilder* createInferBuilder(ILogger&) noexcept { return new IBuilder; }

}  // namespace nvinfer1
