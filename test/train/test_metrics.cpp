#include "train/metrics.h"

#include <chrono>
#include <cmath>
#include <cstring>
#include <regex>

#include "test/support/catch.h"
#include "test/support/temp_dir.h"

using namespace teon;
using namespace teon::test;

namespace {

std::string line(int64_t step, const char* kind = "step") {
    return fmt::format("{{\"kind\":\"{}\",\"step\":{}}}\n", kind, step);
}

// Makes writes and syncs fail on request.
struct Disk : FileOps {
    bool full = false, broken = false;
    size_t room = SIZE_MAX;  // bytes that can still be written
    ssize_t write(int file, const void* data, size_t bytes) override {
        if (full || room == 0) {
            errno = ENOSPC;
            return -1;
        }
        const ssize_t n = FileOps::write(file, data, std::min(bytes, room));
        room = room == SIZE_MAX ? room : room - static_cast<size_t>(n);
        return n;
    }
    int sync(int file) override {
        if (broken) {
            errno = EIO;
            return -1;
        }
        return FileOps::sync(file);
    }
};

std::string without_times(const std::string& text) {
    return std::regex_replace(text, std::regex(",\"time\":[0-9.]+"), "");
}

void step(MetricsFile& log, int64_t n) { log.write({{"kind", "step"}, {"step", n}}); }

}  // namespace

TEST_CASE("train/metrics: resuming cuts what comes after the step and a last line without its end") {
    TempDir folder;
    const std::string path = folder / "metrics.jsonl";
    write_file(path, line(1) + line(2) + line(2, "eval") + line(3) + line(2) + "{\"kind\":");
    MetricsFile log;
    const MetricsFile::Opened opened = log.open(path, 2);
    REQUIRE(opened.evaluated);
    REQUIRE(read_file(path + ".cut") == line(3) + line(2) + "{\"kind\":");
    step(log, 3);
    REQUIRE(without_times(read_file(path)) == line(1) + line(2) + line(2, "eval") + line(3));
    MetricsFile again;
    REQUIRE_FALSE(again.open(path, 1).evaluated);
    REQUIRE(read_file(path) == line(1));
}

TEST_CASE("train/metrics: the evaluations up to the step are returned, a loss that is not finite as NaN") {
    TempDir folder;
    const std::string path = folder / "metrics.jsonl";
    const auto evaluation = [](int64_t step, const char* loss) {
        return fmt::format("{{\"kind\":\"eval\",\"step\":{},\"val_loss\":{}}}\n", step, loss);
    };
    write_file(path,
               line(1) + evaluation(1, "0.1") + line(2) + evaluation(2, "null") + line(3) + evaluation(3, "1e-3"));
    MetricsFile log;
    const std::vector<LoggedEvaluation> evaluations = log.open(path, 2).evaluations;
    REQUIRE(evaluations.size() == 2);
    REQUIRE((evaluations[0].step == 1 && evaluations[0].loss == 0.1));
    REQUIRE((evaluations[1].step == 2 && std::isnan(evaluations[1].loss)));
}

TEST_CASE("train/metrics: a line that cannot be read, and all after it, is cut as later steps are") {
    const std::string damages[] = {"{\"kind\":\"step\",\"st\n",     "\n",
                                   std::string(3, '\0') + "\n",     "[1]\n",
                                   "{\"step\":\"two\"}\n",          "{\"step\":2.5}\n",
                                   std::string(100000, '[') + "\n", "\xff\n"};
    for (const std::string& damage : damages) {
        TempDir folder;
        const std::string path = folder / "metrics.jsonl";
        write_file(path, line(1) + damage + line(2));
        MetricsFile log;
        REQUIRE(contains(log.open(path, 3).cut, path + ".cut"));
        step(log, 4);
        REQUIRE(without_times(read_file(path)) == line(1) + line(4));
        REQUIRE(read_file(path + ".cut") == damage + line(2));
    }
}

