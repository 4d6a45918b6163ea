// Runs one rank of a plan: its engines, in the order of cpp/schedule.txt, with NCCL communicators
// handed to TensorRT. Started by mpirun, one process a rank: mpirun -np N build/runner FOLDER
// Engines are built by `python -m runner build`, or by build/builder.

#include <cuda_runtime_api.h>
#include <mpi.h>
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "common.h"

namespace {

using Clock = std::chrono::steady_clock;

char constexpr built[]{"engines are made by: python -m runner build, or build/builder"};

void check(cudaError_t code, char const* what) {
    if (code != cudaSuccess) {
        fail(std::string{what} + ": " + cudaGetErrorString(code));
    }
}

void check(ncclResult_t code, char const* what) {
    if (code != ncclSuccess) {
        fail(std::string{what} + ": " + ncclGetErrorString(code));
    }
}

// What is asked for beside the folder; limits in seconds.
struct Options {
    std::filesystem::path folder;
    std::string results{"results"};
    bool graph{false};
    int steps{0};        // the plan's where zero
    int device{-1};      // the plan's where negative
    int64_t budget{-1};  // bytes of streamed weights that stay on the GPU, all where negative
    double loadLimit{600};
    double meetLimit{120};
    double stepLimit{120};
};

char constexpr usage[]{
    "usage: mpirun -np N runner FOLDER [--graph] [--steps N] [--device N] [--budget MIB] [--results DIR] "
    "[--load-limit S] [--meet-limit S] [--limit S]"};

double number(std::string const& option, char const* text, double least) {
    char* end{nullptr};
    double const value{text == nullptr ? 0 : std::strtod(text, &end)};
    if (text == nullptr || end == text || *end != 0 || !std::isfinite(value) || value < least || value > 1e12) {
        std::ostringstream wanted;
        wanted << option << ": got " << (text == nullptr ? "nothing" : text) << ", wanted a number of at least " << least;
        refuse(wanted.str());
    }
    return value;
}

Options readOptions(int argc, char** argv) {
    Options options;
    for (int place = 1; place < argc; ++place) {
        std::string const word{argv[place]};
        if (word.rfind("--", 0) != 0) {
            if (!options.folder.empty()) {
                refuse("got " + word + " behind the folder; " + usage);
            }
            options.folder = word;
            continue;
        }
        if (word == "--graph") {
            options.graph = true;
            continue;
        }
        char const* const value{place + 1 < argc ? argv[++place] : nullptr};
        if (word == "--steps") {
            options.steps = static_cast<int>(number(word, value, 1));
        } else if (word == "--device") {
            options.device = static_cast<int>(number(word, value, 0));
        } else if (word == "--budget") {
            options.budget = static_cast<int64_t>(number(word, value, 0)) << 20;
        } else if (word == "--load-limit") {
            options.loadLimit = number(word, value, 1);
        } else if (word == "--meet-limit") {
            options.meetLimit = number(word, value, 1);
        } else if (word == "--limit") {
            options.stepLimit = number(word, value, 1);
        } else if (word == "--results" && value != nullptr) {
            options.results = value;
        } else {
            refuse("got " + word + "; " + usage);
        }
    }
    if (options.folder.empty()) {
        refuse(usage);
    }
    if (options.graph && options.budget >= 0) {
        refuse("--graph: got it beside --budget, wanted one: engines that stream weights are in no graph");
    }
    return options;
}

// Ends the process when a phase outlives its limit: a missing rank makes NCCL wait for ever.
class Watch {
public:
    explicit Watch(int rank) : mRank{rank}, mThread{[this] { look(); }} {}

    ~Watch() {
        mStop = true;
        mThread.join();
    }

