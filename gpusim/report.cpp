#include "gpusim/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "gpusim/host/environment.h"

namespace teon::gpusim {

namespace {

constexpr std::pair<std::string_view, Check> kNames[] = {
    {"race", Check::race}, {"init", Check::init}, {"bounds", Check::bounds}, {"sync", Check::sync}};

// The words of messages by which their check is known; without any of them it is a fault of synchronization.
constexpr std::pair<std::string_view, Check> kWords[] = {{"a race:", Check::race},
                                                         {"nothing has written", Check::init},
                                                         {" of device memory,", Check::bounds},
                                                         {"of shared memory, of which", Check::bounds},
                                                         {"of local memory", Check::bounds},
                                                         {"of the parameters", Check::bounds},
                                                         {"is not a multiple of", Check::bounds},
                                                         {"shared memory of block", Check::bounds}};

struct Report {
    std::mutex mutex;
    bool is_asked = false;
    std::set<Check> counted;
    std::set<std::string> kernels;
    uint64_t launches = 0, blocks = 0, notes = 0;
    std::vector<std::string> alarms;

    Report() {
        const char* const text = std::getenv("CUDA_SANITIZE");
        is_asked = text && *text;
        if (!is_asked) return;
        from_environment([&] { parse(text); });
        on_exit([](int status, void* report) { static_cast<Report*>(report)->end(status); }, this);
    }

    void parse(std::string_view list) {
        while (!list.empty()) {
            const std::string_view name = list.substr(0, list.find(','));
            list.remove_prefix(std::min(list.size(), name.size() + 1));
            const auto it = std::ranges::find_if(kNames, [&](const auto& pair) { return pair.first == name; });
            CHECK(it != std::end(kNames), "CUDA_SANITIZE names \"{}\"; it lists some of race, init, bounds, sync",
                  name);
            counted.insert(it->second);
        }
    }

    void end(int status) {
        const std::lock_guard lock(mutex);
        std::string checks;
        for (const auto& [name, check] : kNames)
            if (counted.contains(check)) checks += fmt::format("{}{}", checks.empty() ? "" : ", ", name);
        fmt::print(stderr,
                   "model-gpu: {} kernels, {} launches, {} blocks; checked: {}\nmodel-gpu: {} alarms, {} notes\n",
                   kernels.size(), launches, blocks, checks, alarms.size(), notes);
        std::fflush(nullptr);
        if (!alarms.empty() && status == 0) std::_Exit(kAlarmStatus);
    }
};

Report& report() {  // never destroyed: the process may end while work runs
    static auto* const all = new Report;
    return *all;
}

}  // namespace

bool goes_on() {
    static const bool is_asked = report().is_asked;
    return is_asked;
}

bool is_counted(Check check) { return report().counted.contains(check); }

Check check_of(const std::string& message) {
    for (const auto& [word, check] : kWords)
        if (message.find(word) != message.npos) return check;
    return Check::sync;
}

void report_launch(const std::string& kernel, uint64_t blocks) {
    if (!goes_on()) return;
    Report& all = report();
    const std::lock_guard lock(all.mutex);
    all.kernels.insert(kernel);
    ++all.launches;
    all.blocks += blocks;
}

void report_alarm(const std::string& message) {
    if (!goes_on() || !is_counted(check_of(message))) return;
    Report& all = report();
    const std::lock_guard lock(all.mutex);
    all.alarms.push_back(message);
    fmt::print(stderr, "alarm: {}\n", message);
}

void report_note() {
    if (!goes_on()) return;
    const std::lock_guard lock(report().mutex);
    ++report().notes;
}

}  // namespace teon::gpusim
