#include "files/file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "base/hash.h"

namespace teon {

namespace {

// Returns whether the path is wrong. Otherwise a file may be there that the system cannot open.
bool names_no_file(int error) {
    return error == ENOENT || error == ENOTDIR || error == ELOOP || error == ENAMETOOLONG || error == ENXIO ||
           error == ENODEV;
}

}  // namespace

// Without O_NONBLOCK, opening a pipe would wait for its other end.
InputFile::InputFile(const std::string& path)
    : path_(path), file_(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)) {
    if (file_ < 0 && !names_no_file(errno))
        throw ReadError(fmt::format("{}: cannot be opened: {}", path, std::strerror(errno)));
    CHECK_USAGE(file_ >= 0, "{}: cannot be opened: {}", path, std::strerror(errno));
    struct stat status;
    if (::fstat(file_, &status) != 0)
        throw ReadError(fmt::format("{}: cannot be examined: {}", path, std::strerror(errno)));
    CHECK_USAGE(!S_ISDIR(status.st_mode), "{}: is a directory, expected a file", path);
    CHECK_USAGE(S_ISREG(status.st_mode), "{}: is not a regular file", path);
    bytes_ = status.st_size;
}

void InputFile::read(void* out, int64_t bytes, int64_t offset) const {
    for (char* p = static_cast<char*>(out); bytes > 0;) {
        const ssize_t n = ::pread(file_, p, static_cast<size_t>(bytes), offset);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) throw ReadError(fmt::format("{}: cannot be read: {}", path_, std::strerror(errno)));
        CHECK(n > 0, "{}: ends at byte {}, {} more were expected", path_, offset, bytes);
        p += n;
        offset += n;
        bytes -= n;
    }
}

std::string read_text(const std::string& path, int64_t max_bytes) {
    const InputFile file(path);
    CHECK_USAGE(file.bytes() <= max_bytes, "{}: {} bytes, more than the {} that such a file may have", path,
                file.bytes(), max_bytes);
    std::string text(static_cast<size_t>(file.bytes()), '\0');
    file.read(text.data(), file.bytes(), 0);
    return text;
}

std::string sampled_hash(const std::string& path) {
    constexpr int64_t kPieces = 16;
    constexpr int64_t kBytes = 64 << 10;
    const InputFile file(path);
    const int64_t size = file.bytes();
    const int64_t pieces = size > kPieces * kBytes ? kPieces : 1;
    Hash hash;
    hash.update(&size, sizeof size);
    std::vector<char> piece(static_cast<size_t>(pieces > 1 ? kBytes : size));
    for (int64_t i = 0; i < pieces; ++i) {
        file.read(piece.data(), std::ssize(piece), pieces > 1 ? (size - kBytes) / (kPieces - 1) * i : 0);
        hash.update(piece.data(), piece.size());
    }
    if (pieces > 1) {  // the end, which rounding may omit
        file.read(piece.data(), kBytes, size - kBytes);
        hash.update(piece.data(), piece.size());
    }
    return fmt::format("{:016x}", hash.digest());
}

bool path_exists(const std::string& path) {
    std::error_code error;
    return std::filesystem::exists(path, error);
}

bool is_folder(const std::string& path) {
    std::error_code error;
    return std::filesystem::is_directory(path, error);
}

std::vector<std::string> names_in(const std::string& folder, std::error_code& error) {
    std::vector<std::string> names;
    std::filesystem::directory_iterator entry(folder, error);
    for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error))
        if (std::string name = entry->path().filename().string(); !name.starts_with('.'))
            names.push_back(std::move(name));
    if (error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory) error.clear();
    std::sort(names.begin(), names.end());
    return names;
}

Descriptor open_for_append(const std::string& path) {
    Descriptor file(
        ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0644));
    CHECK(file >= 0, "{}: cannot be opened for writing: {}", path,
          errno == ELOOP ? "it is a symbolic link" : std::strerror(errno));
    struct stat status;
    CHECK(::fstat(file, &status) == 0 && S_ISREG(status.st_mode), "{}: is not a regular file", path);
    return file;
}

void write_all(const Descriptor& file, const void* data, size_t bytes, const std::string& path) {
    for (const char* p = static_cast<const char*>(data); bytes > 0;) {
        const ssize_t n = ::write(file, p, bytes);
        if (n < 0 && errno == EINTR) continue;
        CHECK(n > 0, "{}: cannot be written: {}", path, n < 0 ? std::strerror(errno) : "no bytes were taken");
        p += n;
        bytes -= static_cast<size_t>(n);
    }
}

void write_file_atomically(const std::string& path, const std::string& content) {
    struct stat status;
    CHECK(::lstat(path.c_str(), &status) != 0 || S_ISREG(status.st_mode) || S_ISLNK(status.st_mode),
          "{}: is not a regular file, and is not replaced by one", path);
    const std::string temporary = path + ".tmp";
    ::unlink(temporary.c_str());  // left by a killed run; if this fails, open() reports why
    const Descriptor file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
    CHECK(file >= 0, "{}: cannot be created: {}", temporary, std::strerror(errno));
    try {
        write_all(file, content.data(), content.size(), temporary);
        CHECK(::fsync(file) == 0, "{}: cannot be written: {}", temporary, std::strerror(errno));
        CHECK(::rename(temporary.c_str(), path.c_str()) == 0, "{}: cannot be replaced: {}", path, std::strerror(errno));
    } catch (...) {
        ::unlink(temporary.c_str());
        throw;
    }
}

}  // namespace teon