    void phase(std::string name, double seconds) {
        std::lock_guard<std::mutex> const lock{mMutex};
        mName = std::move(name);
        mSeconds = seconds;
        mUntil = Clock::now() + std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
    }

private:
    void look() {
        while (!mStop) {
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
            std::lock_guard<std::mutex> const lock{mMutex};
            if (!mName.empty() && Clock::now() > mUntil) {
                std::cerr << "runner: rank " << mRank << ": late in " << mName << ", after " << mSeconds
                          << " s: another rank is missing or stuck" << std::endl;
                std::_Exit(3);
            }
        }
    }

    int mRank;
    std::mutex mMutex;
    std::string mName;
    double mSeconds{0};
    Clock::time_point mUntil;
    std::atomic<bool> mStop{false};
    std::thread mThread;
};

struct Table {
    std::string engine;
    std::string name;
    size_t bytes;
    size_t start;
};

struct Buffer {
    size_t bytes{0};
    std::string type;
    bool given{false};
    float start{0};  // all its numbers, of 32 bits
    void* address{nullptr};
};

struct Bind {
    std::string tensor;
    std::string buffer;
    size_t offset;
};

struct Call {
    std::string kind;  // call of an engine; copy from `source` to `target`; send of it to other ranks
    std::string engine;
    std::vector<Bind> binds;
    std::string source;
    std::string target;
    size_t bytes{0};
    std::vector<std::pair<int, int>> pairs;  // who sends to whom
};

struct Engine {
    std::string name;
    int ranks{1};
    std::vector<std::string> files;
    std::vector<std::vector<int>> groups;
    bool meets{false};  // in collectives: TensorRT gives no communicator to other engines
    std::unique_ptr<nvinfer1::ICudaEngine> engine;
    std::unique_ptr<nvinfer1::IExecutionContext> context;
    std::map<std::string, void*> tables;  // by the engine's input; weights that lie outside too

    // The ranks that run it together with a rank: that one alone where it is in no groups, none where
    // it is of another stage of a pipeline.
    std::vector<int> members(int rank) const {
        for (auto const& group : groups) {
            if (std::find(group.begin(), group.end(), rank) != group.end()) {
                return group;
            }
        }
        return groups.empty() ? std::vector<int>{rank} : std::vector<int>{};
    }
};

struct Schedule {
    int world{1};
    int steps{1};
    std::map<std::string, std::string> environment;
    std::vector<Engine> engines;
    std::map<std::string, Buffer> buffers;
    std::vector<Table> tables;
    std::map<int, int> devices;
    std::vector<Call> once;
    std::vector<Call> each;
    std::string output;