TEST_CASE("train/metrics: a checkpoint knows how much of the log is its own, whatever the lines say") {
    TempDir folder;
    const std::string path = folder / "metrics.jsonl";
    std::optional<LogPosition> saved;
    std::string whole;
    {
        MetricsFile log;
        REQUIRE(!log.position());
        log.open(path, 0);
        for (int64_t n = 1; n <= 20; ++n) step(log, n);
        saved = log.position();
        whole = read_file(path);
        REQUIRE(saved->bytes == std::ssize(whole));
        log.write({{"kind", "eval"}, {"step", 20}});
        step(log, 21);
    }
    const std::string later = read_file(path).substr(whole.size());
    {
        INFO("undamaged");
        MetricsFile log;
        const MetricsFile::Opened opened = log.open(path, 20, saved);
        REQUIRE(opened.evaluated);
        REQUIRE(contains(opened.cut, path + ".cut"));
        REQUIRE(read_file(path).starts_with(whole));  // with the times of the first run
        REQUIRE(without_times(read_file(path)) == without_times(whole) + line(20, "eval"));
        REQUIRE(without_times(read_file(path + ".cut")) == line(21));
        step(log, 21);
        REQUIRE(log.position()->bytes == std::ssize(read_file(path)));
        REQUIRE(log.position()->xxh3 == hash_of(read_file(path)));
    }
    std::string other_step = whole + later;
    std::string other_value = other_step;
    other_step[other_step.find("13,")] = '9';
    other_value[other_value.find("13,") + 1] = '2';
    for (const std::string& text : {other_step, other_value, line(1)}) {
        write_file(path, text);
        MetricsFile log;
        REQUIRE(error_of([&] { log.open(path, 20, saved); }).find(path + ": is damaged: ") == 0);
        REQUIRE(read_file(path) == text);
    }
    std::filesystem::remove(path);  // as the message says
    MetricsFile log;
    log.open(path, 20, saved);
    step(log, 21);
    REQUIRE(without_times(read_file(path)) == line(21));
    REQUIRE(log.position()->bytes == std::ssize(read_file(path)));
}

TEST_CASE("train/metrics: every line has the time of its writing, in seconds with milliseconds") {
    const auto now = [] {
        return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    };
    TempDir folder;
    const std::string path = folder / "metrics.jsonl";
    MetricsFile log;
    log.open(path, 0);
    const double before = now();
    step(log, 1);
    const double after = now();
    const double time = parse_json(read_file(path), path)["time"].get<double>();
    INFO(fmt::format("{:.6f} {:.6f} {:.6f}", before, time, after));
    REQUIRE((before - 0.001 <= time && time <= after));
    REQUIRE(read_file(path).size() <= line(1).size() + std::strlen(",\"time\":1234567890.123"));
}

TEST_CASE("train/metrics: a full disk loses no line, and sync() reports it") {
    for (size_t room : {size_t{0}, size_t{1}, size_t{23}, size_t{60}}) {
        TempDir folder;
        const std::string path = folder / "metrics.jsonl";
        Disk disk;
        MetricsFile log(disk);
        log.open(path, 0);
        disk.room = room;
        for (int64_t n = 1; n <= 4; ++n) step(log, n);
        const std::string said = error_of([&] { log.sync(); });
        INFO(room << ": " << said);
        REQUIRE(said.find(path) == 0);
        REQUIRE(contains(said, std::strerror(ENOSPC)));
        disk.room = SIZE_MAX;
        step(log, 5);
        log.sync();
        REQUIRE(without_times(read_file(path)) == line(1) + line(2) + line(3) + line(4) + line(5));
        disk.broken = true;
        REQUIRE_THROWS_AS(log.sync(), Error);
    }
}

TEST_CASE("train/metrics: a log must be a regular file") {
    TempDir folder;
    MetricsFile log;
    REQUIRE_THROWS_AS(log.open(folder.path(), 0), Error);
    write_file(folder / "other", "precious");
    std::filesystem::create_symlink(folder / "other", folder / "metrics.jsonl");
    REQUIRE_THROWS_AS(log.open(folder / "metrics.jsonl", 0), Error);
    REQUIRE(read_file(folder / "other") == "precious");
}
