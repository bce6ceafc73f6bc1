// The file operations of a save, as virtual functions, so that tests can make each of them fail.
#pragma once

#include <sys/types.h>
#include <cstddef>
#include <string>

namespace teon {

// Each function returns -1 and sets errno on failure, as a system call does. The base class calls the system.
class FileOps {
public:
    virtual ~FileOps() = default;
    virtual int make_folder(const std::string& path);
    virtual int create(const std::string& path);                      // opens a new file for writing
    virtual ssize_t write(int file, const void* data, size_t bytes);  // may write less, like write(2)
    virtual int sync(int file);
    virtual int close(int file);
    // Syncs an existing folder, and thereby the names in it. Succeeds if its file system syncs no folders (SMB, some of
    // FUSE and 9p), where a rename is as durable as they make it.
    virtual int sync_folder(const std::string& path);
    virtual int rename(const std::string& from, const std::string& to);
    virtual int link(const std::string& target, const std::string& path);  // a new symbolic link
    virtual int remove_folder(const std::string& path);                    // with its contents; 0 if it does not exist
};

FileOps& system_files();

}  // namespace teon
