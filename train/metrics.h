// metrics.jsonl in the run's folder: a line per step, evaluation and event.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "base/hash.h"
#include "checkpoint/checkpoint.h"
#include "files/file.h"
#include "files/file_ops.h"
#include "files/json.h"

namespace teon {

struct StepMetrics {
    int64_t step = 0;    // 1 = after the first update
    int64_t tokens = 0;  // seen so far
    double loss = 0;     // nats per token, mean of the step
    double grad_norm = 0;
    double lr = 0;
    double ms = 0;  // of the step on the device
    double tokens_per_s = 0;
    double data_wait_ms = 0;  // the host's wait for the loader
    double comm_wait_ms = 0;  // from the end of the backward pass to that of the exchange of gradients; 0 with one rank
    double optimizer_ms = 0;
    int skip = 0;                        // kSkipNonfinite or kSkipSpike if the update was skipped, else 0
    int skipped_in_row = 0;              // consecutive skipped updates, this step's included
    int faulty_rank = -1;                // of several ranks, the first whose own loss was not finite; -1: none
    bool stop = false;                   // a rank asked all ranks to stop (Trainer::request_stop)
    bool save = false;                   // a rank asked all ranks to save (Trainer::request_save)
    double loss_z = 0, grad_norm_z = 0;  // StepControl's
};

// A line of an evaluation. loss: NaN if it was not finite.
struct LoggedEvaluation {
    int64_t step = 0;
    double loss = 0;
};

// An append-only file of one JSON object per line, to each of which it adds "time", seconds since 1970. One write call
// writes a line, so that a kill leaves whole lines. NaN and infinities become null. If lines cannot be written (the
// disk is full), keeps them, tries again with each later line or sync(), and reports the first failure on standard
// error. Drops lines until open().
class MetricsFile {
public:
    explicit MetricsFile(FileOps& files = system_files()) : files_(files) {}
    struct Opened {
        std::vector<LoggedEvaluation> evaluations;  // up to `step`, in order
        bool evaluated = false;                     // there is a line of an evaluation after `step`
        bool diagnosed = false;                     // there are lines of --diagnose-every after `step`
        std::string cut;                            // how much was cut, and where it was kept; empty: nothing
    };
    // Opens the log to continue it after the lines up to `step`. saved: the end of the log when the checkpoint of
    // `step` was made. After that position, moves everything from the first line on that is of a later step, incomplete
    // or cannot be read to the end of PATH.cut. Throws Error naming the path if the log before it has changed, unless
    // it is empty.
    Opened open(const std::string& path, int64_t step, const std::optional<LogPosition>& saved = std::nullopt);
    // Returns the end of the log, for a checkpoint, or nullopt if the log is not open.
    std::optional<LogPosition> position();
    void write(const Json& line);
    void write_lines(const std::vector<Json>& lines);  // by one write call
    void write(const StepMetrics& m);
    void event(int64_t step, const std::string& name, const std::string& reason);
    // Makes every line so far durable. Throws Error naming the path and how many lines cannot be written. May be called
    // from any thread.
    void sync();

private:
    void flush();  // the caller holds mutex_
    FileOps& files_;
    std::mutex mutex_;
    std::string path_, unwritten_;
    int64_t bytes_ = 0;  // of all lines, including unwritten ones
    Hash hash_;          // of the same lines
    Descriptor file_;
    int error_ = 0;  // errno of the last write that failed
    bool complained_ = false;
};

}  // namespace teon
