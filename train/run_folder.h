// The folder of a run: one process writes it, and all ranks see the same one.
#pragma once

#include <chrono>
#include <string>

#include "files/file.h"
#include "runtime/context.h"

namespace teon {

// For so long a rank waits to see in the folder what rank 0 has written there: network file systems are asked anew only
// after a while.
constexpr std::chrono::seconds kSharedFolderPatience{10};

// Rank 0's. It exists before anything in the folder is read, and makes nothing until create().
class RunFolder {
public:
    // Takes the lock if the folder is there; whoever has it is named in the Error. Throws UsageError if the folder can
    // not be made, as far as that can be told.
    explicit RunFolder(const std::string& path);
    // Makes the folder and takes the lock, where that has not happened. A run that does not resume throws UsageError if
    // a checkpoint is there.
    void create(bool resumes);

private:
    void lock();
    std::string path_;
    Descriptor folder_, lock_;
};

// Called by all ranks once rank 0 has created the folder. Throws Error naming the rank and the folder where a rank does
// not see what rank 0 has there: a disk of its node.
void check_same_folder(const std::string& path, Context& context);

// On every rank, rank 0's text.
std::string text_of_rank_0(const std::string& text, Context& context);

}  // namespace teon
