#!/usr/bin/env python3
"""Writes data/unicode_classes.h:  python3 scripts/make_unicode_classes.py > data/unicode_classes.h

The code points that are letters (general category L) and numbers (N), as GPT-2's pattern tells words apart, from this
Python's Unicode data. The file is committed: the build needs neither Python nor a Unicode library.
"""

import sys
import unicodedata


def ranges(kind):
    found = []
    for point in range(sys.maxunicode + 1):
        if unicodedata.category(chr(point))[0] != kind:
            continue
        if found and found[-1][1] == point - 1:
            found[-1][1] = point
        else:
            found.append([point, point])
    return found


def table(name, kind):
    lines, line = [], "   "
    for first, last in ranges(kind):
        item = f" {{0x{first:x}, 0x{last:x}}},"
        if len(line + item) > 120:
            lines.append(line)
            line = "   "
        line += item
    return f"inline constexpr CodePoints {name}[] = {{\n" + "\n".join([*lines, line]) + "\n};"


print(f"""// Letters and numbers of Unicode {unicodedata.unidata_version}.
// Generated: python3 scripts/make_unicode_classes.py > data/unicode_classes.h
#pragma once

namespace teon {{

struct CodePoints {{
    char32_t first, last;
}};

// clang-format off
{table("kLetters", "L")}

{table("kNumbers", "N")}
// clang-format on

}}  // namespace teon""")