    Engine& engine(std::string const& name) {
        for (auto& one : engines) {
            if (one.name == name) {
                return one;
            }
        }
        refuse("cpp/schedule.txt: no engine " + name);
    }
};

Call readCall(std::istringstream& words, std::string const& kind) {
    Call call;
    call.kind = kind;
    std::string word;
    if (kind != "call") {
        words >> call.source >> call.target >> call.bytes;
        char to{0};
        for (int first{-1}, second{-1}; words >> first >> to >> second;) {
            call.pairs.emplace_back(first, second);
        }
        return call;
    }
    words >> call.engine;
    while (words >> word) {
        auto const plus = word.rfind('+');
        auto const equal = word.rfind('=', plus);
        if (plus == std::string::npos || equal == std::string::npos || !std::isdigit(static_cast<unsigned char>(word.back()))) {
            refuse("cpp/schedule.txt is damaged, or cut short: " + word);
        }
        size_t offset{SIZE_MAX};  // what no number begins stays beyond every buffer
        std::istringstream{word.substr(plus + 1)} >> offset;
        call.binds.push_back({word.substr(0, equal), word.substr(equal + 1, plus - equal - 1), offset});
    }
    return call;
}

// Whether a piece of a buffer is in it; a number below zero is read as a very large one.
bool within(Schedule const& schedule, std::string const& name, size_t start, size_t bytes) {
    auto const found = schedule.buffers.find(name);
    return found != schedule.buffers.end() && bytes <= found->second.bytes && start <= found->second.bytes - bytes;
}

bool within(Schedule const& schedule, Call const& call) {
    if (call.kind != "call") {
        return within(schedule, call.source, 0, call.bytes) && within(schedule, call.target, 0, call.bytes) &&
            call.pairs.empty() == (call.kind == "copy") &&
            std::all_of(call.pairs.begin(), call.pairs.end(), [&](auto const& pair) {
                return std::min(pair.first, pair.second) >= 0 && std::max(pair.first, pair.second) < schedule.world;
            });
    }
    auto const& engines = schedule.engines;
    return std::any_of(engines.begin(), engines.end(), [&](auto const& one) { return one.name == call.engine; }) &&
        std::all_of(call.binds.begin(), call.binds.end(),
            [&](auto const& bind) { return within(schedule, bind.buffer, bind.offset, 1); });
}

// A schedule that was cut short lacks its last line, or what that names.
void check(Schedule const& schedule) {
    bool whole = schedule.world > 0 && schedule.steps > 0 && schedule.buffers.count(schedule.output) != 0;
    for (auto const& [name, buffer] : schedule.buffers) {
        whole = whole && !buffer.type.empty() && (buffer.start == 0 || buffer.bytes % sizeof buffer.start == 0);
    }
    for (auto const* calls : {&schedule.once, &schedule.each}) {
        whole = whole && std::all_of(calls->begin(), calls->end(), [&](auto const& call) { return within(schedule, call); });
    }
    for (int rank = 0; rank < schedule.world; ++rank) {
        whole = whole && schedule.devices.count(rank) != 0;
    }
    for (auto const& engine : schedule.engines) {
        whole = whole && !engine.files.empty() && (engine.ranks == 1 || !engine.groups.empty());
        for (auto const& group : engine.groups) {
            whole = whole && (engine.files.size() == 1 || engine.files.size() == group.size());
        }
    }
    if (!whole) {
        refuse("cpp/schedule.txt is damaged, or cut short");
    }
}

Schedule readSchedule(std::filesystem::path const& path) {
    std::ifstream file{path};
    if (!file) {
        refuse("cannot read " + path.string());
    }
    Schedule schedule;
    std::string line;
    while (std::getline(file, line)) {
        std::istringstream words{line};
        std::string kind, name;
        words >> kind;
        if (kind == "world") {
            words >> schedule.world;
        } else if (kind == "steps") {
            words >> schedule.steps;
        } else if (kind == "environment") {
            words >> name;
            words >> schedule.environment[name];
        } else if (kind == "engine") {
            Engine engine;
            words >> engine.name >> engine.ranks;
            while (words >> name) {
                engine.files.push_back(name);
            }
            schedule.engines.push_back(std::move(engine));
        } else if (kind == "meets") {
            words >> name;
            schedule.engine(name).meets = true;
        } else if (kind == "group") {
            words >> name;
            std::vector<int> group;
            int rank;
            while (words >> rank) {
                group.push_back(rank);
            }
            schedule.engine(name).groups.push_back(group);
        } else if (kind == "buffer") {
            words >> name;
            words >> schedule.buffers[name].bytes >> schedule.buffers[name].type;
        } else if (kind == "given") {
            words >> name;
            schedule.buffers[name].given = true;
        } else if (kind == "start") {
            words >> name;
            words >> schedule.buffers[name].start;
        } else if (kind == "table") {
            Table table;
            words >> table.engine >> table.name >> table.bytes >> table.start;
            schedule.tables.push_back(table);
        } else if (kind == "device") {
            int rank, host, device;
            words >> rank >> host >> device;
            schedule.devices[rank] = device;
        } else if (kind == "call" || kind == "copy" || kind == "send") {
            words >> name;
            (name == "once" ? schedule.once : schedule.each).push_back(readCall(words, kind));
        } else if (kind == "output") {
            words >> schedule.output;
        } else {
            refuse("cpp/schedule.txt is damaged: " + line);
        }
    }
    check(schedule);
    return schedule;
}

std::vector<char> readFile(std::filesystem::path const& path, size_t start = 0, size_t bytes = 0) {
    std::ifstream file{path, std::ios::binary | std::ios::ate};
    if (!file) {
        refuse("cannot read " + path.string() + " (" + built + ")");
    }
    auto const size = static_cast<size_t>(file.tellg());
    if (bytes > size || start > size - bytes) {
        refuse(path.string() + " is too short");
    }
    std::vector<char> data(bytes != 0 ? bytes : size);
    file.seekg(static_cast<std::streamoff>(start));
    file.read(data.data(), static_cast<std::streamsize>(data.size()));
    return data;
}

// Weights beside an engine: lines of a name, its bytes and where they begin; an empty line; and
// numbers from the next whole page on.
struct Outside {
    struct Weight {
        std::string name;
        size_t bytes{0};
        size_t start{0};
    };
    std::vector<Weight> weights;
    size_t first{0};
};

Outside readOutside(std::filesystem::path const& path) {
    size_t constexpr page{4096};
    std::ifstream file{path, std::ios::binary};
    Outside found;
    std::string line;
    size_t needed{0};
    while (std::getline(file, line) && !line.empty()) {
        std::istringstream words{line};
        std::string name;
        size_t bytes{0}, start{0};
        if (!(words >> name >> bytes >> start)) {
            refuse(path.string() + ": its table cannot be read; build it again");
        }
        found.weights.push_back({name, bytes, start});
        needed = std::max(needed, start > SIZE_MAX - bytes ? SIZE_MAX : start + bytes);
    }
    auto const behind = file.tellg();
    auto const size = static_cast<size_t>(std::filesystem::file_size(path));
    found.first = behind < 0 ? size : (static_cast<size_t>(behind) + page - 1) / page * page;
    if (behind < 0 || found.first > size || needed > size - found.first) {
        refuse(path.string() + " is cut short; build it again");
    }
    return found;
}

// Memory of the GPU, given back when this goes.
class Memory {
public:
    Memory(size_t bytes, char const* what) { check(cudaMalloc(&mAddress, std::max<size_t>(bytes, 1)), what); }
    ~Memory() { cudaFree(mAddress); }
    Memory(Memory const&) = delete;
    Memory& operator=(Memory const&) = delete;

