#include "train/console.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/text.h"
#include "kernels/step_control.h"

namespace teon {

Console::Console(int64_t total_steps, int64_t log_every, double peak_tokens_per_s)
    : total_(total_steps), log_every_(log_every), peak_tokens_per_s_(peak_tokens_per_s) {}

void Console::step(const StepMetrics& m) {
    smoothed_ms_ = smoothed_ms_ == 0 ? m.ms : 0.95 * smoothed_ms_ + 0.05 * m.ms;
    const std::string speed = count_text(m.tokens_per_s);
    const std::string remaining_time = duration_text(static_cast<double>(total_ - m.step) * smoothed_ms_ / 1000);
    const bool due = m.step % log_every_ == 0 || m.step == total_;
    if (m.skip != 0 || (due && !live_.active())) {
        std::string mfu;
        std::string skip;
        if (peak_tokens_per_s_ > 0) mfu = fmt::format(" | MFU {:.1f}%", 100 * m.tokens_per_s / peak_tokens_per_s_);
        if (m.skip != 0)
            skip = m.skip == kSkipSpike ? " | update skipped: spike" : " | update skipped: not finite, or above 1.8e19";
        note(fmt::format("step {:>{}}/{} | loss {:.4f} | norm {:.3f} | lr {:.2e} | {:.0f} ms | {} tok/s{} | ETA {}{}",
                         m.step, std::to_string(total_).size(), total_, m.loss, m.grad_norm, m.lr, m.ms, speed, mfu,
                         remaining_time, skip));
    }
    if (live_.active())
        live_.show(
            static_cast<double>(m.step) / static_cast<double>(total_),
            fmt::format("{}/{} | loss {:.4f} | {} tok/s | ETA {}", m.step, total_, m.loss, speed, remaining_time));
}

void Console::note(const std::string& text) {
    live_.hide();
    const std::string line = text + "\n";
    if (std::fwrite(line.data(), 1, line.size(), stdout) == line.size() && std::fflush(stdout) == 0) return;
    const int error = errno;
    std::clearerr(stdout);
    if (!std::exchange(complained_, true))
        std::fputs(fmt::format("standard output cannot be written ({}); the run goes on and is in its metrics.jsonl\n",
                               std::strerror(error))
                       .c_str(),
                   stderr);
}

std::string profile_table(const Profile& profile, int64_t steps, size_t max_rows) {
    const double n = static_cast<double>(steps);
    double inside = 0;
    double rest = 0;
    for (const Profile::Row& row : profile.rows) inside += row.ms;
    std::string table = fmt::format("{:>7} {:>10} {:>11} {:>9}\n", "share", "ms/step", "calls/step", "GFLOP/s");
    auto line = [&](double ms, const std::string& calls, const std::string& speed, const std::string& what) {
        table +=
            fmt::format("{:>6.1f}% {:>10.3f} {:>11} {:>9}  {}\n", 100 * ms / profile.ms, ms / n, calls, speed, what);
    };
    for (size_t i = 0; i < profile.rows.size(); ++i) {
        const Profile::Row& row = profile.rows[i];
        if (i < max_rows) {
            line(row.ms, fmt::format("{:.4g}", static_cast<double>(row.calls) / n),
                 row.flops > 0 ? fmt::format("{:.0f}", row.flops / row.ms / 1e6) : "", row.name);
        } else {
            rest += row.ms;
        }
    }
    if (rest > 0) line(rest, "", "", fmt::format("{} others", profile.rows.size() - max_rows));
    line(profile.ms - inside, "", "", "outside of all: copies, waiting, the host");
    return table;
}

}  // namespace teon
