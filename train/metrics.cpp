#include "train/metrics.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include "base/check.h"
#include "files/json.h"

namespace teon {

namespace {

Json number(double x) { return std::isfinite(x) ? Json(x) : Json(); }

double seconds_since_1970() {
    using namespace std::chrono;
    return static_cast<double>(floor<milliseconds>(system_clock::now()).time_since_epoch().count()) / 1000;
}

struct LogLine {
    size_t end = 0;            // one past its last byte
    int64_t step = INT64_MAX;  // also of a line that cannot be read
    std::string kind;
    double val_loss = std::nan("");
};

LogLine line_at(size_t begin, size_t end, const std::string& text, const std::string& path) {
    LogLine line;
    line.end = end;
    try {
        const Json j = parse_json(std::string_view(text).substr(begin, end - begin), path);
        line.step = j["step"].get<int64_t>();
        line.kind = j["kind"].get<std::string>();
        if (j["val_loss"].is_number()) line.val_loss = j["val_loss"].get<double>();
    } catch (const std::exception&) {  // as after a power failure
        line.step = INT64_MAX;
    }
    return line;
}

// Returns the lines that a run continues after `step`: those within the first `saved` bytes, and after these the ones
// before the first that is of a later step, incomplete or cannot be read.
std::vector<LogLine> lines_up_to(int64_t step, size_t saved, const std::string& text, const std::string& path) {
    std::vector<LogLine> lines;
    size_t begin = 0;
    size_t newline = text.find('\n');
    while (newline != std::string::npos) {
        LogLine line = line_at(begin, newline + 1, text, path);
        if (line.end > saved && line.step > step) break;
        begin = line.end;
        lines.push_back(std::move(line));
        newline = text.find('\n', begin);
    }
    return lines;
}

}  // namespace

MetricsFile::Opened MetricsFile::open(const std::string& path, int64_t step, const std::optional<LogPosition>& saved) {
    path_ = path;
    file_ = open_for_append(path);
    const std::string text = read_text(path, INT64_MAX);
    const auto saved_bytes = static_cast<size_t>(saved && !text.empty() ? saved->bytes : 0);
    CHECK(
        saved_bytes == 0 || (text.size() >= saved_bytes && hash_of(text.substr(0, saved_bytes)) == saved->xxh3),
        "{}: is damaged: its first {} bytes are not those of the checkpoint of step {}; restore it, or move it away to "
        "continue with a new log",
        path, saved_bytes, step);
    Opened opened;
    size_t end = 0;
    for (const LogLine& line : lines_up_to(step, saved_bytes, text, path)) {
        end = line.end;
        if (line.kind == "eval") opened.evaluations.push_back({line.step, line.val_loss});
        opened.evaluated |= line.kind == "eval" && line.step == step;
        opened.diagnosed |= line.kind == "diagnose" && line.step == step;
    }
    if (end < text.size()) {
        const std::string aside = path + ".cut";
        write_all(open_for_append(aside), text.data() + end, text.size() - end, aside);
        opened.cut = fmt::format("{} bytes of later steps were moved to {}", text.size() - end, aside);
        CHECK(::ftruncate(file_, static_cast<off_t>(end)) == 0, "{}: cannot be cut: {}", path, std::strerror(errno));
    }
    bytes_ = static_cast<int64_t>(end);
    hash_.update(text.data(), end);
    return opened;
}

std::optional<LogPosition> MetricsFile::position() {
    if (path_.empty()) return std::nullopt;
    const std::lock_guard lock(mutex_);
    return LogPosition{bytes_, hash_.digest()};
}

void MetricsFile::write(const Json& line) { write_lines({line}); }

void MetricsFile::write_lines(const std::vector<Json>& lines) {
    if (path_.empty()) return;
    const std::lock_guard lock(mutex_);
    std::string text;
    for (Json line : lines) {
        line["time"] = seconds_since_1970();
        text += json_text(line, {.any_bytes = true}) + "\n";
    }
    hash_.update(text.data(), text.size());
    bytes_ += std::ssize(text);
    unwritten_ += text;
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
                std::fputs(fmt::format("{}: cannot be written, trying again later: {}\n", path_, std::strerror(error_))
                               .c_str(),
                           stderr);
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
    write(Json{{"kind", "step"},
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
    write(Json{{"kind", "event"}, {"step", step}, {"event", name}, {"reason", reason}});
}

}  // namespace teon
