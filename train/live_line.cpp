#include "train/live_line.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "base/text.h"

namespace teon {

namespace {

bool is_set(const char* name) {
    const char* value = std::getenv(name);
    return value && *value;
}

// Ignores errors: Console reports a terminal that has vanished, and the run continues.
void put(const std::string& text) {
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
}

}  // namespace

std::string progress_bar(double share, int width) {
    const int filled = static_cast<int>(std::lround(std::clamp(share, 0.0, 1.0) * width));
    std::string bar(static_cast<size_t>(filled), '=');
    if (filled > 0 && filled < width) bar.back() = '>';
    return fmt::format("[{:<{}}]", bar, width);
}

LiveLine::LiveLine()
    : active_(terminal_columns() > 0 && is_set("TERM") && std::string_view(std::getenv("TERM")) != "dumb"),
      color_(!is_set("NO_COLOR")) {}

LiveLine::~LiveLine() {
    if (shown_) put("\n");
}

void LiveLine::show(double share, const std::string& text) {
    // Leave the last column free: some terminals wrap when it is written.
    const int columns = terminal_columns() - 1;
    const int width = std::clamp(columns / 5, 4, 30);
    std::string line = progress_bar(share, width);
    const size_t bar = line.size();
    line += " " + text;
    line.resize(std::min(line.size(), static_cast<size_t>(std::max(columns, 1))));
    if (color_ && line.size() > bar) line = "\x1b[32m" + line.substr(0, bar) + "\x1b[0m" + line.substr(bar);
    put("\r" + line + "\x1b[K");
    shown_ = true;
}

void LiveLine::hide() {
    if (shown_) put("\r\x1b[K");
    shown_ = false;
}

}  // namespace teon
