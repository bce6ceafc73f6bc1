"""bench/instruction_counts.py, on SASS of our own:  dev/run_tests.py test/dev/test_instruction_counts.py"""
import contextlib
import io
import json
import sys
from unittest import mock

from testing import ROOT, Case, write_files, write_program

sys.path.insert(0, str(ROOT / "bench"))
import instruction_counts

# An inner loop of 4 instructions that copies 16 bytes, an outer loop that only repeats it, and a tail.
CODE = """
		Function : _ZN4teon11copy_kernelILi8EEEvPfPKf
        /*0000*/                   LDC R1, c[0x0][0x28] ;          /* 0x00000a00ff017b82 */
        /*0010*/                   MOV R2, R3 ;
        /*0020*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0030*/                   FADD R4, R4, R5 ;
        /*0040*/                   STG.E.128 desc[UR4][R6.64], R4 ;
        /*0050*/              @!P0 BRA 0x20 ;
        /*0060*/              @P1  BRA `(.L_x_1) ;
        /*0070*/              @P2  BRA 0x10 ;
        /*0080*/                   LDG.E R4, desc[UR4][R2.64] ;
        /*0090*/                   EXIT ;
        /*00a0*/                   BRA 0xa0;
        /*00b0*/                   NOP;
"""
KERNEL = {"file": "kernels/copy.cu", "function": "copy_kernel<8>", "anchor": "LDG.E.128", "per": 4, "loops": 1,
          "counts": {"sm_90a": [1.0, 8.0]}}


class InstructionCounts(Case):
    def setUp(self):
        super().setUp()
        self.tool = write_program(self.folder / "cuobjdump", f"#!/bin/bash\ncat <<'END'\n{CODE}\nEND\n")
        write_files(self.folder, {"kernels/copy.cu.o": ""})

    def count(self, **changes):
        rows = instruction_counts.count_all({"copy": {**KERNEL, **changes}}, self.folder, self.tool)
        return rows["copy"]["counts"]["sm_90a"]

    def run_main(self, *words, **changes):
        """Runs the script on a table of one kernel. Returns (exit status or message, output, the table's path)."""
        path, printed, status = self.folder / "counts.json", io.StringIO(), None
        path.write_text(instruction_counts.as_text({"copy": {**KERNEL, **changes}}))
        with mock.patch.object(instruction_counts, "COUNTS", path), \
                mock.patch.object(instruction_counts, "find_disassembler", return_value=self.tool), \
                mock.patch.object(sys, "argv", ["instruction_counts.py", str(self.folder), *words]), \
                contextlib.redirect_stdout(printed):
            try:
                instruction_counts.main()
            except SystemExit as exit:
                status = exit.code
        return status, printed.getvalue(), path

    def test_the_innermost_loop_with_the_anchor_is_counted_per_element(self):
        self.assertEqual(self.count(), [1.0, 8.0])

    def test_without_loops_the_whole_kernel_is_counted(self):
        self.assertEqual(self.count(loops=0), [11 / 4, 36 / 4])

    def test_counts_of_several_loops_are_added(self):
        code = [(0, "HMMA R0"), (16, "HMMA R0"), (32, "HMMA R0"), (48, "FADD R0"), (64, "BRA 0x0"), (80, "HMMA R0"),
                (96, "BRA 0x50")]
        kernel = {**KERNEL, "anchor": "HMMA", "per": 1, "loops": 2}
        self.assertEqual(instruction_counts.count(kernel, code)[0], round(5 / 3 + 2 / 1, 3))

    def test_an_anchor_counts_the_number_in_its_name(self):
        code = [(0, "HGMMA.64x128x16.F32.BF16 R0"), (16, "HGMMA.64x64x16.F32.BF16 R0"), (32, "FADD R0"),
                (48, "BRA 0x0")]
        kernel = {**KERNEL, "anchor": r"HGMMA[.]64x(\d+)x16.*", "per": 0.125}
        self.assertEqual(instruction_counts.count(kernel, code)[0], round(4 / (16 + 8), 3))

    def test_a_loop_may_contain_a_loop_that_waits_and_a_branch_after_exit_is_no_loop(self):
        code = [(0, "LDG.E.128 R0"), (16, "SYNCS R0"), (32, "BRA 0x10"), (48, "BRA 0x0"), (64, "EXIT"),
                (80, "BRA 0x30")]
        self.assertEqual(instruction_counts.loops_with("LDG.E.128", code), [[text for _, text in code[:4]]])

    def test_exponentials_are_counted_between_the_waits_of_the_loop(self):
        wait, exponential = "WARPGROUP.DEPBAR.LE gsb0, 0x1", "MUFU.EX2 R1, R1"
        body = ["HGMMA.64x64x16.F32.BF16 R0", exponential, wait, exponential, exponential, "FADD R1", wait, exponential,
                wait, exponential, "BRA 0x0"]
        code = [(16 * i, text) for i, text in enumerate([*body, wait, exponential, wait])]
        kernel = {**KERNEL, "anchor": "HGMMA.*"}
        self.assertEqual(instruction_counts.exponentials_between_waits(kernel, code), [2, 1])

    def test_a_wait_above_the_exponentials_fails_by_name(self):
        for before, after, refused in (([64], [64], False), ([64], [66], False), ([64], [1], True),
                                       ([64, 0], [0, 64], True), ([64], [64, 0], True), ([64], [], True)):
            lines = instruction_counts.earlier_waits({"forward": {"exponentials": before}},
                                                     {"forward": {"exponentials": after}, "copy": {}})
            self.assertEqual(lines, [f"forward: {after} exponentials between its waits, {before} before"] * refused)
        status, printed, path = self.run_main(exponentials=[3])
        self.assertIn("an earlier wait", status)
        self.assertEqual(printed, "copy: [] exponentials between its waits, [3] before\n")
        _, _, path = self.run_main("--write", exponentials=[3])
        self.assertEqual(json.loads(path.read_text())["copy"]["exponentials"], [])

    def test_a_missing_kernel_or_loop_is_named(self):
        with self.assertRaisesRegex(SystemExit, "no kernel other"):
            self.count(function="other")
        with self.assertRaisesRegex(SystemExit, "1 loops with LDG.E.128, expected 2"):
            self.count(loops=2)

    def test_growth_above_five_percent_fails_by_name_until_it_is_written(self):
        status, printed, _ = self.run_main()
        self.assertEqual((status, printed.split()[0]), (None, "1"))
        self.assertIsNone(self.run_main(counts={"sm_90a": [0.96, 8.0]})[0])
        status, printed, _ = self.run_main(counts={"sm_90a": [0.94, 8.0]})
        self.assertIn("--write", status)
        self.assertEqual(printed, "copy, sm_90a: 1.00 instructions per element, 0.94 before\n")
        self.assertIn("8.00 bytes accessed", self.run_main(counts={"sm_90a": [1.0, 7.0]})[1])
        _, _, path = self.run_main("--write", counts={"sm_90a": [0, 0]})
        self.assertEqual(json.loads(path.read_text()), {"copy": KERNEL})

    def test_without_a_disassembler_the_check_is_skipped_by_name(self):
        self.tool = None
        self.assertTrue(self.run_main()[1].startswith("SKIPPED: "))

    def test_the_committed_table_is_as_written(self):
        text = instruction_counts.COUNTS.read_text(encoding="utf-8")
        self.assertEqual(instruction_counts.as_text(json.loads(text)), text)


