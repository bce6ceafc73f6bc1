// A temporary folder, which is removed with its contents when the test ends, and functions for whole files.
#pragma once

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "test/support/catch.h"

namespace teon::test {

class TempDir {
public:
    TempDir() : path_((std::filesystem::temp_directory_path() / "teon-XXXXXX").string()) {
        if (!mkdtemp(path_.data())) throw Error("no folder can be made as " + path_);
    }
    ~TempDir() {
        std::error_code ignored;  // a destructor must not throw
        std::filesystem::remove_all(path_, ignored);
    }
    TempDir(TempDir&&) = delete;

    const std::string& path() const { return path_; }
    std::string operator/(const std::string& name) const { return path_ + "/" + name; }

private:
    std::string path_;
};

// Makes a file or folder unreadable for this process during the object's lifetime. If the process is root, it runs as
// another user meanwhile.
class Unreadable {
public:
    explicit Unreadable(std::string path) : path_(std::move(path)), user_(::geteuid()) {
        struct stat status;
        if (::stat(path_.c_str(), &status) != 0 || ::chmod(path_.c_str(), 0) != 0 ||
            (user_ == 0 && ::seteuid(65534) != 0))
            throw Error(path_ + " stays readable");
        mode_ = status.st_mode;
    }
    ~Unreadable() {
        if (::seteuid(user_) != 0 || ::chmod(path_.c_str(), mode_) != 0) std::abort();
    }
    Unreadable(Unreadable&&) = delete;

private:
    std::string path_;
    uid_t user_;
    mode_t mode_;
};

// Returns the message of the E that the call throws while the path is unreadable.
template <typename E = Error, typename F>
std::string error_of_unreadable(const std::string& path, F&& call) {
    const Unreadable denied(path);
    return error_of<E>(call);
}

inline void write_file(const std::string& path, const std::string& bytes) {
    std::ofstream out(path, std::ios::binary);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    if (!out.flush()) throw Error(path + " cannot be written");
}

inline std::string read_file(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
}

}  // namespace teon::test
