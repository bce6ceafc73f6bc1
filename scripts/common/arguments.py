"""Command lines of scripts: a parser whose errors are one line, numbers within limits, and the Python that has PyTorch.
"""

import argparse
import math
import re
import shutil
import subprocess
import sys
import textwrap

from common.startup import complain, without_middle


class Fitting(argparse.RawDescriptionHelpFormatter):
    """Fits paragraphs to the terminal. Indented lines stay lines of their own; what stands behind a command that leaves
    it too little room goes below it."""

    def _fill_text(self, text, width, indent):
        parts = []
        for paragraph in text.strip("\n").split("\n\n"):
            lines = paragraph.split("\n")
            if not any(line.startswith(" ") for line in lines):
                lines = [" ".join(lines)]
            for line in lines:
                columns = re.fullmatch(r"( *)(.*?\S)(?: {2,}(\S.*))?", line)
                if len(line) <= width or not columns:
                    parts.append(line)
                    continue
                before, first, remark = columns.groups()
                below = before + "    " * bool(before)
                for start, words in ((before, first), (below, remark or "")):
                    parts += textwrap.wrap(words, width, initial_indent=start, subsequent_indent=below,
                                           break_on_hyphens=False)
            parts.append("")
        return "\n".join(parts[:-1])


class Parser(argparse.ArgumentParser):
    """Fits the description to the terminal. An error is one line, exit status 2."""

    def __init__(self, description=None, **how):
        how.setdefault("formatter_class", Fitting)
        super().__init__(description=description, **how)

    def error(self, message):
        complain(f"error: {message} (see --help)", self.prog)
        sys.exit(2)


def _refuse(text, wanted):
    raise argparse.ArgumentTypeError(f"{without_middle(text, 60)!r} is not {wanted}")


def whole(least, most=2**53):
    """Returns a function that converts text to a whole number within the limits. Python's int() would also take digits
    of other scripts and blanks, and fails at 4,300 digits with another message."""
    def convert(text):
        if not re.fullmatch(r"[0-9]{1,16}", text) or not least <= int(text) <= most:
            _refuse(text, f"a whole number from {least} to {most}")
        return int(text)
    return convert


def decimal(least=-math.inf, most=math.inf):
    """Returns a function that converts text to a finite number within the limits."""
    def convert(text):
        digits = re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", text)
        value = float(text) if digits else math.nan
        if not (math.isfinite(value) and least <= value <= most):
            limits = f" from {least:g} to {most:g}" if math.isfinite(most) else ""
            _refuse(text, f"a number{limits}")
        return value
    return convert


def python_with_torch(asked=None):
    """Returns the interpreter that is asked for, this one or python3, the first that has PyTorch, or None."""
    for python in filter(None, map(shutil.which, [asked] if asked else [sys.executable, "python3", "python"])):
        if subprocess.run([python, "-c", "import torch"], capture_output=True).returncode == 0:
            return python
    return None
