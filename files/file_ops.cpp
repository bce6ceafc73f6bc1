#include "files/file_ops.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

namespace teon {

int FileOps::make_folder(const std::string& path) { return ::mkdir(path.c_str(), 0755); }

int FileOps::create(const std::string& path) {
    return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
}

ssize_t FileOps::write(int file, const void* data, size_t bytes) { return ::write(file, data, bytes); }

int FileOps::sync(int file) { return ::fsync(file); }

int FileOps::close(int file) { return ::close(file); }

int FileOps::sync_folder(const std::string& path) {
    const int file = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (file < 0) return -1;
    errno = 0;
    const int status = ::fsync(file);
    const int error = errno;
    ::close(file);
    errno = error;
    const bool unsupported = error == EINVAL || error == ENOTSUP || error == ENOSYS;
    return unsupported ? 0 : status;
}

int FileOps::rename(const std::string& from, const std::string& to) { return ::rename(from.c_str(), to.c_str()); }

int FileOps::link(const std::string& target, const std::string& path) {
    return ::symlink(target.c_str(), path.c_str());
}

int FileOps::remove_folder(const std::string& path) {
    std::error_code error;
    std::filesystem::remove_all(path, error);
    errno = error.value();
    return error ? -1 : 0;
}

FileOps& system_files() {
    static FileOps files;
    return files;
}

}  // namespace teon
