"""Terminal lines that are updated in place, and their contents: progress bars and durations."""

import shutil
import sys


def terminal_size(fallback=(80, 24)):
    """Returns (columns, rows). Python 3.10 gives 0 if a terminal does not know its size, as in some containers."""
    size = shutil.get_terminal_size(fallback)
    return size.columns or fallback[0], size.lines or fallback[1]


class Live:
    """Replaces the lines that it drew before. Draws nothing if the output is not a terminal."""

    def __init__(self, stream=sys.stdout, on=None):
        self.stream, self.drawn, self.on = stream, 0, stream.isatty() if on is None else on

    def width(self):
        return terminal_size()[0]

    def draw(self, lines):
        """Draws the lines, or only the last ones if the terminal has too few rows."""
        if not self.on:
            return
        lines = lines[-max(1, terminal_size()[1] - 1):]
        # Move up, overwrite each line to its end, and clear the rest of the previous lines.
        text = (f"\x1b[{self.drawn}A" if self.drawn else "") + "".join(f"{line}\x1b[K\n"
                                                                       for line in clipped(lines, self.width()))
        self.stream.write(text + ("\x1b[J" if self.drawn > len(lines) else ""))
        self.stream.flush()
        self.drawn = len(lines)

    def clear(self):
        self.draw([])


def clipped(lines, width):
    return [line[:width] for line in lines]


def progress_bar(share, width):
    filled = int(min(1.0, max(0.0, share)) * width)
    return "█" * filled + "░" * (width - filled)


def duration(seconds):
    hours, rest = divmod(int(round(seconds)), 3600)
    minutes, seconds = divmod(rest, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{seconds:02d}s" if minutes else f"{seconds}s"
