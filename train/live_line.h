// The progress line at the bottom of a terminal; other output scrolls above it.
#pragma once

#include <string>

namespace teon {

// Returns a bar of `width` characters within brackets: [=====>    ]. share: in [0, 1].
std::string progress_bar(double share, int width);

class LiveLine {
public:
    // Inactive unless standard output is a terminal that has a width and can move its cursor (TERM is not dumb).
    LiveLine();
    ~LiveLine();  // leaves the line on the terminal and begins a new one
    LiveLine(const LiveLine&) = delete;

    bool active() const { return active_; }
    // Shows a bar and the text after it, cut to the terminal's width; green unless NO_COLOR is set
    // (https://no-color.org).
    void show(double share, const std::string& text);
    // Call it before other output. show() restores the line.
    void hide();

private:
    bool active_, color_, shown_ = false;
};

}  // namespace teon