    void* address() const { return mAddress; }

private:
    void* mAddress{nullptr};
};

// Normal numbers in the type of a buffer, the same on all ranks.
std::vector<char> draw(Buffer const& buffer, std::string const& name) {
    std::vector<char> data(buffer.bytes);
    std::mt19937 random{static_cast<uint32_t>(std::hash<std::string>{}(name))};
    std::normal_distribution<float> normal;
    size_t const size = buffer.type == "bf16" || buffer.type == "fp16" ? 2 : 4;
    for (size_t place = 0; place + size <= data.size(); place += size) {
        float const value = normal(random);
        uint32_t bits;
        std::memcpy(&bits, &value, 4);
        if (buffer.type == "bf16") {
            auto const half = static_cast<uint16_t>(bits >> 16);
            std::memcpy(&data[place], &half, 2);
        } else if (buffer.type == "fp16") {
            int const exponent = static_cast<int>(bits >> 23 & 255) - 112;
            auto const half = static_cast<uint16_t>(
                (bits >> 16 & 0x8000) | (exponent > 0 ? static_cast<uint32_t>(exponent) << 10 | (bits >> 13 & 0x3ff) : 0));
            std::memcpy(&data[place], &half, 2);
        } else {
            std::memcpy(&data[place], &value, 4);
        }
    }
    return data;
}

int placeIn(std::vector<int> const& group, int rank) {
    return static_cast<int>(std::find(group.begin(), group.end(), rank) - group.begin());
}

class Runner {
public:
    Runner(Options options, int rank, int world)
        : mOptions{std::move(options)},
          mFolder{mOptions.folder},
          mRank{rank},
          mWatch{rank},
          mSchedule{readSchedule(mFolder / "cpp/schedule.txt")} {
        if (mSchedule.world != world) {
            refuse("started with " + std::to_string(world) + " ranks, wanted " + std::to_string(mSchedule.world));
        }
        mOwn.insert(mSchedule.output);
        for (auto const* calls : {&mSchedule.once, &mSchedule.each}) {
            std::for_each(calls->begin(), calls->end(), [this](auto const& call) { own(call); });
        }
    }

