// The folder of a run: one process writes it, and all ranks see the same folder.
#pragma once

#include <functional>
#include <string>

#include "files/file.h"
#include "files/json.h"
#include "runtime/context.h"

namespace teon {

// Waits until visible() returns true for what rank 0 wrote in the folder: network file systems cache what they last
// read. Returns false after 10 seconds.
bool becomes_visible(const std::function<bool()>& visible);

// Rank 0's hold on the folder. Construct it before anything in the folder is read. Until create() it writes nothing but
// the lock file.
class RunFolder {
public:
    // Throw UsageError if the folder evidently cannot be created or written, or holds other files but no run; or if it
    // holds a checkpoint. Both write nothing.
    static void check(const std::string& path);
    static void check_new(const std::string& path);
    // Checks the folder and locks it if it exists. Throws Error naming the process that holds the lock.
    explicit RunFolder(const std::string& path);
    // Creates and locks the folder unless the constructor locked it. Throws UsageError if it holds a checkpoint and the
    // run does not resume.
    void create(bool resumes);

private:
    void lock();
    std::string path_;
    Descriptor folder_, lock_;
};

// Replaces RUN/status.json, for programs that ask how a run ended:
//   state    running (also of a run that was killed), stopped (it has saved; --resume continues it), finished (its last
//            step, or --patience) or failed
//   step     steps done
//   steps    steps of the whole run
//   reason   why it stopped or failed, or ""
// Throws Error.
void write_status(const std::string& folder, const Json& status);

// Call it on all ranks after rank 0 has created the folder. Throws Error naming a rank that sees a different folder at
// this path, such as one on a disk of its own machine.
void check_same_folder(const std::string& path, Context& context);

}  // namespace teon
