"""bench/model_gpu.py: what it reads from compiled code, and what it makes of it."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))
import model_gpu

# A loop of 4 instructions that copies 16 bytes, inside of one that does nothing else but go round; then a tail.
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
KERNEL = {"name": "copy", "file": "kernels/copy.cu", "function": "copy_kernel<8>", "times": "2", "elements": "N",
          "anchor": "LDG.E.128", "per": 4, "loops": 1, "bytes": "8*N", "minimum": "4*N"}
MACHINE = {"flops": 100e12, "tensor": 100e12, "bytes": 1e12, "issue": 1e12, "launch": 0.0, "multiprocessors": 100,
           "architecture": "sm_90a"}


def table(**changes):
    return {"shape": {"B": 2, "T": 512, "S": 1}, "machine": {"M": MACHINE}, "linear": [],
            "kernel": [{**KERNEL, **changes}]}


class Counting(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.tool = self.folder / "cuobjdump"
        self.tool.write_text(f"#!/bin/bash\ncat <<'END'\n{CODE}\nEND\n")
        self.tool.chmod(0o755)
        (self.folder / "kernels").mkdir()
        (self.folder / "kernels/copy.cu.o").touch()

    def test_the_innermost_loop_with_the_anchor_is_counted_per_element(self):
        counts = model_gpu.count_all(table(), self.folder, self.tool)
        self.assertEqual(counts, {"copy": {"sm_90a": [1.0, 8.0]}})

    def test_without_loops_the_whole_kernel_is_counted(self):
        counts = model_gpu.count_all(table(loops=0), self.folder, self.tool)
        self.assertEqual(counts["copy"]["sm_90a"], [11 / 4, 36 / 4])

    def test_loops_that_share_the_elements_count_as_one(self):
        code = [(0, "HMMA R0"), (16, "HMMA R0"), (32, "HMMA R0"), (48, "FADD R0"), (64, "BRA 0x0"), (80, "HMMA R0"),
                (96, "BRA 0x50")]
        kernel = {**KERNEL, "anchor": "HMMA", "per": 1, "loops": 2}
        self.assertEqual(model_gpu.count_kernel(kernel, code)[0], 5 / 3 + 2 / 1)
        self.assertEqual(model_gpu.count_kernel({**kernel, "share": True}, code)[0], 7 / 4)

    def test_a_kernel_or_loop_that_is_not_there_is_named(self):
        with self.assertRaisesRegex(SystemExit, "no kernel other"):
            model_gpu.count_all(table(function="other"), self.folder, self.tool)
        with self.assertRaisesRegex(SystemExit, "1 loops with LDG.E.128, expected 2"):
            model_gpu.count_all(table(loops=2), self.folder, self.tool)

    def test_growth_above_five_percent_is_reported_by_name(self):
        known = {"copy": {"sm_90a": [1.0, 8.0]}}
        self.assertEqual(model_gpu.grown(known, {"copy": {"sm_90a": [1.04, 8.0]}}), [])
        self.assertIn("copy, sm_90a: 1.06 instructions", model_gpu.grown(known, {"copy": {"sm_90a": [1.06, 8.0]}})[0])
        self.assertIn("12.00 bytes accessed", model_gpu.grown(known, {"copy": {"sm_90a": [1.0, 12.0]}})[0])
        self.assertIn("not in", model_gpu.grown({}, {"copy": {"sm_90a": [1.0, 8.0]}})[0])


class Predicting(unittest.TestCase):
    def test_a_kernel_takes_the_longest_and_a_quarter_of_the_other(self):
        # 1024 elements: 8 KiB at 1 TB/s are 8.192 ns; 64 instructions of each by 1024 / 32 warps' lanes 2.048 ns.
        row = model_gpu.predict(table(), {"copy": {"sm_90a": [64.0, 8.0]}}, "M")[0]
        self.assertAlmostEqual(row.seconds * 1e9, 8.192 + 2.048 / 4)
        self.assertAlmostEqual(row.limit * 1e9, 4.096)
        self.assertAlmostEqual(model_gpu.total([row]) * 1e9, 2 * (8.192 + 0.512))

    def test_formulas_know_the_multiprocessors(self):
        self.assertEqual(model_gpu.predict(table(bytes="8*SM"), {}, "M")[0].bytes, 800)

    def test_a_product_of_few_tiles_leaves_multiprocessors_idle_unless_it_is_searched(self):
        one = table()
        one["kernel"] = []
        one["linear"] = [{"name": "x", "times": "1", "rows": "8192", "out": "1280", "in": "640"}]  # dW: 50 tiles of 100
        one["shape"]["B"] = 16
        found, first = (model_gpu.predict(one, {}, "M", searched)[2] for searched in (True, False))
        arithmetic = 2 * 8192 * 1280 * 640 / 100e12
        self.assertAlmostEqual((first.seconds - found.seconds) / arithmetic, 1)

    def test_a_weight_gradient_is_added_to_but_in_the_first_rows_of_a_step(self):
        one = table()
        one["kernel"] = []
        one["linear"] = [{"name": "x", "times": "1", "rows": "N/2", "out": "64", "in": "32"}]
        moved = lambda S: model_gpu.predict(one, {}, "M", shape={"B": 2, "T": 512, "S": S})[2].bytes
        written = 2 * 512 * (64 + 32) + 4 * 64 * 32
        self.assertAlmostEqual(moved(1), written + 4 * 64 * 32 / 2)
        self.assertAlmostEqual(moved(4), written + 4 * 64 * 32 * 7 / 8)

    def test_a_symmetric_product_goes_to_whoever_is_faster_or_by_the_rule(self):
        # 100 matrices of 3 x 3 tiles on 100 multiprocessors: 6 rounds of ours, 9 of the library's, and a mirror image.
        one = {**table(), "stack": [{"name": "x", "count": "100", "side": "384", "long": "384", "form": "standard",
                                     "kernel": "ours"}]}
        gram, squares, apply = model_gpu.newton_schulz(one, {"ours": {"sm_90a": [0.0, 0.0]}}, "M")
        tile, square = 2 * 128 * 128 * 384 / 1e12, 2 * 100 * 384 * 384 / 1e12
        self.assertAlmostEqual(gram.kernel * 1e6, 1e6 * (6 * tile + 2 * square / 4))
        self.assertAlmostEqual(gram.library * 1e6, 1e6 * (9 * tile + 2 * square / 4 + square))
        self.assertAlmostEqual(apply.library * 1e6, 1e6 * (4 * square + 9 * tile / 4))
        self.assertTrue(gram.pays)
        self.assertEqual(model_gpu.chosen(squares), squares.kernel)
        slower = squares._replace(kernel=2 * squares.library)
        self.assertEqual(model_gpu.chosen(slower), squares.library)
        self.assertEqual(model_gpu.chosen(slower, searched=False), slower.kernel)

    def test_the_committed_table_is_whole(self):
        committed, counts = model_gpu.load()
        for machine in committed["machine"]:
            rows = model_gpu.predict(committed, counts, machine)
            self.assertLess(model_gpu.total(rows, "limit"), model_gpu.total(rows))
        for kernel in model_gpu.compiled(committed):
            self.assertTrue((ROOT / kernel["file"]).exists(), kernel["file"])
            self.assertEqual(sorted(counts[kernel["name"]]), ["sm_80", "sm_90a"], kernel["name"])

    def test_gelu_within_the_products_saves_its_passes_but_not_all_that_they_move(self):
        committed, counts = model_gpu.load()
        apart, within = (model_gpu.predict(committed, counts, "H200", gelu_fusion=fused) for fused in (False, True))
        s = committed["shape"]
        moved = lambda rows: sum(row.times * row.bytes for row in rows)
        # A pass reads two and writes one tensor of the MLP's width or one of each; now GELU's input is written beside
        # its output, read with the derivative, and what the derivative gives is read for the bias's gradient.
        width, sums = 2 * s["B"] * s["T"] * s["F"], 4 * s["F"] * (2 * 1024 - 2 * 256)
        self.assertAlmostEqual((moved(apart) - moved(within)) / s["L"], 5 * width - 3 * width + sums, delta=1)
        page = (ROOT / "docs/gpu_step.md").read_text(encoding="utf-8")
        saved, rate = (model_gpu.total(apart) - model_gpu.total(within),
                       model_gpu.tokens_per_second(committed, model_gpu.total(within)))
        self.assertIn(f"saves {1000 * saved:.1f} ms per micro-step", page)
        self.assertIn(f"prediction is {rate / 1000:.0f}k tokens/s", page)

    def test_the_page_shows_the_table(self):
        shown = subprocess.run([sys.executable, ROOT / "bench/model_gpu.py", "--markdown"], capture_output=True,
                               text=True, check=True).stdout
        self.assertIn(shown, (ROOT / "docs/gpu_step.md").read_text(encoding="utf-8"))

    def test_without_a_disassembler_the_check_is_skipped_by_name(self):
        result = subprocess.run([sys.executable, ROOT / "bench/model_gpu.py", "check", "build"], capture_output=True,
                                text=True, env={"PATH": "/nowhere", "HOME": "/nowhere"}, check=False)
        if "SKIPPED" not in result.stdout:
            self.skipTest("this machine has cuobjdump in a place that is looked at")
        self.assertEqual(result.returncode, 0)

