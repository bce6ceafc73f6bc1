// A child process that answers each line with a line.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/descriptor.h"

namespace teon {

// Starts the process; the destructor ends it. The process reads and writes one socket as its standard input and output,
// so it sees the end of its input if this program dies. Its standard error goes to /dev/null.
class LineServer {
public:
    // Starts the first of the commands (each a program and its arguments) that can be started. patience_s: seconds
    // after which a missing answer is an Error. Throws Error naming the program if none can be started.
    LineServer(const std::vector<std::vector<std::string>>& commands, double patience_s);
    ~LineServer();
    LineServer(LineServer&&) = delete;

    // Sends the line, which contains no line break, and returns the answer. Throws Error naming the command if the
    // process ends, closes the socket or does not answer in time; the server is then of no more use.
    std::string ask(const std::string& line);

private:
    int start(const std::vector<std::string>& command);
    void wait_for(short event);
    [[noreturn]] void fail(const std::string& what);

    std::string name_;  // the command, for messages
    double patience_s_;
    Descriptor socket_;
    pid_t process_ = -1;
    std::string received_;  // after the last answer
};

}  // namespace teon
