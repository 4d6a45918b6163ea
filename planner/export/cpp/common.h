// What the builder and the runner of an exported folder share.
#pragma once

#include <NvInfer.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <stdexcept>
#include <string>

// What was given cannot be right: exit code 2.
class InputError : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

[[noreturn]] inline void fail(std::string const& what) { throw std::runtime_error(what); }

[[noreturn]] inline void refuse(std::string const& what) { throw InputError(what); }

class Logger : public nvinfer1::ILogger {
public:
    void log(Severity severity, char const* message) noexcept override {
        if (severity <= Severity::kERROR) {
            std::cerr << "TensorRT: " << message << std::endl;
        }
    }
};

// A file as memory whose pages the system may drop; `made` says how it comes to be.
class Mapped {
public:
    Mapped(std::filesystem::path const& path, std::string const& made) {
        int const file{open(path.c_str(), O_RDONLY)};
        struct stat status {};
        if (file < 0 || fstat(file, &status) != 0 || status.st_size == 0) {
            refuse("cannot read " + path.string() + " (" + made + ")");
        }
        mSize = static_cast<size_t>(status.st_size);
        mData = mmap(nullptr, mSize, PROT_READ, MAP_PRIVATE, file, 0);
        ::close(file);
        if (mData == MAP_FAILED) {
            fail("cannot map " + path.string());
        }
    }
    ~Mapped() { munmap(mData, mSize); }
    Mapped(Mapped const&) = delete;
    Mapped& operator=(Mapped const&) = delete;

    void const* data() const { return mData; }
    size_t size() const { return mSize; }

private:
    void* mData{nullptr};
    size_t mSize{0};
};
