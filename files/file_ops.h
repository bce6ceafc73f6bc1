// The file operations of a save, as virtual functions, so that tests can make each of them fail.
#pragma once

#include <sys/types.h>
#include <cstddef>
#include <string>

namespace teon {

// As the system calls of the same name: -1 and errno on failure. The default implementation calls them.
class FileOps {
public:
    virtual ~FileOps() = default;
    virtual int make_folder(const std::string& path);
    virtual int create(const std::string& path);                      // for writing; the file must not exist
    virtual ssize_t write(int file, const void* data, size_t bytes);  // may write less, as write(2)
    virtual int sync(int file);
    virtual int close(int file);
    virtual int sync_path(const std::string& path);  // of a folder or file that exists
    virtual int rename(const std::string& from, const std::string& to);
    virtual int remove_folder(const std::string& path);  // with its contents; 0 if it does not exist
};

FileOps& system_files();

}  // namespace teon