    void run() {
        for (auto const& [name, value] : mSchedule.environment) {
            setenv(name.c_str(), value.c_str(), 0);
        }
        check(cudaSetDevice(mOptions.device < 0 ? mSchedule.devices.at(mRank) : mOptions.device), "choosing the GPU");
        check(cudaStreamCreateWithFlags(&mStream, cudaStreamNonBlocking), "making a stream");
        load();
        join();
        bind();
        allocate();
        MPI_Barrier(MPI_COMM_WORLD);
        auto const seconds = play();
        save();
        close();
        if (mRank == 0) {
            auto sorted = seconds;
            std::sort(sorted.begin(), sorted.end());
            std::cout << sorted.size() << " steps, median " << sorted[sorted.size() / 2] << " s" << std::endl;
        }
    }

private:
    // Note the buffers of a call that this rank takes part in.
    void own(Call const& call) {
        mSends = mSends || call.kind == "send";
        if (call.kind == "copy") {
            mOwn.insert({call.source, call.target});
        } else if (call.kind == "call" && runs(mSchedule.engine(call.engine))) {
            std::for_each(call.binds.begin(), call.binds.end(), [this](auto const& bind) { mOwn.insert(bind.buffer); });
        }
        for (auto const& [from, to] : call.pairs) {
            if (from == mRank) {
                mOwn.insert(call.source);
            }
            if (to == mRank) {
                mOwn.insert(call.target);
            }
        }
    }

    bool runs(Engine const& engine) const { return !engine.members(mRank).empty(); }

    size_t place(Engine const& engine) const { return static_cast<size_t>(placeIn(engine.members(mRank), mRank)); }

    std::string fileOf(Engine const& engine) const {
        return engine.files.size() == 1 ? engine.files[0] : engine.files[place(engine)];
    }

    void load() {
        mWatch.phase("loading engines", mOptions.loadLimit);
        mRuntime.reset(nvinfer1::createInferRuntime(mLogger));
        for (auto& engine : mSchedule.engines) {
            if (!runs(engine)) {
                continue;
            }
            auto const file = fileOf(engine);
            Mapped const data{mFolder / file, built};
            engine.engine.reset(mRuntime->deserializeCudaEngine(data.data(), data.size()));
            if (!engine.engine) {
                fail(file + ": not an engine of this GPU and this TensorRT");
            }
            if (mOptions.budget >= 0 && !engine.engine->setWeightStreamingBudgetV2(mOptions.budget)) {
                fail(file + ": it streams no weights, or not so few: build it with --streaming");
            }
            engine.context.reset(
                engine.engine->createExecutionContext(nvinfer1::ExecutionContextAllocationStrategy::kUSER_MANAGED));
            if (!engine.context) {
                fail(file + ": no memory for an execution context");
            }
        }
        shareMemory();
    }

    // Engines run one after another, so that one piece of memory does for what each holds meanwhile.
    void shareMemory() {
        int64_t most{0};
        for (auto const& engine : mSchedule.engines) {
            most = std::max(most, engine.engine ? engine.engine->getDeviceMemorySizeV2() : 0);
        }
        auto* const address = hold(static_cast<size_t>(most), "allocating what engines work in");
        for (auto const& engine : mSchedule.engines) {
            if (engine.context) {
                engine.context->setDeviceMemoryV2(address, most);
            }
        }
    }

