"""The examples of docs/extending.md compile in a copy, and not without a part:
dev/run_tests.py test/dev/test_extending.py
"""

import pathlib
import re

from testing import ROOT, Case, write_files

COMPILE = ("g++", "-std=c++20", "-fsyntax-only", "-fmax-errors=1", "-fopenmp", "-Wall", "-Wno-unknown-pragmas", "-x",
           "c++")


def blocks():
    """Returns the text of each block of code by its file."""
    page = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
    found = re.finditer(r"^    // (\w[\w/]+[.]\w+): .*\n((?:(?:    .*)?\n)+?)(?=\n\S|\n    // |\Z)", page, re.MULTILINE)
    return {match[1]: re.sub(r"^    ", "", match[2], flags=re.MULTILINE).strip() for match in found}


def with_row(text, table, row, value=""):
    """Adds a value before `count`, if there is one, and a row at the end of a table."""
    if value:
        text = re.sub(r", count\b", f", {value}, count", text, count=1)
    begin = text.index(f"{table}[] = {{")
    end = text.index("\n};", begin)
    return f"{text[:end]}\n{row}{text[end:]}"


def with_formula(text, formula):
    """Adds a formula after the others."""
    last = [match.end() for match in re.finditer(r"^struct FormulaOf\w*<.*\n", text, re.MULTILINE)][-1]
    return f"{text[:last]}\n{formula}\n{text[last:]}"


class ExtendingTest(Case):
    def setUp(self):
        super().setUp()
        self.blocks = blocks()

    def compile(self, files, unit):
        """Returns the errors of compiling a unit of the tree in which these files differ."""
        write_files(self.folder, {unit: (ROOT / unit).read_text() if (ROOT / unit).exists() else "", **files})
        result = self.call(*COMPILE, f"-I{self.folder}", f"-I{ROOT}", "-isystem", ROOT / "cpu/include", unit,
                           expect=None)
        return result.stderr if result.returncode else ""

    def check_kind(self, kinds, table, unit):
        """A kind needs its value, its row and its formula."""
        value, row = self.blocks[kinds].split("\n", 1)
        header = (ROOT / kinds).read_text(encoding="utf-8")
        source = (ROOT / unit).read_text(encoding="utf-8")
        formula = self.blocks[unit]
        whole = {kinds: with_row(header, table, row, value), unit: with_formula(source, formula)}
        self.assertEqual(self.compile(whole, unit), "")
        self.assertIn("FormulaOf", self.compile({**whole, unit: source}, unit))
        self.assertIn("needs one row", self.compile({**whole, kinds: with_row(header, table, "", value)}, unit))

    def test_an_activation_is_a_row_and_its_formula(self):
        self.check_kind("kernels/activation_kinds.h", "kActivations", "kernels/activation.cu")

    def test_a_norm_is_a_row_and_its_formula(self):
        self.check_kind("kernels/norm_kinds.h", "kNorms", "kernels/norm.cu")

    def test_an_implementation_of_flash_attention_is_a_row_and_its_functions(self):
        table = "kernels/attention/flash_implementations.h"
        functions = self.blocks["kernels/attention/flash_blackwell.h"]
        row = self.blocks[table]
        text = (ROOT / table).read_text(encoding="utf-8").replace(
            "struct FlashImplementation {", functions + "\n\nstruct FlashImplementation {", 1)
        # The first row that fits: before mma.
        text = text.replace('    {"mma",', f'{row}\n    {{"mma",', 1)
        use = pathlib.Path("use.cpp")
        code = (f'#include "{table}"\n#include "kernels/attention/flash.cu"\nusing namespace teon;\n'
                "constexpr auto kAny = [](const FlashImplementation&) { return true; };\n"
                'static_assert(flash_implementation(100, 128, DType::bf16, kAny)->name == "tcgen05");\n'
                'static_assert(flash_implementation(100, 64, DType::bf16, kAny)->name == "mma");\n'
                'static_assert(flash_implementation(90, 128, DType::bf16, kAny)->name == "wgmma");\n')
        self.assertEqual(self.compile({table: text, str(use): code}, str(use)), "")
        without = text.replace(functions, "")
        self.assertIn("flash_attention_blackwell", self.compile({table: without, str(use): code}, str(use)))
