#include "train/log.h"

#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "kernels/ops.h"
#include "runtime/check.h"
#include "train/setup.h"

namespace teon {

namespace {

nlohmann::json number(double x) { return std::isfinite(x) ? nlohmann::json(x) : nlohmann::json(); }

}  // namespace

MetricsFile::MetricsFile(const std::string& path) : path_(path) {
    if (path.empty()) return;
    file_ = open_for_append(path);
    CHECK(::flock(file_.descriptor(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK,  // or there are no locks here
          "{}: another process is writing it", path);
}

bool MetricsFile::truncate_after(int64_t step) {
    if (path_.empty()) return false;
    std::ifstream in(path_, std::ios::binary);
    off_t keep = 0;
    bool evaluated = false;
    for (std::string line; std::getline(in, line) && !in.eof();) {  // at the end of the file: a line without its end
        const nlohmann::json j = nlohmann::json::parse(line, nullptr, false);
        if (!j.is_object() || j.value("step", int64_t{0}) > step) break;
        evaluated |= j.value("kind", "") == "eval" && j.value("step", int64_t{0}) == step;
        keep += static_cast<off_t>(line.size()) + 1;
    }
    CHECK(::ftruncate(file_.descriptor(), keep) == 0, "{}: cannot truncate: {}", path_, std::strerror(errno));
    return evaluated;
}

void MetricsFile::write(const nlohmann::json& line) {
    if (path_.empty()) return;
    unwritten_ += line.dump() + "\n";
    flush();
}

void MetricsFile::flush() {
    while (!unwritten_.empty()) {
        const ssize_t n = ::write(file_.descriptor(), unwritten_.data(), unwritten_.size());
        if (n > 0) {
            unwritten_.erase(0, static_cast<size_t>(n));
        } else if (errno != EINTR) {
            if (!std::exchange(complained_, true))
                fmt::print(stderr, "{}: cannot write, trying again later: {}\n", path_, std::strerror(errno));
            return;
        }
    }
    complained_ = false;
}

void MetricsFile::write(const StepMetrics& m) {
    write(nlohmann::ordered_json{{"kind", "step"},
                                 {"step", m.step},
                                 {"tokens", m.tokens},
                                 {"loss", number(m.loss)},
                                 {"grad_norm", number(m.grad_norm)},
                                 {"lr", number(m.lr)},
                                 {"ms", number(m.ms)},
                                 {"tokens_per_s", number(m.tokens_per_s)},
                                 {"data_wait_ms", number(m.data_wait_ms)},
                                 {"comm_wait_ms", number(m.comm_wait_ms)},
                                 {"optimizer_ms", number(m.optimizer_ms)},
                                 {"loss_z", number(m.loss_z)},
                                 {"grad_norm_z", number(m.grad_norm_z)}});
}

void MetricsFile::event(int64_t step, const std::string& name, const std::string& reason) {
    write(nlohmann::ordered_json{{"kind", "event"}, {"step", step}, {"event", name}, {"reason", reason}});
}

std::string profile_table(const Profile& profile, int64_t steps, size_t most) {
    const double n = static_cast<double>(steps);
    double inside = 0, rest = 0;
    for (const Profile::Row& row : profile.rows) inside += row.ms;
    std::string table = fmt::format("{:>7} {:>10} {:>11} {:>9}\n", "share", "ms/step", "calls/step", "GFLOP/s");
    auto line = [&](double ms, const std::string& calls, const std::string& speed, const std::string& what) {
        table +=
            fmt::format("{:>6.1f}% {:>10.3f} {:>11} {:>9}  {}\n", 100 * ms / profile.ms, ms / n, calls, speed, what);
    };
    for (size_t i = 0; i < profile.rows.size(); ++i) {
        const Profile::Row& row = profile.rows[i];
        if (i < most) {
            line(row.ms, fmt::format("{:.4g}", static_cast<double>(row.calls) / n),
                 row.flops > 0 ? fmt::format("{:.0f}", row.flops / row.ms / 1e6) : "", row.name);
        } else {
            rest += row.ms;
        }
    }
    if (rest > 0) line(rest, "", "", fmt::format("{} others", profile.rows.size() - most));
    line(profile.ms - inside, "", "", "outside of all: copies, waiting, the host");
    return table;
}

std::string duration_text(double seconds) {
    const int64_t s = static_cast<int64_t>(std::llround(seconds));
    if (s >= 3600) return fmt::format("{}h{:02}m", s / 3600, s / 60 % 60);
    if (s >= 60) return fmt::format("{}m{:02}s", s / 60, s % 60);
    return fmt::format("{}s", s);
}

Console::Console(int64_t total_steps, int64_t log_every, double flops_per_token, double peak_flops)
    : total_(total_steps), log_every_(log_every), flops_per_token_(flops_per_token), peak_flops_(peak_flops) {}

void Console::step(const StepMetrics& m) {
    smoothed_ms_ = smoothed_ms_ == 0 ? m.ms : 0.95 * smoothed_ms_ + 0.05 * m.ms;
    if (m.step % log_every_ != 0 && m.step != total_ && m.skip == 0) return;
    std::string mfu;
    if (peak_flops_ > 0) mfu = fmt::format(" | MFU {:.1f}%", 100 * flops_per_token_ * m.tokens_per_s / peak_flops_);
    fmt::print("step {:>{}}/{} | loss {:.4f} | norm {:.3f} | lr {:.2e} | {:.0f} ms | {} tok/s{} | ETA {}{}\n", m.step,
               std::to_string(total_).size(), total_, m.loss, m.grad_norm, m.lr, m.ms, count_text(m.tokens_per_s), mfu,
               duration_text(static_cast<double>(total_ - m.step) * smoothed_ms_ / 1000),
               m.skip == 0            ? ""
               : m.skip == kSkipSpike ? " | update skipped: spike"
                                      : " | update skipped: not finite");
    std::fflush(stdout);
}

void Console::note(const std::string& text) {
    fmt::print("{}\n", text);
    std::fflush(stdout);
}

void create_run_folder(const std::string& folder, bool resume) {
    std::error_code error;
    CHECK_USAGE(resume || !std::filesystem::exists(std::filesystem::path(folder) / "metrics.jsonl", error),
                "--out {}: already holds a run; name another folder, or continue it with --resume", folder);
    std::filesystem::create_directories(folder, error);
    CHECK_USAGE(!error && ::access(folder.c_str(), W_OK) == 0, "--out {}: cannot be written: {}", folder,
                error ? error.message() : std::strerror(errno));
}

}  // namespace teon