    void* hold(size_t bytes, char const* what) {
        mHeld.push_back(std::make_unique<Memory>(bytes, what));
        return mHeld.back()->address();
    }

    // One communicator for every group of ranks, and one of all where stages send.
    void join() {
        mWatch.phase("joining communicators", mOptions.meetLimit);
        for (auto const& engine : mSchedule.engines) {
            if (engine.meets) {
                join(engine.members(mRank));
            }
        }
        if (mSends) {
            join(everyone());
        }
    }

    // All ranks exchange ids, also those that have the group's communicator already, or none; the
    // first rank of a group makes its id.
    void join(std::vector<int> const& group) {
        bool const wanted{!group.empty() && mCommunicators.count(group) == 0};
        ncclUniqueId id{};
        if (wanted && group[0] == mRank) {
            check(ncclGetUniqueId(&id), "making an NCCL id");
        }
        std::vector<ncclUniqueId> ids(static_cast<size_t>(mSchedule.world));
        MPI_Allgather(&id, sizeof id, MPI_BYTE, ids.data(), sizeof id, MPI_BYTE, MPI_COMM_WORLD);
        if (wanted) {
            check(ncclCommInitRank(&mCommunicators[group], static_cast<int>(group.size()),
                      ids[static_cast<size_t>(group[0])], placeIn(group, mRank)),
                "joining NCCL");
        }
    }

    std::vector<int> everyone() const {
        std::vector<int> ranks(static_cast<size_t>(mSchedule.world));
        std::iota(ranks.begin(), ranks.end(), 0);
        return ranks;
    }

    // A handshake among the ranks, so that all hand over at once. An engine that takes no
    // communicator would skip its collectives and give wrong numbers.
    void bind() {
        for (auto& engine : mSchedule.engines) {
            if (!engine.meets) {
                continue;
            }
            mWatch.phase("binding the communicator of " + engine.name, mOptions.meetLimit);
            MPI_Barrier(MPI_COMM_WORLD);
            if (runs(engine) && !engine.context->setCommunicator(mCommunicators.at(engine.members(mRank)))) {
                fail(engine.name + ": the engine says that it is not for several devices");
            }
        }
    }

    void allocate() {
        mWatch.phase("allocating buffers", mOptions.loadLimit);
        for (auto const& name : mOwn) {
            auto& buffer = mSchedule.buffers.at(name);
            buffer.address = hold(buffer.bytes, "allocating a buffer");
            check(cudaMemset(buffer.address, 0, buffer.bytes), "clearing a buffer");
            if (buffer.start != 0) {
                std::vector<float> const numbers(buffer.bytes / sizeof buffer.start, buffer.start);
                check(cudaMemcpy(buffer.address, numbers.data(), buffer.bytes, cudaMemcpyHostToDevice), "filling a buffer");
            }
            if (buffer.given) {
                auto const path = mFolder / "inputs" / (name + ".rank" + std::to_string(mRank) + ".bin");
                auto const data = std::filesystem::exists(path) ? readFile(path) : draw(buffer, name);
                if (data.size() != buffer.bytes) {
                    refuse(path.string() + ": " + std::to_string(data.size()) + " bytes, wanted " + std::to_string(buffer.bytes));
                }
                check(cudaMemcpy(buffer.address, data.data(), buffer.bytes, cudaMemcpyHostToDevice), "filling a buffer");
            }
        }
        for (auto const& table : mSchedule.tables) {
            auto& engine = mSchedule.engine(table.engine);
            if (!runs(engine)) {
                continue;
            }
            auto const data =
                readFile(mFolder / "tables" / (table.engine + ".bin"), table.start + place(engine) * table.bytes, table.bytes);
            auto* const address = hold(table.bytes, "allocating a table");
            check(cudaMemcpy(address, data.data(), table.bytes, cudaMemcpyHostToDevice), "filling a table");
            engine.tables[table.name] = address;
        }
        for (auto& engine : mSchedule.engines) {
            if (runs(engine)) {
                fill(engine);
            }
        }
        check(cudaDeviceSynchronize(), "filling buffers");  // a non-blocking stream waits for none of it
    }

