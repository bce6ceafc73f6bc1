// metrics.jsonl in the run's folder: a line per step, evaluation and event.
#pragma once

#include <cstdint>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/hash.h"
#include "checkpoint/checkpoint.h"
#include "files/file.h"
#include "files/file_ops.h"

namespace teon {

struct StepMetrics {
    int64_t step = 0;    // 1 = after the first update
    int64_t tokens = 0;  // seen so far
    double loss = 0;     // nats per token, mean of the step
    double grad_norm = 0;
    double lr = 0;
    double ms = 0;  // since the step before
    double tokens_per_s = 0;
    double data_wait_ms = 0;  // the host waited for the loader
    double comm_wait_ms = 0;  // backward was done, but not the exchange of gradients between ranks; of one rank 0
    double optimizer_ms = 0;
    int skip = 0;                        // kSkipNonfinite or kSkipSpike: there was no update
    int skipped_in_row = 0;              // this step included
    int faulty_rank = -1;                // of several ranks, the first whose own loss was not finite
    bool stop = false;                   // a rank asked all to stop (Trainer::request_stop)
    bool save = false;                   // or to save (Trainer::request_save)
    double loss_z = 0, grad_norm_z = 0;  // StepControl's
};

// An append-only file of one JSON object per line. A line is written by one write call, so that a kill leaves whole
// lines. NaN and infinities are written as null. Lines that cannot be written (the disk is full) are kept, and written
// as soon as that succeeds; the first failure is reported on standard error. Until open(), lines are dropped.
class MetricsFile {
public:
    explicit MetricsFile(FileOps& files = system_files()) : files_(files) {}
    struct Opened {
        bool evaluated = false;  // there is a line of an evaluation after `step`
        bool diagnosed = false;  // there are lines of --diagnose-every after `step`
        std::string damage;      // empty: none; else what is wrong, and where the whole log was kept
        std::string cut;         // empty: nothing; else how much was cut, and where it was kept
    };
    // Continues after the lines up to `step`. `saved` is where the checkpoint says that these end. Behind it,
    // everything from the first line of a later step, or an incomplete last line, is moved to the end of PATH.cut. If a
    // line before it is damaged, the whole log is copied to PATH.damaged-STEP, and the other lines are kept. Throws
    // Error naming the path.
    Opened open(const std::string& path, int64_t step, const std::optional<LogPosition>& saved = std::nullopt);
    // The end of the log, for a checkpoint; nullopt if the log is not open.
    std::optional<LogPosition> position();
    void write(const nlohmann::json& line);
    void write_lines(const std::vector<nlohmann::json>& lines);  // by one write call
    void write(const StepMetrics& m);
    void event(int64_t step, const std::string& name, const std::string& reason);
    // Makes every line so far durable. Throws Error naming the path and how many lines cannot be written. From any
    // thread.
    void sync();

private:
    void flush();  // with the mutex
    FileOps& files_;
    std::mutex mutex_;
    std::string path_, unwritten_;
    int64_t bytes_ = 0;  // of all lines, unwritten ones included
    Hash hash_;          // of them
    Descriptor file_;
    int error_ = 0;  // of the last write that failed
    bool complained_ = false;
};

}  // namespace teon
