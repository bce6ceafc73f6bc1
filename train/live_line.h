// On a terminal, the one line at its end that shows how far the run is; other output scrolls by above it.
#pragma once

#include <string>

namespace teon {

// A bar of `width` characters within brackets: [=====>    ]; `share` in [0, 1].
std::string progress_bar(double share, int width);

class LiveLine {
public:
    // There is none if standard output is no terminal that has a width and can move its cursor (TERM=dumb).
    LiveLine();
    ~LiveLine();  // the line stays, and what follows begins a new one
    LiveLine(const LiveLine&) = delete;

    bool active() const { return active_; }
    // Shows a bar and the text behind it, cut to the terminal's width; green unless NO_COLOR is set
    // (https://no-color.org).
    void show(double share, const std::string& text);
    // Before other output. show() brings the line back.
    void hide();

private:
    bool active_, color_, shown_ = false;
};

}  // namespace teon