    // Weights that lie beside an engine go to the GPU a piece at a time, and but once where another
    // engine has the same: a decoder's two do.
    void fill(Engine& engine) {
        size_t constexpr most{size_t{1} << 26};
        auto const path = (mFolder / fileOf(engine)).replace_extension(".weights");
        if (!std::filesystem::exists(path)) {
            checkInside(engine, path);
            return;
        }
        auto const outside = readOutside(path);
        for (auto const& weight : outside.weights) {
            auto const [found, made] = mWeights.try_emplace({weight.name, weight.bytes}, nullptr);
            engine.tables[weight.name] = found->second = made ? hold(weight.bytes, "allocating a weight") : found->second;
            for (size_t start = 0; made && start < weight.bytes; start += most) {
                auto const bytes = std::min(most, weight.bytes - start);
                auto const data = readFile(path, outside.first + weight.start + start, bytes);
                check(cudaMemcpy(static_cast<char*>(found->second) + start, data.data(), bytes, cudaMemcpyHostToDevice), "filling a weight");
            }
        }
        checkInside(engine, path);
    }

    // All weights that an engine reads as inputs must have come from the file.
    static void checkInside(Engine const& engine, std::filesystem::path const& path) {
        for (int32_t place = 0; place < engine.engine->getNbIOTensors(); ++place) {
            std::string const name{engine.engine->getIOTensorName(place)};
            if (name.rfind("weight.", 0) == 0 && engine.tables.count(name) == 0) {
                refuse(path.string() + " has no " + name + ", which its engine reads; build it again");
            }
        }
    }

    std::vector<double> play() {
        mWatch.phase("running ahead of the steps", mOptions.stepLimit);
        std::vector<double> seconds;
        auto start = Clock::now();
        issue(mSchedule.once);
        check(cudaStreamSynchronize(mStream), "running ahead of the steps");
        if (mSchedule.each.empty()) {
            return {std::chrono::duration<double>(Clock::now() - start).count()};
        }
        int const steps{mOptions.steps != 0 ? mOptions.steps : mSchedule.steps};
        for (int step = 0; step < steps; ++step) {
            mWatch.phase("step " + std::to_string(step), mOptions.stepLimit);
            start = Clock::now();
            if (mOptions.graph && step == 1) {
                cudaGraph_t recorded;
                check(cudaStreamBeginCapture(mStream, cudaStreamCaptureModeThreadLocal), "recording a step");
                issue(mSchedule.each);
                check(cudaStreamEndCapture(mStream, &recorded), "recording a step");
                check(cudaGraphInstantiate(&mGraph, recorded, 0), "preparing a graph");
                check(cudaGraphDestroy(recorded), "preparing a graph");
            }
            if (mGraph != nullptr) {
                check(cudaGraphLaunch(mGraph, mStream), "launching a step");
            } else {
                issue(mSchedule.each);
            }
            check(cudaStreamSynchronize(mStream), "running a step");
            seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
        }
        return seconds;
    }

    void issue(std::vector<Call> const& calls) {
        for (auto const& call : calls) {
            if (call.kind == "send") {
                send(call);
                continue;
            }
            if (call.kind == "copy") {
                check(cudaMemcpyAsync(mSchedule.buffers.at(call.target).address, mSchedule.buffers.at(call.source).address,
                          call.bytes, cudaMemcpyDeviceToDevice, mStream),
                    "copying");
                continue;
            }
            auto& engine = mSchedule.engine(call.engine);
            if (!runs(engine)) {
                continue;
            }
            for (auto const& bind : call.binds) {
                auto* base = static_cast<char*>(mSchedule.buffers.at(bind.buffer).address);
                bindTensor(engine, bind.tensor, base + bind.offset);
            }
            for (auto const& [name, address] : engine.tables) {
                bindTensor(engine, name, address);
            }
            if (!engine.context->enqueueV3(mStream)) {
                fail(call.engine + ": TensorRT did not start it");
            }
        }
    }

