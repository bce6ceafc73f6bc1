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

// Returns f(), which reads files that a flag names. An Error about their content becomes a UsageError.
template <typename F>
auto refusing_as_usage(F f) {
    try {
        return f();
    } catch (const ReadError&) { throw; } catch (const Error& error) {
        throw UsageError(error.what());
    }
}

// A regular file opened for reading. Symbolic links are followed because published checkpoints are often links into a
// cache.
class InputFile {
public:
    explicit InputFile(const std::string& path);  // throws UsageError naming the path and the fault, or ReadError
    const std::string& path() const { return path_; }
    int64_t bytes() const { return bytes_; }  // size when it was opened
    // out (bytes) = bytes [offset, offset + bytes). Throws ReadError naming the path if the system cannot read them,
    // Error if the file ends earlier.
    void read(void* out, int64_t bytes, int64_t offset) const;

private:
    std::string path_;
    Descriptor file_;
    int64_t bytes_ = 0;
};

// Returns the content of a file. Throws as InputFile, and UsageError if the file has more than max_bytes.
std::string read_text(const std::string& path, int64_t max_bytes);

// Returns 16 hexadecimal digits that identify a file's content but cost reading only about 1 MiB: XXH3 of the size and
// of 16 evenly spread pieces, including the beginning and the end. A file of at most 1 MiB is read whole. Throws as
// InputFile.
std::string sampled_hash(const std::string& path);

// Whether there is something at the path, or a folder; false also if it cannot be looked up.
bool path_exists(const std::string& path);
bool is_folder(const std::string& path);

// Returns the sorted names of a folder's entries that are not hidden (other systems leave ._NAME beside a file), none
// if the folder does not exist. Sets `error` if it cannot be read.
std::vector<std::string> names_in(const std::string& folder, std::error_code& error);

// Opens a regular file for appending; creates it if it is missing. Refuses a symbolic link. Throws Error naming the
// path.
Descriptor open_for_append(const std::string& path);

// Writes all of `data`, or throws Error naming the path.
void write_all(const Descriptor& file, const void* data, size_t bytes, const std::string& path);

// Replaces the whole file or leaves it unchanged: writes a temporary file beside it, syncs it and renames it. Throws
// Error naming the path.
void write_file_atomically(const std::string& path, const std::string& content);

}  // namespace teon
