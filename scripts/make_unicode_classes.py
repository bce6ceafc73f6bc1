#!/usr/bin/env python3
"""Writes data/unicode_classes.h:  python3 scripts/make_unicode_classes.py > data/unicode_classes.h

Lists the code points that are letters (general category L) and numbers (N) in GPT-2's pattern of words, from this
Python's Unicode data. The file is committed, so that the build needs neither Python nor a Unicode library.
"""
import itertools
import sys
import textwrap
import unicodedata


def table(name, kind):
    inside = (unicodedata.category(chr(point))[0] == kind for point in range(sys.maxunicode + 1))
    runs = [str(len(list(run))) for _, run in itertools.groupby(inside)][:-1]
    return f"inline constexpr int {name}[] = {{\n" + textwrap.indent(textwrap.fill(", ".join(runs), 116), "    ") + "};"


print(f"""// Letters and numbers of Unicode {unicodedata.unidata_version}, as lengths of runs of code points.
// From 0 on, the runs are alternately outside and inside the class.
// Generated: python3 scripts/make_unicode_classes.py > data/unicode_classes.h
#pragma once

namespace teon {{

// clang-format off
{table("kLetterRuns", "L")}

{table("kNumberRuns", "N")}
// clang-format on

}}  // namespace teon""")
