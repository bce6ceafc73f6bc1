#include "train/log.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "files/json.h"
#include "kernels/ops.h"
#include "runtime/check.h"
#include "train/setup.h"

namespace teon {

namespace {

// Writes and flushes; false and errno where that fails, which is never an exception.
bool say(FILE* to, const std::string& text) {
    const bool done = std::fwrite(text.data(), 1, text.size(), to) == text.size() && std::fflush(to) == 0;
    if (!done) std::clearerr(to);
    return done;
}

nlohmann::json number(double x) { return std::isfinite(x) ? nlohmann::json(x) : nlohmann::json(); }

}  // namespace

MetricsFile::Opened MetricsFile::open(const std::string& path, int64_t step) {
    path_ = path;
    file_ = open_for_append(path);
    Opened opened;
    std::vector<int64_t> damaged;  // numbers of lines
    int64_t keep = 0;              // bytes
    std::string kept;              // the lines worth keeping, where some are not
    for (int pass = 0; pass < (damaged.empty() ? 1 : 2); ++pass) {
        std::ifstream in(path, std::ios::binary);
        int64_t number = 0;
        for (std::string line;
             std::getline(in, line) && !in.eof();) {  // at the end of the file: a line without its end
            ++number;
            nlohmann::json j;
            try {
                j = parse_json(line, path);
            } catch (const Error&) {  // damaged
            }
            if (!j.is_object() || !j.contains("step") || !j["step"].is_number_integer()) {
                if (pass == 0) damaged.push_back(number);
                continue;
            }
            if (j["step"].get<int64_t>() > step) break;
            opened.evaluated |= j["step"] == step && j.contains("kind") && j["kind"] == "eval";
            if (pass == 0)
                keep += static_cast<int64_t>(line.size()) + 1;
            else
                kept += line + "\n";
        }
    }
    if (damaged.empty()) {
        CHECK(::ftruncate(file_, keep) == 0, "{}: cannot be cut: {}", path, std::strerror(errno));
        return opened;
    }
    const std::string aside = fmt::format("{}.damaged-{}", path, step);
    write_file_atomically(aside, read_text(path, INT64_MAX));
    write_file_atomically(path, kept);
    file_ = open_for_append(path);
    opened.damage = fmt::format("{} of its lines cannot be read, the first is line {}; as it was, it is in {}",
                                damaged.size(), damaged[0], aside);
    return opened;
}

void MetricsFile::write(const nlohmann::json& line) {
    if (path_.empty()) return;
    const std::lock_guard lock(mutex_);
    unwritten_ += line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
    flush();
}

void MetricsFile::flush() {
    while (!unwritten_.empty()) {
        const ssize_t n = files_.write(file_, unwritten_.data(), unwritten_.size());
        if (n > 0) {
            unwritten_.erase(0, static_cast<size_t>(n));
        } else if (n == 0 || errno != EINTR) {
            error_ = n == 0 ? EIO : errno;
            if (!std::exchange(complained_, true))
                say(stderr,
                    fmt::format("{}: cannot be written, trying again later: {}\n", path_, std::strerror(error_)));
            return;
        }
    }
    complained_ = false;
}

void MetricsFile::sync() {
    if (path_.empty()) return;
    const std::lock_guard lock(mutex_);
    flush();
    CHECK(unwritten_.empty(), "{}: {} lines cannot be written: {}", path_,
          std::count(unwritten_.begin(), unwritten_.end(), '\n'), std::strerror(error_));
    CHECK(files_.sync(file_) == 0, "{}: cannot be made durable: {}", path_, std::strerror(errno));
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
    const std::string speed = count_text(m.tokens_per_s),
                      left = duration_text(static_cast<double>(total_ - m.step) * smoothed_ms_ / 1000);
    const bool due = m.step % log_every_ == 0 || m.step == total_;
    if (m.skip != 0 || (due && !live_.active())) {
        std::string mfu;
        if (peak_flops_ > 0) mfu = fmt::format(" | MFU {:.1f}%", 100 * flops_per_token_ * m.tokens_per_s / peak_flops_);
        note(fmt::format("step {:>{}}/{} | loss {:.4f} | norm {:.3f} | lr {:.2e} | {:.0f} ms | {} tok/s{} | ETA {}{}",
                         m.step, std::to_string(total_).size(), total_, m.loss, m.grad_norm, m.lr, m.ms, speed, mfu,
                         left,
                         m.skip == 0            ? ""
                         : m.skip == kSkipSpike ? " | update skipped: spike"
                                                : " | update skipped: not finite"));
    }
    if (live_.active())
        live_.show(static_cast<double>(m.step) / static_cast<double>(total_),
                   fmt::format("{}/{} | loss {:.4f} | {} tok/s | ETA {}", m.step, total_, m.loss, speed, left));
}

void Console::note(const std::string& text) {
    live_.hide();
    if (say(stdout, text + "\n")) return;
    const int error = errno;
    if (!std::exchange(complained_, true))
        say(stderr, fmt::format("standard output cannot be written ({}); the run goes on and is in its metrics.jsonl\n",
                                std::strerror(error)));
}

}  // namespace teon
