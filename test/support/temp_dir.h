// A folder of a test's own, removed with all that is in it when the test ends.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>

#include "base/check.h"

namespace teon::test {

class TempDir {
public:
    TempDir() : path_((std::filesystem::temp_directory_path() / "teon-XXXXXX").string()) {
        if (!mkdtemp(path_.data())) throw Error("no folder can be made as " + path_);  // CHECK is Catch's here
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

}  // namespace teon::test