    // All messages of a turn at one time: a rank may send and receive.
    void send(Call const& call) {
        auto* const communicator = mCommunicators.at(everyone());
        check(ncclGroupStart(), "sending between stages");
        for (auto const& [from, to] : call.pairs) {
            if (from == mRank) {
                auto const* const source = mSchedule.buffers.at(call.source).address;
                check(ncclSend(source, call.bytes, ncclInt8, to, communicator, mStream), "sending to another stage");
            }
            if (to == mRank) {
                auto* const target = mSchedule.buffers.at(call.target).address;
                check(ncclRecv(target, call.bytes, ncclInt8, from, communicator, mStream), "receiving from another stage");
            }
        }
        check(ncclGroupEnd(), "sending between stages");
    }

    static void bindTensor(Engine const& engine, std::string const& tensor, void* address) {
        if (!engine.context->setTensorAddress(tensor.c_str(), address)) {
            fail(engine.name + ": its engine has no tensor " + tensor + ", or takes it from elsewhere: build it again");
        }
    }

    void save() {
        auto const& buffer = mSchedule.buffers.at(mSchedule.output);
        std::vector<char> data(buffer.bytes);
        check(cudaMemcpy(data.data(), buffer.address, buffer.bytes, cudaMemcpyDeviceToHost), "reading the output");
        std::filesystem::create_directories(mFolder / mOptions.results);
        auto const path = mFolder / mOptions.results / ("output.rank" + std::to_string(mRank) + ".bin");
        std::ofstream file{path, std::ios::binary};
        file.write(data.data(), static_cast<std::streamsize>(data.size()));
        file.close();
        if (!file) {
            fail(path.string() + ": cannot be written whole");
        }
    }

    // Graphs first, then contexts, then communicators: another order hangs. Then all that is left.
    void close() {
        mWatch.phase("closing", 60);
        if (mGraph != nullptr) {
            check(cudaGraphExecDestroy(mGraph), "releasing the graph");
        }
        for (auto& engine : mSchedule.engines) {
            engine.context.reset();
        }
        MPI_Barrier(MPI_COMM_WORLD);
        for (auto const& [group, communicator] : mCommunicators) {
            check(ncclCommDestroy(communicator), "closing NCCL");
        }
        mCommunicators.clear();
        mSchedule.engines.clear();
        mRuntime.reset();
        mHeld.clear();
        check(cudaStreamDestroy(mStream), "closing the stream");
        mWatch.phase("", 0);
    }

    Options mOptions;
    std::filesystem::path mFolder;
    int mRank;
    Watch mWatch;
    Schedule mSchedule;
    std::set<std::string> mOwn;  // buffers that this rank has
    bool mSends{false};
    Logger mLogger;
    std::unique_ptr<nvinfer1::IRuntime> mRuntime;
    std::map<std::vector<int>, ncclComm_t> mCommunicators;
    std::vector<std::unique_ptr<Memory>> mHeld;
    std::map<std::pair<std::string, size_t>, void*> mWeights;
    cudaStream_t mStream{nullptr};
    cudaGraphExec_t mGraph{nullptr};
};

}  // namespace

int main(int argc, char** argv) {
    MPI_Init(&argc, &argv);
    int rank{0}, world{1};
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world);
    try {
        Runner runner{readOptions(argc, argv), rank, world};
        runner.run();
    } catch (InputError const& error) {
        std::cerr << "runner: rank " << rank << ": " << error.what() << std::endl;
        MPI_Abort(MPI_COMM_WORLD, 2);
    } catch (std::exception const& error) {
        std::cerr << "runner: rank " << rank << ": " << error.what() << std::endl;
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    MPI_Finalize();
    return 0;
}
