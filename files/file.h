// Opening, reading and replacing files. A pipe, device or folder is refused when it is opened, so nothing hangs.
// Created files are always new; the target of a link is never overwritten.
#pragma once

#include <cstdint>
#include <string>
#include <system_error>
#include <vector>

#include "base/check.h"
#include "base/descriptor.h"

namespace teon {

// The system could not read a file (an I/O error, no free descriptors, no permission). Its content may be right.
struct ReadError : Error {
    using Error::Error;
};

// f(), for files that a flag names: faults of their content become UsageError.
template <typename F>
auto refusing_as_usage(F f) {
    try {
        return f();
    } catch (const ReadError&) { throw; } catch (const Error& error) {
        throw UsageError(error.what());
    }
}

// A regular file that is read. Symbolic links are followed: published checkpoints are often links into a cache.
class InputFile {
public:
    explicit InputFile(const std::string& path);  // throws UsageError naming the path and the fault, or ReadError
    const std::string& path() const { return path_; }
    int64_t bytes() const { return bytes_; }  // size when it was opened
    // out (bytes) = bytes [offset, offset + bytes). Throws ReadError naming the path if the system cannot read them,
    // Error if the file ends before.
    void read(void* out, int64_t bytes, int64_t offset) const;

private:
    std::string path_;
    Descriptor file_;
    int64_t bytes_ = 0;
};

// The whole file. Throws UsageError naming the path, also if it has more than max_bytes; Error if reading it fails.
std::string read_text(const std::string& path, int64_t max_bytes);

std::string sha256_of_file(const std::string& path);  // in hexadecimal; throws as InputFile

// 16 hexadecimal digits that identify a file's content and cost reading at most 1 MiB: XXH3 of the size and of 16
// evenly spread pieces, beginning and end included. A file of at most 1 MiB is read whole. Throws as InputFile.
std::string sampled_hash(const std::string& path);

// Returns the sorted names of a folder's entries, none if the folder does not exist. Sets `error` if it cannot be read.
std::vector<std::string> names_in(const std::string& folder, std::error_code& error);

// A regular file to append to, created if it is missing; a symbolic link is refused. Throws Error naming the path.
Descriptor open_for_append(const std::string& path);

// Throws Error naming the path unless all of data was written.
void write_all(const Descriptor& file, const void* data, size_t bytes, const std::string& path);

// Writes the whole file or leaves it unchanged: a temporary file beside it, fsync, rename. Throws Error naming the
// path.
void write_file_atomically(const std::string& path, const std::string& content);

}  // namespace teon
