#include "train/metrics.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/check.h"
#include "files/json.h"

namespace teon {

namespace {

nlohmann::json number(double x) { return std::isfinite(x) ? nlohmann::json(x) : nlohmann::json(); }

LoggedEvaluation evaluation_of(const nlohmann::json& line) {
    const nlohmann::json loss = line.value("val_loss", nlohmann::json());
    return {line["step"].get<int64_t>(), loss.is_number() ? loss.get<double>() : std::nan("")};
}

}  // namespace

MetricsFile::Opened MetricsFile::open(const std::string& path, int64_t step, const std::optional<LogPosition>& saved) {
    path_ = path;
    file_ = open_for_append(path);
    const std::string text = read_text(path, INT64_MAX);
    const size_t known = saved ? static_cast<size_t>(saved->bytes) : 0;  // what was there when the checkpoint was made
    Opened opened;
    std::vector<int64_t> damaged;  // numbers of lines
    std::string kept;
    size_t begin = 0;  // of a line; at last of what is cut
    int64_t number = 0;
    for (size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
        ++number;
        const std::string line = text.substr(begin, end + 1 - begin);
        nlohmann::json j;
        try {
            j = parse_json(line, path);
        } catch (const Error&) {  // damaged
        }
        const bool good = j.is_object() && j.contains("step") && j["step"].is_number_integer();
        const bool later = good && j["step"].get<int64_t>() > step;
        if (later && end >= known) break;
        if (good && !later) {
            const nlohmann::json kind = j["step"] == step ? j.value("kind", nlohmann::json()) : nlohmann::json();
            opened.evaluated |= kind == "eval";
            if (j.value("kind", nlohmann::json()) == "eval") opened.evaluations.push_back(evaluation_of(j));
            opened.diagnosed |= kind == "diagnose";
            kept += line;
        } else {
            damaged.push_back(number);
        }
    }
    if (!damaged.empty())
        opened.damage = fmt::format("{} of its lines cannot be read, the first is line {}", damaged.size(), damaged[0]);
    else if (text.size() < known)
        opened.damage = fmt::format("its last {} bytes are missing", known - text.size());
    else if (saved && hash_of(text.substr(0, known)) != saved->xxh3)
        opened.damage = "its content changed";
    if (!opened.damage.empty()) {
        std::string aside = fmt::format("{}.damaged-{}", path, step);
        std::error_code error;
        for (int i = 2; std::filesystem::exists(aside, error); ++i)  // of a run that was killed before its next save
            aside = fmt::format("{}.damaged-{}-{}", path, step, i);
        write_file_atomically(aside, text);
        opened.damage += "; as it was, it is in " + aside;
    } else if (begin < text.size()) {
        const std::string aside = path + ".cut";
        write_all(open_for_append(aside), text.data() + begin, text.size() - begin, aside);
        opened.cut = fmt::format("{} bytes of later steps were moved to {}", text.size() - begin, aside);
    }
    if (damaged.empty()) {
        CHECK(::ftruncate(file_, static_cast<off_t>(kept.size())) == 0, "{}: cannot be cut: {}", path,
              std::strerror(errno));
    } else {
        write_file_atomically(path, kept);
        file_ = open_for_append(path);
    }
    bytes_ = std::ssize(kept);
    hash_.update(kept.data(), kept.size());
    return opened;
}

std::optional<LogPosition> MetricsFile::position() {
    if (path_.empty()) return std::nullopt;
    const std::lock_guard lock(mutex_);
    return LogPosition{bytes_, hash_.digest()};
}

void MetricsFile::write(const nlohmann::json& line) { write_lines({line}); }

void MetricsFile::write_lines(const std::vector<nlohmann::json>& lines) {
    if (path_.empty()) return;
    const std::lock_guard lock(mutex_);
    std::string text;
    for (const nlohmann::json& line : lines)
        text += line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
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

}  // namespace teon
