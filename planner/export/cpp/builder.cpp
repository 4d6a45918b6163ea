// Builds the engines of a folder: makes the calls in engines/*.calls, which `python -m runner build
// --record` writes on any machine. On the GPU that the engines are for: build/builder FOLDER

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iomanip>
#include <map>
#include <memory>
#include <random>
#include <sstream>
#include <type_traits>
#include <utility>
#include <vector>

#include "common.h"

namespace {

namespace fs = std::filesystem;
using namespace nvinfer1;

// A type of numbers; what made-up ones have of random bits, and beside: between 1/128 and 2, scales positive.
struct Type {
    char const* name;
    DataType type;
    size_t bits;
    uint32_t drawn;
    uint32_t fixed;
};

Type constexpr types[]{
    {"float32", DataType::kFLOAT, 32, 0x01ffffff, 0x3c000000}, {"float16", DataType::kHALF, 16, 0x8fff, 0x2000},
    {"bfloat16", DataType::kBF16, 16, 0x81ff, 0x3c00}, {"fp8", DataType::kFP8, 8, 0x1f, 0x20},
    {"fp4", DataType::kFP4, 4, 0xff, 0}, {"int8", DataType::kINT8, 8, 0xff, 0}, {"int32", DataType::kINT32, 32, 0, 0},
    {"bool", DataType::kBOOL, 8, 0, 0}};

// A member of one of TensorRT's enumerations.
struct Member {
    char const* name;
    int32_t value;
};

#define MEMBER(KIND, NAME) \
    Member { #KIND "." #NAME, static_cast<int32_t>(KIND::k##NAME) }

Member constexpr members[]{
    MEMBER(ActivationType, GELU_ERF), MEMBER(ActivationType, GELU_TANH), MEMBER(ActivationType, RELU),
    MEMBER(ActivationType, SIGMOID),
    MEMBER(AttentionNormalizationOp, SOFTMAX),
    MEMBER(BuilderFlag, WEIGHT_STREAMING),
    MEMBER(CausalMaskKind, NONE), MEMBER(CausalMaskKind, UPPER_LEFT),
    MEMBER(CollectiveOperation, ALL_GATHER), MEMBER(CollectiveOperation, ALL_REDUCE),
    MEMBER(CollectiveOperation, ALL_TO_ALL), MEMBER(CollectiveOperation, BROADCAST),
    MEMBER(CollectiveOperation, GATHER), MEMBER(CollectiveOperation, REDUCE),
    MEMBER(CollectiveOperation, REDUCE_SCATTER), MEMBER(CollectiveOperation, SCATTER),
    MEMBER(ElementWiseOperation, AND), MEMBER(ElementWiseOperation, DIV), MEMBER(ElementWiseOperation, EQUAL),
    MEMBER(ElementWiseOperation, GREATER), MEMBER(ElementWiseOperation, LESS), MEMBER(ElementWiseOperation, MIN),
    MEMBER(ElementWiseOperation, PROD), MEMBER(ElementWiseOperation, SUB), MEMBER(ElementWiseOperation, SUM),
    MEMBER(KVCacheMode, LINEAR),
    MEMBER(MatrixOperation, NONE), MEMBER(MatrixOperation, TRANSPOSE),
    MEMBER(MemoryPoolType, WORKSPACE),
    MEMBER(ProfilingVerbosity, DETAILED),
    MEMBER(ReduceOperation, AVG), MEMBER(ReduceOperation, NONE), MEMBER(ReduceOperation, SUM),
    MEMBER(TopKOperation, MAX),
    MEMBER(UnaryOperation, COS), MEMBER(UnaryOperation, NOT), MEMBER(UnaryOperation, SIN),
    MEMBER(UnaryOperation, SQRT),
};

template <class Table>
auto const* find(Table const& table, std::string const& name) {
    auto const found = std::find_if(std::begin(table), std::end(table), [&](auto const& one) { return name == one.name; });
    return found == std::end(table) ? nullptr : &*found;
}

template <class Table>
auto const& known(Table const& table, std::string const& name) {
    auto const* const found = find(table, name);
    if (found == nullptr) {
        refuse("this builder knows no " + name);
    }
    return *found;
}

int64_t numberIn(std::string const& word) {
    char* end{nullptr};
    auto const value = std::strtoll(word.c_str(), &end, 10);
    if (word.empty() || *end != 0) {
        refuse("got " + word + ", wanted a number");
    }
    return value;
}

// The words of a line; a text between quotes is one.
std::vector<std::string> split(std::string const& line) {
    std::istringstream in{line};
    std::vector<std::string> words;
    for (std::string word; in >> std::ws && !in.eof();) {
        in.peek() == '"' ? in >> std::quoted(word) : in >> word;
        words.push_back(word);
    }
    return words;
}

std::vector<std::string> listIn(std::string const& word) {
    if (word.size() < 2 || word.front() != '[' || word.back() != ']') {
        refuse("got " + word + ", wanted a list");
    }
    std::istringstream inside{word.substr(1, word.size() - 2)};
    std::vector<std::string> parts;
    for (std::string part; std::getline(inside, part, ',');) {
        parts.push_back(part);
    }
    return parts;
}

std::vector<int64_t> numbersIn(std::string const& word) {
    std::vector<int64_t> values;
    for (auto const& part : listIn(word)) {
        values.push_back(numberIn(part));
    }
    return values;
}

// Where constants' numbers lie: in the file of an engine, or made up where nobody gave any.
class Numbers {
public:
    explicit Numbers(fs::path path) : mPath{std::move(path)} {}

    // Read a word such as `Weights(bfloat16,24,@256)`.
    Weights take(std::string const& word) {
        std::istringstream inside{word.substr(std::min(word.size(), std::strlen("Weights(")))};
        std::string type, count, place;
        std::getline(inside, type, ',');
        std::getline(inside, count, ',');
        std::getline(inside, place, ')');
        if (word == "Weights()") {
            return {DataType::kFLOAT, nullptr, 0};
        }
        auto const& found = known(types, type);
        auto const many = numberIn(count);
        if (many < 0 || many > int64_t{1} << 48) {
            refuse("got " + word + ", wanted fewer numbers");
        }
        auto const bytes = (static_cast<size_t>(many) * found.bits + 7) / 8;
        return {found.type, place == "made" ? made(found, bytes) : stored(place, bytes), many};
    }

private:
    void const* stored(std::string const& place, size_t bytes) {
        if (!mFile) {
            mFile = std::make_unique<Mapped>(mPath, "it comes beside the calls");
        }
        auto const start = static_cast<size_t>(numberIn(place.substr(std::min<size_t>(place.size(), 1))));
        if (bytes > mFile->size() || start > mFile->size() - bytes) {
            refuse(mPath.string() + " is cut short");
        }
        return static_cast<char const*>(mFile->data()) + start;
    }

    // The same numbers again and again, from another one on each time: TensorRT keeps equal weights once.
    void const* made(Type const& type, size_t bytes) {
        size_t constexpr period{1048573};
        auto const size = std::max<size_t>(type.bits / 8, 1);
        auto const needed = period * size + bytes;
        auto& pools = mMade[type.type];
        if (pools.empty() || pools.back().size() < needed) {
            std::vector<char> pool(needed + needed / 2);
            for (size_t start = 0; start + size <= pool.size(); start += size) {
                auto const number = static_cast<uint32_t>(mRandom()) & type.drawn;
                auto const whole = number | type.fixed;
                std::memcpy(&pool[start], start < period * size ? static_cast<void const*>(&whole) : &pool[start - period * size], size);
            }
            pools.push_back(std::move(pool));
        }
        mTurn = (mTurn + 7919) % period;
        return pools.back().data() + mTurn * size;
    }

    fs::path mPath;
    std::unique_ptr<Mapped> mFile;
    std::map<DataType, std::vector<std::vector<char>>> mMade;
    std::mt19937 mRandom;
    size_t mTurn{0};
};

// A network while its calls are made, with the layers added so far.
struct Replay {
    INetworkDefinition& network;
    IBuilderConfig& config;
    Numbers& numbers;
    std::vector<std::pair<std::string, INoCopy*>> added{};  // what added it, and what that gave: an input is a tensor

    ITensor& tensor(std::string const& word) {
        auto const point = word.find('.');
        auto const& [method, one] = layer(word.substr(0, point));
        auto const place = point == std::string::npos ? -1 : static_cast<int32_t>(numberIn(word.substr(point + 1)));
        auto* const made = method == "add_input" ? static_cast<ITensor*>(one)
            : method == "add_attention_v2"       ? static_cast<IAttention*>(one)->getOutput(place)
                                                 : static_cast<ILayer*>(one)->getOutput(place);
        if (made == nullptr) {
            refuse("got " + word + ", wanted a tensor");
        }
        return *made;
    }

    std::pair<std::string, INoCopy*> const& layer(std::string const& word) const {
        auto const number = numberIn(word);
        if (number < 0 || number >= static_cast<int64_t>(added.size())) {
            refuse("got " + word + ", wanted a layer");
        }
        return added[static_cast<size_t>(number)];
    }
};

Dims dimsIn(std::string const& word) {
    auto const numbers = numbersIn(word);
    if (numbers.size() > static_cast<size_t>(Dims::MAX_DIMS)) {
        refuse("got " + word + ", wanted fewer axes");
    }
    Dims dims{};
    dims.nbDims = static_cast<int32_t>(numbers.size());
    std::copy(numbers.begin(), numbers.end(), dims.d);
    return dims;
}

// What a parameter of TensorRT's is given: a tensor by reference, anything else by value.
template <class Kind>
using Value = std::conditional_t<std::is_same_v<Kind, ITensor&>, ITensor&, std::decay_t<Kind>>;

template <class Kind>
Value<Kind> read(Replay& replay, std::string const& word) {
    if constexpr (std::is_same_v<Kind, ITensor&>) {
        return replay.tensor(word);
    } else if constexpr (std::is_same_v<Kind, char const*>) {
        return word.c_str();
    } else if constexpr (std::is_same_v<Kind, Dims const&>) {
        return dimsIn(word);
    } else if constexpr (std::is_same_v<Kind, Permutation>) {
        Permutation order{};
        auto const dims = dimsIn(word);
        std::transform(dims.d, dims.d + dims.nbDims, order.order, [](int64_t axis) { return static_cast<int32_t>(axis); });
        return order;
    } else if constexpr (std::is_same_v<Kind, Weights>) {
        return replay.numbers.take(word);
    } else if constexpr (std::is_same_v<Kind, DataType>) {
        return known(types, word).type;
    } else if constexpr (std::is_enum_v<Kind>) {
        return static_cast<Kind>(known(members, word).value);
    } else {
        return static_cast<Kind>(numberIn(word));
    }
}

// Makes a call on an object with what it is given; gives what was added, if anything is.
using Given = std::vector<std::string>;
using Call = INoCopy* (*)(Replay&, INoCopy*, Given const&);

template <auto Method, class Object, class Result, class... Kinds, size_t... Places>
INoCopy* made(Result (Object::*)(Kinds...) noexcept, Replay& replay, INoCopy* object, Given const& given, std::index_sequence<Places...>) {
    auto* const own = static_cast<Object*>(object);
    if constexpr (std::is_pointer_v<Result>) {
        return (own->*Method)(read<Kinds>(replay, given.at(Places))...);
    } else if constexpr (std::is_same_v<Result, bool>) {
        if (!(own->*Method)(read<Kinds>(replay, given.at(Places))...)) {
            fail("TensorRT does not take it");
        }
    } else {
        (own->*Method)(read<Kinds>(replay, given.at(Places))...);
    }
    return nullptr;
}

template <class Object, class Result, class... Kinds>
std::index_sequence_for<Kinds...> places(Result (Object::*)(Kinds...) noexcept);

// A call of a method, whose parameters say what it is given.
template <auto Method>
INoCopy* call(Replay& replay, INoCopy* object, Given const& given) {
    return made<Method>(Method, replay, object, given, decltype(places(Method)){});
}

INoCopy* addConcatenation(Replay& replay, INoCopy*, Given const& given) {
    std::vector<ITensor*> parts;
    for (auto const& word : listIn(given.at(0))) {
        parts.push_back(&replay.tensor(word));
    }
    return replay.network.addConcatenation(parts.data(), static_cast<int32_t>(parts.size()));
}

INoCopy* addQuantize(Replay& replay, INoCopy*, Given const& given) {
    return replay.network.addQuantize(replay.tensor(given.at(0)), replay.tensor(given.at(1)), known(types, given.at(2)).type);
}

INoCopy* addDequantize(Replay& replay, INoCopy*, Given const& given) {
    return replay.network.addDequantize(replay.tensor(given.at(0)), replay.tensor(given.at(1)), known(types, given.at(2)).type);
}

INoCopy* addConvolution(Replay& replay, INoCopy*, Given const& given) {
    auto const none = Weights{DataType::kFLOAT, nullptr, 0};
    return replay.network.addConvolutionNd(
        replay.tensor(given.at(0)), numberIn(given.at(1)), dimsIn(given.at(2)), replay.numbers.take(given.at(3)), none);
}

INoCopy* addTopK(Replay& replay, INoCopy*, Given const& given) {
    return replay.network.addTopK(replay.tensor(given.at(0)), read<TopKOperation>(replay, given.at(1)),
        read<int32_t>(replay, given.at(2)), read<uint32_t>(replay, given.at(3)), DataType::kINT32);
}

INoCopy* addDistCollective(Replay& replay, INoCopy*, Given const& given) {
    auto ranks = numbersIn(given.at(4));
    return replay.network.addDistCollective(replay.tensor(given.at(0)), read<CollectiveOperation>(replay, given.at(1)),
        read<ReduceOperation>(replay, given.at(2)), numberIn(given.at(3)), ranks.empty() ? nullptr : ranks.data(),
        static_cast<int64_t>(ranks.size()));
}

// The newer method takes a block of several axes, with which TensorRT builds no scale of the scales.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
Call constexpr addDynamicQuantize{call<&INetworkDefinition::addDynamicQuantize>};
#pragma GCC diagnostic pop

std::string written(Dims const& dims) {
    std::ostringstream text;
    for (int32_t place = 0; place < dims.nbDims; ++place) {
        text << (place == 0 ? "" : ",") << dims.d[place];
    }
    return "[" + text.str() + "]";
}

INoCopy* expect(Replay&, INoCopy* object, Given const& given) {
    auto const& tensor = *static_cast<ITensor*>(object);
    auto const got = written(tensor.getDimensions());
    if (got != written(dimsIn(given.at(0)))) {
        fail("TensorRT makes " + got);
    }
    if (tensor.getType() != known(types, given.at(1)).type) {
        fail("TensorRT makes another type");
    }
    return nullptr;
}

// All calls, by what they are made on: the network, the builder's configuration, a tensor, a layer of any
// kind, or one that a method added.
struct Method {
    char const* name;
    Call call;
};

Method constexpr calls[]{
    {"network name=", call<&INetworkDefinition::setName>},
    {"network mark_output", call<&INetworkDefinition::markOutput>},
    {"network add_input", call<&INetworkDefinition::addInput>},
    {"network add_constant", call<&INetworkDefinition::addConstant>},
    {"network add_matrix_multiply", call<&INetworkDefinition::addMatrixMultiply>},
    {"network add_convolution_nd", addConvolution},
    {"network add_elementwise", call<&INetworkDefinition::addElementWise>},
    {"network add_unary", call<&INetworkDefinition::addUnary>},
    {"network add_activation", call<&INetworkDefinition::addActivation>},
    {"network add_reduce", call<&INetworkDefinition::addReduce>},
    {"network add_cast", call<&INetworkDefinition::addCast>},
    {"network add_identity", call<&INetworkDefinition::addIdentity>},
    {"network add_shuffle", call<&INetworkDefinition::addShuffle>},
    {"network add_slice", call<&INetworkDefinition::addSlice>},
    {"network add_concatenation", addConcatenation},
    {"network add_gather", call<&INetworkDefinition::addGather>},
    {"network add_softmax", call<&INetworkDefinition::addSoftMax>},
    {"network add_topk", addTopK},
            {"network add_quantize", addQuantize},
    {"network add_dequantize", addDequantize},
    {"network add_dynamic_quantize", addDynamicQuantize},
    {"network add_dist_collective", addDistCollective},
    {"network add_attention_v2", call<&INetworkDefinition::addAttentionV2>},
    {"network add_kv_cache_update", call<&INetworkDefinition::addKVCacheUpdate>},
    {"config builder_optimization_level=", call<&IBuilderConfig::setBuilderOptimizationLevel>},
    {"config profiling_verbosity=", call<&IBuilderConfig::setProfilingVerbosity>},
    {"config set_flag", call<&IBuilderConfig::setFlag>},
    {"config set_memory_pool_limit", call<&IBuilderConfig::setMemoryPoolLimit>},
    {"tensor name=", call<&ITensor::setName>},
    {"tensor expect", expect},
    {"layer name=", call<&ILayer::setName>},
    {"layer set_input", call<&ILayer::setInput>},
    {"layer num_ranks=", call<&ILayer::setNbRanks>},
    {"layer metadata=", call<&ILayer::setMetadata>},
    {"add_convolution_nd num_groups=", call<&IConvolutionLayer::setNbGroups>},
    {"add_convolution_nd padding_nd=", call<&IConvolutionLayer::setPaddingNd>},
    {"add_shuffle first_transpose=", call<&IShuffleLayer::setFirstTranspose>},
    {"add_shuffle reshape_dims=", call<&IShuffleLayer::setReshapeDimensions>},
    {"add_shuffle second_transpose=", call<&IShuffleLayer::setSecondTranspose>},
    {"add_concatenation axis=", call<&IConcatenationLayer::setAxis>},
    {"add_softmax axes=", call<&ISoftMaxLayer::setAxes>},
    {"add_dequantize axis=", call<&IDequantizeLayer::setAxis>},
    {"add_attention_v2 decomposable=", call<&IAttention::setDecomposable>},
    {"add_attention_v2 mask=", call<&IAttention::setMask>},
    {"add_attention_v2 num_ranks=", call<&IAttention::setNbRanks>}};

// Make the call of one line.
void make(Replay& replay, std::string const& line) {
    auto given = split(line);
    auto const target = given.at(0), method = given.at(1);
    given.erase(given.begin(), given.begin() + 2);
    if (method.rfind("add_", 0) == 0) {
        if (target != std::to_string(replay.added.size())) {
            refuse("got layer " + target + ", wanted " + std::to_string(replay.added.size()));
        }
        auto* const made = known(calls, "network " + method).call(replay, &replay.network, given);
        if (made == nullptr) {
            fail("TensorRT adds nothing by " + method);
        }
        replay.added.emplace_back(method, made);
        return;
    }
    if (target == "network" || target == "config") {
        auto* const object = target == "network" ? static_cast<INoCopy*>(&replay.network) : &replay.config;
        known(calls, target + " " + method).call(replay, object, given);
    } else if (target.find('.') != std::string::npos) {
        known(calls, "tensor " + method).call(replay, &replay.tensor(target), given);
    } else {
        auto const& [kind, layer] = replay.layer(target);
        auto const* const own = find(calls, kind + " " + method);
        (own == nullptr ? known(calls, "layer " + method) : *own).call(replay, layer, given);
    }
}

// Make all calls of a file; the last line says that it is whole.
void makeAll(Replay& replay, fs::path const& path) {
    std::ifstream file{path};
    std::string line;
    for (int number = 1; std::getline(file, line); ++number) {
        if (line == "build") {
            return;
        }
        auto const where = path.filename().string() + ", line " + std::to_string(number) + ", " + line.substr(0, 80) + ": ";
        try {
            make(replay, line);
        } catch (std::out_of_range const&) {
            refuse(where + "it is cut short");
        } catch (InputError const& error) {
            refuse(where + error.what());
        } catch (std::exception const& error) {
            fail(where + error.what());
        }
    }
    refuse(path.string() + " is cut short");
}

// A file that takes the target's place when all is written, or leaves nothing.
class Draft : public IStreamWriter {
public:
    explicit Draft(fs::path target) : mTarget{std::move(target)}, mDraft{mTarget.string() + ".draft"}, mFile{mDraft, std::ios::binary} {}
    ~Draft() override {
        std::error_code ignored;
        fs::remove(mDraft, ignored);
    }
    int64_t write(void const* data, int64_t bytes) override {
        mFile.write(static_cast<char const*>(data), static_cast<std::streamsize>(bytes));
        return mFile ? bytes : -1;
    }
    void keep() {
        mFile.close();
        if (!mFile) {
            fail(mTarget.string() + ": it cannot be written");
        }
        fs::rename(mDraft, mTarget);
    }

private:
    fs::path mTarget;
    fs::path mDraft;
    std::ofstream mFile;
};

std::string contents(fs::path const& path) {
    std::ifstream file{path, std::ios::binary};
    return {std::istreambuf_iterator<char>{file}, {}};
}

// Timings of earlier builds, kept beside the engines as `python -m runner build` keeps them.
void keepTimings(IBuilderConfig const& config, fs::path const& path) {
    auto const* const cache = config.getTimingCache();
    std::unique_ptr<IHostMemory> const timings{cache == nullptr ? nullptr : cache->serialize()};
    if (timings) {
        Draft file{path};
        file.write(timings->data(), static_cast<int64_t>(timings->size()));
        file.keep();
    }
}

void build(IBuilder& builder, fs::path const& path) {
    auto const start = std::chrono::steady_clock::now();
    auto const engine = fs::path{path}.replace_extension(".engine"), timings = path.parent_path() / "timing.cache";
    Numbers numbers{fs::path{path}.replace_extension(".numbers")};
    std::unique_ptr<INetworkDefinition> const network{builder.createNetworkV2(0)};
    std::unique_ptr<IBuilderConfig> const config{builder.createBuilderConfig()};
    if (!network || !config) {
        fail("TensorRT makes no network");
    }
    auto const earlier = contents(timings);
    std::unique_ptr<ITimingCache> const cache{config->createTimingCache(earlier.data(), earlier.size())};
    if (cache) {
        config->setTimingCache(*cache, true);
    }
    Replay replay{*network, *config, numbers};
    makeAll(replay, path);
    Draft file{engine};
    if (!builder.buildSerializedNetworkToStream(*network, *config, file)) {
        fail(engine.filename().string() + ": TensorRT built nothing, or nothing could be written");
    }
    keepTimings(*config, timings);
    file.keep();
    std::chrono::duration<double> const took{std::chrono::steady_clock::now() - start};
    std::cout << engine.filename().string() << ": " << (fs::file_size(engine) >> 20) << " MiB in " << std::fixed
              << std::setprecision(0) << took.count() << " s" << std::endl;
}

void buildAll(fs::path const& folder) {
    std::vector<fs::path> paths;
    std::error_code none;
    for (auto const* const made : {"engines", "engines_2"}) { // of a second transformer, where there is one
        for (auto const& entry : fs::directory_iterator{folder / made, none}) {
            if (entry.path().extension() == ".calls") {
                paths.push_back(entry.path());
            }
        }
    }
    std::sort(paths.begin(), paths.end());
    if (paths.empty()) {
        refuse((folder / "engines").string() + ": no calls are there (python -m runner build --record writes them)");
    }
    Logger logger;
    std::unique_ptr<IBuilder> const builder{createInferBuilder(logger)};
    if (!builder) {
        fail("TensorRT makes no builder here");
    }
    for (auto const& path : paths) {
        auto const engine = fs::path{path}.replace_extension(".engine");
        if (fs::exists(engine)) {
            std::cout << engine.filename().string() << ": there already" << std::endl;
        } else {
            build(*builder, path);
        }
    }
}

}  // namespace

int main(int argc, char** argv) {
    try {
        if (argc != 2 || std::string{argv[1]}.rfind("--", 0) == 0) {
            refuse("usage: builder FOLDER");
        }
        buildAll(argv[1]);
    } catch (InputError const& error) {
        std::cerr << "builder: " << error.what() << std::endl;
        return 2;
    } catch (std::exception const& error) {
        std::cerr << "builder: " << error.what() << std::endl;
        return 1;
    }
    return 0;
}
