"""bench/model_gpu.py and its modules: the counts from compiled code, the predictions, and the fit to measurements."""
import contextlib
import io
import json
import math
import re
import subprocess
import sys
import unittest
from unittest import mock

from testing import ROOT, Case

sys.path.insert(0, str(ROOT / "bench"))
import bench_gpu
import calibration
import compiled_counts
import gpu_rules
import model_gpu

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
KERNEL = {"name": "copy", "file": "kernels/copy.cu", "function": "copy_kernel<8>", "times": "2", "elements": "N",
          "anchor": "LDG.E.128", "per": 4, "loops": 1, "bytes": "8*N", "minimum": "4*N"}
MACHINE = {"flops": 100e12, "half_k": 0.0, "overlap": 0.25, "wgmma_overlap": 0.25, "peak": 100e12,
           "tensor": 100e12, "bytes": 1e12, "link": 1e11,
           "issue": 1e12, "launch": 0.0, "multiprocessors": 100, "architecture": "sm_90a"}


def table(**changes):
    return {"shape": {"B": 2, "T": 512, "S": 1}, "machine": {"M": MACHINE}, "linear": [],
            "kernel": [{**KERNEL, **changes}]}


def published_points():
    """The points of measured_gpu.toml that `make bench-gpu` did not add."""
    points = calibration.load()
    return {**points, **{kind: [point for point in points[kind] if point["program"] != calibration.OURS]
                         for kind in calibration.FIGURES}}


COMMITTED = model_gpu.load(points=published_points())


def shown(test):
    """The fit to all points, which the pages and the README state. Skips the test if this machine has just added
    points."""
    changed = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", calibration.POINTS], cwd=ROOT, check=False,
                             capture_output=True)
    if changed.returncode == 1:
        test.skipTest("bench/measured_gpu.toml has points that are not committed; pages state the fit without them")
    return model_gpu.load()


class Counting(Case):
    def setUp(self):
        super().setUp()
        self.tool = self.folder / "cuobjdump"
        self.tool.write_text(f"#!/bin/bash\ncat <<'END'\n{CODE}\nEND\n")
        self.tool.chmod(0o755)
        (self.folder / "kernels").mkdir()
        (self.folder / "kernels/copy.cu.o").touch()

    def code(self):
        return compiled_counts.disassemble(self.tool, self.folder / "kernels/copy.cu.o", "sm_90a")["copy_kernel<8>"]

    def test_the_innermost_loop_with_the_anchor_is_counted_per_element(self):
        counts = compiled_counts.count_all(table(), self.folder, self.tool, {})
        self.assertEqual(counts, {"copy": {"sm_90a": [1.0, 8.0]}})

    def test_without_loops_the_whole_kernel_is_counted(self):
        counts = compiled_counts.count_all(table(loops=0), self.folder, self.tool, {})
        self.assertEqual(counts["copy"]["sm_90a"], [11 / 4, 36 / 4])

    def test_loops_that_share_the_elements_count_as_one(self):
        code = [(0, "HMMA R0"), (16, "HMMA R0"), (32, "HMMA R0"), (48, "FADD R0"), (64, "BRA 0x0"), (80, "HMMA R0"),
                (96, "BRA 0x50")]
        kernel = {**KERNEL, "anchor": "HMMA", "per": 1, "loops": 2}
        self.assertEqual(compiled_counts.count_kernel(kernel, code)[0], 5 / 3 + 2 / 1)
        self.assertEqual(compiled_counts.count_kernel({**kernel, "share": True}, code)[0], 7 / 4)

    def test_an_anchor_counts_the_number_in_its_name(self):
        code = [(0, "HGMMA.64x128x16.F32.BF16 R0"), (16, "HGMMA.64x64x16.F32.BF16 R0"), (32, "FADD R0"),
                (48, "BRA 0x0")]
        kernel = {**KERNEL, "anchor": r"HGMMA[.]64x(\d+)x16.*", "per": 0.125}
        self.assertEqual(compiled_counts.count_kernel(kernel, code)[0], 4 / (16 + 8))

    def test_a_loop_may_contain_a_loop_that_waits_and_a_branch_after_exit_is_no_loop(self):
        code = [(0, "LDG.E.128 R0"), (16, "SYNCS R0"), (32, "@!P0 BRA 0x10"), (48, "BRA 0x0"), (64, "EXIT"),
                (80, "BRA 0x30")]
        code = [(address, text.removeprefix("@!P0 ")) for address, text in code]
        self.assertEqual(compiled_counts.loops_with("LDG.E.128", code), [[text for _, text in code[:4]]])

    def test_a_kernel_of_one_architecture_is_counted_under_its_own_name(self):
        (self.folder / "kernels/own.cu.o").touch()
        one = table(sm_90a={"like": "copy, own", "file": "kernels/own.cu", "per": 8})
        one["machine"] = {"M": MACHINE, "old": {**MACHINE, "architecture": "sm_80"}}
        counts = compiled_counts.count_all(one, self.folder, self.tool, {})
        self.assertEqual(counts, {"copy": {"sm_80": [1.0, 8.0], "sm_90a": [1.0, 8.0]},
                                  "copy, own": {"sm_90a": [0.5, 4.0]}})
        rows = [gpu_rules.predict(one, counts, machine)[0] for machine in ("M", "old")]
        self.assertEqual([row.instructions for row in rows], [0.5, 1.0])
        self.assertEqual(gpu_rules.predict(calibration.with_mma_sync(one), counts, "M")[0].instructions, 1.0)

    def test_executed_instructions_follow_from_runs_on_the_modelled_gpu(self):
        # PTX: 2 instructions, an inner loop of 3 that copies, the branch of the outer loop, and 1 more. The inner loop
        # has 4 instructions of SASS. The other 5 of PTX are the other 7 of SASS.
        opcodes = ["mov", "mov", "add", "ld.global.v4.f32", "st.global.v4.f32", "bra", "bra", "ret"]
        executed = compiled_counts.Executed(opcodes, [2, 2, 6, 60, 60, 60, 6, 2], [-1, -1, -1, -1, -1, 3, 2, -1])
        kernel = {**KERNEL, "executed": "ld[.]global[.]v4.*"}
        self.assertEqual(compiled_counts.executed_kernel(kernel, self.code(), executed),
                         (60 * 4 + (2 + 2 + 6 + 6 + 2) * 7 / 5, 60 * 4, 2))
        rarely = executed._replace(warps=[2, 2, 6, 60, 15, 60, 6, 2])  # a branch skips the store
        self.assertEqual(compiled_counts.executed_kernel(kernel, self.code(), rarely)[0],
                         (60 + 15 + 60) * 4 / 3 + (2 + 2 + 6 + 6 + 2) * 7 / 5)
        end = self.code()[-1][0]  # code for diverged warps, at the end, is never executed
        diverging = [(0, f"BRA.DIV UR4, {end + 16:#x}"), *self.code()[1:],
                     *((end + 16 * i, text) for i, text in enumerate(("WARPSYNC.COLLECTIVE R1", "BRA 0x10"), 1))]
        self.assertEqual(compiled_counts.executed_kernel(kernel, diverging, executed),
                         compiled_counts.executed_kernel(kernel, self.code(), executed))
        (self.folder / "runs.json").write_text(json.dumps({"capability": 80, "kernel": [{
            "name": "copy_kernel<8>", "code": [[opcode, "", warps, 0, 0, 0, target] for opcode, warps, target in
                                               zip(*executed)]}]}))
        counted = compiled_counts.count_all({**table(executed="ld[.]global[.]v4.*")}, self.folder, self.tool,
                                            compiled_counts.load_executed([self.folder / "runs.json"]))
        self.assertEqual(len(counted["copy"]["sm_90a"]), 4, "the runs on the other architecture count")
        known = {"copy": {"sm_90a": [1.0, 2.0, 1.5, 3.0]}, "old": {"sm_90a": [1.0, 2.0]}}
        self.assertEqual([gpu_rules.instructions_of(known, name, MACHINE) for name in ("copy", "old")],
                         [(1.5, 3.0), (1.0, 0.0)])
        with self.assertRaisesRegex(SystemExit, "1 loops with LDG.E.128 in SASS, 0 with mma in PTX"):
            compiled_counts.executed_kernel({**kernel, "executed": "mma"}, self.code(), executed)

    def test_runs_of_several_sizes_separate_elements_from_warps(self):
        runs = [(1.5 * elements + 100 * warps, elements, warps) for elements, warps in ((640, 8), (4096, 16))]
        for found, true in zip(compiled_counts.fit_executed(runs, True), (1.5, 100)):
            self.assertAlmostEqual(found, true)
        self.assertEqual(compiled_counts.fit_executed(runs[:1], True), (runs[0][0] / 640, 0.0))

    def test_a_missing_kernel_or_loop_is_named(self):
        with self.assertRaisesRegex(SystemExit, "no kernel other"):
            compiled_counts.count_all(table(function="other"), self.folder, self.tool, {})
        with self.assertRaisesRegex(SystemExit, "1 loops with LDG.E.128, expected 2"):
            compiled_counts.count_all(table(loops=2), self.folder, self.tool, {})

    def test_counts_of_executed_instructions_are_kept_if_no_run_executed_the_kernel(self):
        known = {"sm_80": [1.0, 8.0, 1.5, 3.0], "sm_90a": [1.0, 8.0, 1.5, 3.0]}
        self.assertEqual(compiled_counts.updated(known, {"sm_80": [2.0, 8.0], "sm_90a": [2.0, 8.0, 2.5, 4.0]}),
                         {"sm_80": [2.0, 8.0, 1.5, 3.0], "sm_90a": [2.0, 8.0, 2.5, 4.0]})
        self.assertEqual(compiled_counts.updated({}, {"sm_80": [2.0, 8.0]}), {"sm_80": [2.0, 8.0]})

    def test_growth_above_five_percent_is_reported_by_name(self):
        known = {"copy": {"sm_90a": [1.0, 8.0]}}
        self.assertEqual(compiled_counts.increases(known, {"copy": {"sm_90a": [1.04, 8.0]}}), [])
        increases = lambda known, *found: compiled_counts.increases(known, {"copy": {"sm_90a": list(found)}})[0]
        self.assertIn("copy, sm_90a: 1.06 instructions", increases(known, 1.06, 8.0))
        self.assertIn("12.00 bytes accessed", increases(known, 1.0, 12.0))
        self.assertIn("not in", increases({}, 1.0, 8.0))


class Predicting(unittest.TestCase):
    def test_a_kernel_takes_the_longest_time_and_a_share_of_the_others(self):
        # 1024 elements: 8 KiB at 1 TB/s take 8.192 ns, and 64 instructions of each of 1024 / 32 warps take 2.048 ns.
        row = gpu_rules.predict(table(), {"copy": {"sm_90a": [64.0, 8.0]}}, "M")[0]
        self.assertAlmostEqual(row.seconds * 1e9, 8.192 + 2.048 / 4)
        self.assertAlmostEqual(row.limit * 1e9, 4.096)
        self.assertAlmostEqual(gpu_rules.total([row]) * 1e9, 2 * (8.192 + 0.512))

    def test_formulas_know_the_multiprocessors(self):
        self.assertEqual(gpu_rules.predict(table(bytes="8*SM"), {}, "M")[0].bytes, 800)

    def test_a_product_of_few_tiles_leaves_multiprocessors_idle_unless_it_is_searched(self):
        one = table()
        one["kernel"] = []
        one["linear"] = [{"name": "x", "times": "1", "rows": "8192", "out": "1280", "in": "640"}]  # dW: 50 tiles of 100
        one["shape"]["B"] = 16
        found, first = (gpu_rules.predict(one, {}, "M", searched)[2] for searched in (True, False))
        arithmetic = 2 * 8192 * 1280 * 640 / 100e12
        self.assertAlmostEqual((first.seconds - found.seconds) / arithmetic, 1)

    def test_a_weight_gradient_accumulates_except_in_the_first_rows_of_a_step(self):
        one = table()
        one["kernel"] = []
        one["linear"] = [{"name": "x", "times": "1", "rows": "N/2", "out": "64", "in": "32"}]
        moved = lambda S: gpu_rules.predict(one, {}, "M", shape={"B": 2, "T": 512, "S": S})[2].bytes
        written = 2 * 512 * (64 + 32) + 4 * 64 * 32
        self.assertAlmostEqual(moved(1), written + 4 * 64 * 32 / 2)
        self.assertAlmostEqual(moved(4), written + 4 * 64 * 32 * 7 / 8)

    def test_a_product_has_half_of_its_rate_at_half_k(self):
        one = {**table(), "machine": {"M": {**MACHINE, "half_k": 64.0}}, "kernel": []}
        one["linear"] = [{"name": "x", "times": "1", "rows": "65536", "out": "12800", "in": "64"}]  # many tiles
        forward = gpu_rules.predict(one, {}, "M", shape={"B": 64, "T": 1024, "S": 1})[0]
        moved = 2 * (65536 * 64 + 12800 * 64 + 65536 * 12800)
        self.assertAlmostEqual(forward.seconds * 1e3, 1e3 * max(2 * forward.flops / 100e12, moved / 1e12))

    def test_products_read_the_residual_stream_that_they_add_to(self):
        committed, counts, _ = COMMITTED
        s = committed["shape"]
        rows = gpu_rules.predict(committed, counts, "H200")
        without = {**committed, "linear": [{**linear, "residual": False} for linear in committed["linear"]]}
        moved = lambda rows: sum(row.times * row.bytes for row in rows)
        read = moved(rows) - moved(gpu_rules.predict(without, counts, "H200"))
        self.assertEqual(read, 2 * s["L"] * 2 * s["B"] * s["T"] * s["C"])  # 24 times 100 MB
        saved = gpu_rules.total(rows) - gpu_rules.total(gpu_rules.predict(without, counts, "H200"))
        self.assertAlmostEqual(1e3 * saved, 1e3 * read / committed["machine"]["H200"]["bytes"])

    def test_a_warp_of_attention_backward_sums_16_rows_with_wgmma_else_32(self):
        committed, counts, _ = COMMITTED
        rows_of_warp = lambda machine, **shape: [
            4 * 3 * committed["shape"]["C"] * committed["shape"]["T"] * shape.get("B", 64) / row.bytes
            for row in gpu_rules.predict(committed, counts, machine, shape={**committed["shape"], **shape})
            if row.name == "attention backward, sums of warps"]
        self.assertEqual(rows_of_warp("A100"), [32])
        self.assertEqual(rows_of_warp("H100"), [16])

    def test_several_gpus_share_the_update_and_send(self):
        committed, counts, _ = COMMITTED
        shape = model_gpu.rank_shape(committed, 8)
        rows = {row.name: row for row in gpu_rules.predict(committed, counts, "H200", shape=shape)}
        self.assertEqual(rows["AdamW"].bytes, 30 * shape["P"] / 8)
        m = committed["machine"]["H200"]
        self.assertAlmostEqual(rows["weights from their owners"].seconds,
                               2 * shape["P"] * 7 / 8 / m["link"] + m["launch"])
        self.assertTrue(all(row.times == 0 for row in gpu_rules.predict(committed, counts, "H200")
                            if "owners" in row.name))
        with self.assertRaisesRegex(SystemExit, "--ranks 3: must divide the step's 8 micro-steps"):
            model_gpu.rank_shape(committed, 3)

    def test_every_stack_has_one_owner(self):
        committed, _, _ = COMMITTED
        owners, _ = gpu_rules.placed(committed, 8)
        counts = {stack["name"]: int(gpu_rules.evaluate(stack["count"], committed["shape"]))
                  for stack in committed["stack"]}
        self.assertEqual({name: sum(owned[name] for owned in owners) for name in counts}, counts)
        self.assertLessEqual(max(owned.total() for owned in owners), 8)

    def test_ranks_launch_a_quarter_of_their_stacks_at_a_time(self):
        committed, counts, _ = COMMITTED
        rounds = re.search(r"kRounds = (\d+);", (ROOT / "optim/stacks.cpp").read_text(encoding="utf-8"))[1]
        self.assertEqual(int(rounds), gpu_rules.ROUNDS)
        most = lambda ranks: list(gpu_rules.placed(committed, ranks)[1].values())
        self.assertEqual((most(1), most(2), most(8)), ([18, 12, 12, 12], [3, 2, 2, 2], [1, 1, 1, 1]))
        owned = {stack["name"]: 0 for stack in committed["stack"]} | {"attention out": 5}
        at_once, split = (gpu_rules.newton_schulz(committed, counts, "H200", owned, batch)
                          for batch in (None, dict.fromkeys(owned, 2)))
        self.assertEqual([(row.times, row.tiles) for row in at_once], [(5, 5 * 21), (5, 5 * 21), (5, 5 * 36)])
        self.assertEqual([(row.times, row.tiles) for row in split],
                         [(10, 42), (10, 42), (10, 72), (5, 21), (5, 21), (5, 36)])
        flops = lambda rows: sum(row.times * row.flops for row in rows)
        self.assertEqual(flops(split), flops(at_once))
        self.assertGreater(gpu_rules.update_seconds(split), gpu_rules.update_seconds(at_once))

    def test_a_symmetric_product_uses_the_faster_method_or_follows_the_rule(self):
        # 100 matrices of 3 x 3 tiles on 100 multiprocessors: 6 rounds of our kernel, or 9 of the library's and a
        # copy of one triangle to the other.
        one = {**table(), "stack": [{"name": "x", "count": "100", "side": "384", "long": "384", "form": "standard",
                                     "kernel": "ours"}]}
        gram, squares, apply = gpu_rules.newton_schulz(one, {"ours": {"sm_90a": [0.0, 0.0]}}, "M")
        tile, square = 2 * 128 * 128 * 384 / 1e12, 2 * 100 * 384 * 384 / 1e12
        self.assertAlmostEqual(gram.kernel * 1e6, 1e6 * (6 * tile + 2 * square / 4))
        self.assertAlmostEqual(gram.library * 1e6, 1e6 * (9 * tile + square))
        self.assertAlmostEqual(apply.library * 1e6, 1e6 * max(4 * square, 9 * tile))
        self.assertTrue(gram.pays)
        self.assertEqual(gpu_rules.chosen(squares), squares.kernel)
        slower = squares._replace(kernel=2 * squares.library)
        self.assertEqual(gpu_rules.chosen(slower), squares.library)
        self.assertEqual(gpu_rules.chosen(slower, searched=False), slower.kernel)

    def test_the_committed_table_is_complete(self):
        committed, counts, _ = COMMITTED
        for machine in committed["machine"]:
            rows = gpu_rules.predict(committed, counts, machine)
            self.assertLess(gpu_rules.total(rows, "limit"), gpu_rules.total(rows))
        for kernel in compiled_counts.compiled(committed):
            self.assertTrue((ROOT / kernel["file"]).exists(), kernel["file"])
            self.assertEqual(sorted(counts[kernel["name"]]),
                             [kernel["only"]] if "only" in kernel else ["sm_80", "sm_90a"], kernel["name"])

    def test_gelu_in_epilogues_saves_its_passes_but_not_all_of_their_bytes(self):
        committed, counts, fitted = shown(self)
        apart, within = (gpu_rules.predict(committed, counts, "H200", gelu_fusion=fused) for fused in (False, True))
        s = committed["shape"]
        moved = lambda rows: sum(row.times * row.bytes for row in rows)
        # GELU forward reads and writes a tensor of the MLP's width, GELU backward reads two and writes one: 5 in all.
        # With epilogues 3 remain: GELU's input is written and read again, and the bias gradient reads the derivative's
        # output.
        width, sums = 2 * s["B"] * s["T"] * s["F"], 4 * s["F"] * (2 * 1024 - 2 * 256)
        self.assertAlmostEqual((moved(apart) - moved(within)) / s["L"], 5 * width - 3 * width + sums, delta=1)
        page = " ".join((ROOT / "docs/gpu_step.md").read_text(encoding="utf-8").split())
        saved, rate = (gpu_rules.total(apart) - gpu_rules.total(within),
                       gpu_rules.tokens_per_second(committed["shape"], gpu_rules.total(within)))
        low, high = calibration.interval(fitted, rate / 1000)
        for stated in (f"saves {1000 * saved:.1f} ms per micro-step",
                       f"prediction is {rate / 1000:.0f}k ({low:.0f} to {high:.0f}k) tokens/s"):
            self.assertTrue(stated in page, stated)

    def test_the_pages_show_the_tables(self):
        shown(self)
        for page, command in (("docs/gpu_step.md", []), ("docs/gpu_step.md", ["calibrate"]),
                              ("docs/eight_gpus.md", ["ranks"]), ("plan/gpu_rates.h", ["rates"])):
            printed = subprocess.run([sys.executable, ROOT / "bench/model_gpu.py", "--markdown", *command],
                                     capture_output=True, text=True, check=True).stdout
            self.assertTrue(printed in (ROOT / page).read_text(encoding="utf-8"), f"{page}: {command}")

    def test_the_readme_states_the_prediction_with_its_range(self):
        committed, counts, fitted = shown(self)
        readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
        for machine in ("H200", "H100"):
            speed = gpu_rules.tokens_per_second(committed["shape"],
                                                gpu_rules.total(gpu_rules.predict(committed, counts, machine))) / 1000
            low, high = calibration.interval(fitted, speed)
            stated = f"{speed:.0f}k ({low:.0f} to {high:.0f}k)"
            self.assertTrue(stated in readme, stated)
        shape = model_gpu.rank_shape(committed, 8)
        rows = gpu_rules.predict(committed, counts, "H200", shape=shape)
        all_speed = 8 * gpu_rules.tokens_per_second(shape, gpu_rules.total(rows)) / 1e6
        low, high = calibration.interval(fitted, all_speed)
        stated = f"{all_speed:.1f} million ({low:.1f} to {high:.1f})"
        self.assertTrue(stated in readme, stated)

    def test_without_a_disassembler_the_check_is_skipped_by_name(self):
        printed = io.StringIO()
        with mock.patch.object(compiled_counts, "find_tool", return_value=None), contextlib.redirect_stdout(printed):
            model_gpu.report_counts("check", "build", [], {}, {})
        self.assertTrue(printed.getvalue().startswith("SKIPPED: "), printed.getvalue())


def points(**more):
    """Points with one step of a program that moves 8 bytes per token, and its model."""
    step = {"program": "p", "gpu": "M", "model": "m", "B": 2, "T": 512, "S": 1, "W": 1, "tokens_per_s": 1e11,
            "source": "here"}
    return {"model": {"m": {}}, "program": {"p": {"linear": [], "kernel": [
        {"name": "pass", "times": "1", "bytes": "8*N"}]}}, "step": [step], "attention": [], "kernel": [], **more}


def published(program, which, tflops, causal=True):
    return {"program": program, "gpu": "M", "pass": which, "causal": causal, "HS": 64, "T": [1024], "tflops": [tflops],
            "source": "here"}


class Calibrating(Case):
    def setUp(self):
        super().setUp()
        self.path = self.folder / "measured.toml"
        self.published = calibration.POINTS.read_text(encoding="utf-8").split("# ---- added by make bench-gpu")[0]
        self.path.write_text(self.published, encoding="utf-8")

    def test_the_error_of_a_step_is_the_error_of_its_tokens_per_second(self):
        # 1024 tokens of 8 bytes at 1 TB/s take 8.192 ns: 1.25e11 tokens/s are predicted, 1e11 were measured.
        (checked,) = calibration.check(table(), {}, points())
        self.assertAlmostEqual(checked.predicted, 1.25e11)
        self.assertAlmostEqual(calibration.error(checked), math.log(1.25))

    def test_the_rate_of_a_backward_pass_follows_from_both_passes(self):
        # 2 products in 2/200 s and 5 in 5/100 s: 7 in 0.06 s, or 116.7 per second.
        self.assertAlmostEqual(calibration.backward_of(200, 7 / 0.06), 100)

    def test_attention_of_a_program_runs_at_the_published_rate(self):
        reference = "FlashAttention-2"
        tables = [published("a", "both", 119), published(reference, "forward", 200),
                  published(reference, "both", 7 / 0.06), published(reference, "backward", 125, False),
                  published("b", "forward", 300), published("b", "backward", 250, False)]
        rates = lambda program: calibration.attention_rates(points(attention=tables), program, "M", 1024, 64)
        self.assertEqual(rates("a"), (119, 119))
        forward, backward = rates("b")
        self.assertEqual(forward, 300)
        self.assertAlmostEqual(backward, 250 * 100 / 125)  # FlashAttention-2 loses a fifth by the mask

    def test_the_fit_recovers_the_rates_that_generated_the_points(self):
        committed, counts, _ = COMMITTED
        made = published_points()
        true = calibration.with_rates(committed, {"sm_80": 220e12, "sm_90a": 640e12}, 150.0, 0.5, 0.4)
        tables = {"FlashAttention-2": calibration.with_mma_sync(true), "FlashAttention-3": true}
        for point in made["attention"]:
            if point["program"] in tables and (point["HS"], point["causal"]) == (64, True):
                ours = tables[point["program"]]
                point["tflops"] = [calibration.ours_at(ours, counts, point["gpu"], point["pass"], T, 64)[0]
                                   for T in point["T"]]
        for point, step in zip(made["step"], calibration.check(true, counts, made)):
            point["tokens_per_s"] = step.predicted
        found = calibration.fit(committed, counts, made)
        self.assertAlmostEqual(found.rates["sm_80"] / 220e12, 1, places=3)
        self.assertAlmostEqual(found.rates["sm_90a"] / 640e12, 1, places=3)
        self.assertAlmostEqual(found.half_k, 150, delta=1)
        self.assertAlmostEqual(found.overlap, 0.5, places=3)
        self.assertAlmostEqual(found.wgmma_overlap, 0.4, places=3)
        self.assertLess(found.spread["step"], 1e-3)

    def test_least_squares_stays_within_its_limits(self):
        errors = lambda values: [values[0] - 3, values[0] + values[1] - 4]
        found = lambda *limits: [round(x, 6) for x in calibration.least_squares(errors, [0.0, 0.5], limits)]
        self.assertEqual(found((-9, 9), (-9, 9)), [3, 1])
        self.assertEqual(found((-9, 2), (0, 1)), [2, 1])

    def test_ranges_contain_19_of_20_published_points(self):
        _, _, fitted = COMMITTED
        for kind in ("step", "attention"):
            group = [point for point in fitted.checked if point.kind == kind and point.fits]
            inside = [low <= point.measured <= high for point in group
                      for low, high in [calibration.interval(fitted, point.predicted, kind)]]
            self.assertGreaterEqual(len(group), 8)
            self.assertGreaterEqual(sum(inside), 0.95 * len(inside), kind)

    def test_a_step_left_out_of_the_fit_is_predicted_as_well_as_the_page_says(self):
        table, counts, _ = shown(self)
        points, errors, inside, speeds = calibration.load(), [], 0, []
        for left_out in points["step"]:
            others = [point for point in points["step"] if point is not left_out]
            fitted = calibration.fit(table, counts, {**points, "step": others})
            rated = calibration.with_rates(table, *fitted[:4])
            (point, *_) = calibration.check(rated, counts, {**points, "step": [left_out]})
            errors.append(calibration.error(point))
            low, high = calibration.interval(fitted, point.predicted)
            inside += low <= point.measured <= high
            speeds.append(gpu_rules.tokens_per_second(table["shape"], gpu_rules.total(
                gpu_rules.predict(rated, counts, "H200"))) / 1000)
        mean = math.expm1(math.sqrt(sum(error * error for error in errors) / len(errors)))
        page = " ".join((ROOT / "docs/gpu_step.md").read_text(encoding="utf-8").split())
        for stated in (f"an error of {mean:.1%} (root of mean square), at most {math.expm1(max(map(abs, errors))):.0%}",
                       f"{inside} of {len(errors)} are in the range of that fit",
                       f"moves between {min(speeds):.0f}k and {max(speeds):.0f}k"):
            self.assertTrue(stated in page, stated)

    def test_a_range_is_two_standard_deviations(self):
        fitted = calibration.Fit({}, 0, 0, 0, {"step": math.log(1.1) / 2}, [])
        low, high = calibration.interval(fitted, 100)
        self.assertAlmostEqual(high, 110)
        self.assertAlmostEqual(low, 100 / 1.1)

    def test_the_first_rates_were_too_optimistic(self):
        committed, counts, fitted = COMMITTED
        first = calibration.load()["rules"]["first rates"]
        errors = [calibration.error(point) for point in calibration.check(
            calibration.with_rates(committed, first["rates"], first["half_k"], first["overlap"]), counts,
            published_points()) if point.kind == "step"]
        self.assertTrue(all(error > 0.05 for error in errors))
        mean = sum(calibration.error(point) for point in fitted.checked if point.kind == "step") / len(errors)
        self.assertLess(abs(mean), 0.02)

    def test_measurements_of_bench_gpu_are_added_and_change_the_fit(self):
        committed, counts, before = COMMITTED
        prediction = bench_gpu.Prediction("NVIDIA H200")
        self.assertEqual(prediction.known, "H200")
        ran = [{"name": "head forward", "count": 8, "ms": ms} for ms in (2.0, 2.2, 2.1)]
        ran += [{"name": "copy", "count": 0, "ms": 1.0}, {"name": "MLP up forward, GELU", "count": 12, "ms": 1.0},
                {"name": "norm forward", "count": 25, "ms": None}]
        ours = [{"T": 1024, "attention": kind, "tokens": 65536, "ms": ms}
                for kind, ms in (("flash", 160), ("gemm", 300))]
        added = bench_gpu.measured_points(ran, ours, prediction, "2026-11-23")
        self.assertEqual([kind for kind, _ in added], ["kernel", "step"])
        calibration.append(added, self.path)
        calibration.append([("kernel", {**added[0][1], "us": 2500})], self.path)
        self.assertTrue(self.path.read_text(encoding="utf-8").startswith(self.published))
        loaded = calibration.load(self.path)
        self.assertEqual([(point["name"], point["us"]) for point in loaded["kernel"]], [("head forward", 2500)])
        self.assertEqual(loaded["step"][-1]["tokens_per_s"], 409600)
        after = calibration.fit(committed, counts, loaded)
        own = [point for point in after.checked if point.program == "teon.cu"]
        self.assertEqual([(point.kind, point.gpu) for point in own], [("step", "H200"), ("kernel", "H200")])
        rate = lambda fitted: fitted.rates["sm_90a"] * 768 / (768 + fitted.half_k)
        self.assertLess(rate(after), 0.95 * rate(before))
        self.assertGreater(after.spread["step"], 0)

    def test_a_gpu_that_the_table_lacks_is_predicted_as_an_h200_but_adds_nothing(self):
        self.assertEqual(bench_gpu.Prediction("NVIDIA H100 80GB HBM3").known, "H100")
        for device in ("NVIDIA GeForce RTX 4090", "NVIDIA GH200 480GB", "NVIDIA H100 PCIe", "NVIDIA H200 NVL",
                       "NVIDIA H100 80GB HBM3 MIG 3g.40gb"):
            prediction = bench_gpu.Prediction(device)
            self.assertEqual((prediction.known, prediction.machine), (None, "H200"), device)

    def test_tables_contain_the_measurements_of_a_program_that_failed(self):
        device = {"name": "NVIDIA H200", "gpu": True, "peak_bf16_flops": 989e12}
        forward = {"method": "PyTorch cudnn", "pass": "forward", "T": 1024, "HS": 64, "ms": 0.1}
        found = bench_gpu.attention_table([forward])
        self.assertIn("| forward | 1024 | 64 | 34.4 | not run | not run | 344 | not run |", found)
        self.assertEqual(bench_gpu.limits_of(device, []), bench_gpu.H200)
        copied = {"name": "copy", "count": 0, "flops": 0, "bytes": 2 << 30, "ms": 0.5}
        self.assertEqual(bench_gpu.limits_of(device, [copied])["bytes"], (2 << 30) / 0.5e-3)
        kernel = {"name": "norm forward", "count": 25, "flops": 0, "bytes": 201e6, "ms": 0.1}
        table_of = lambda rows: bench_gpu.kernel_table(rows, bench_gpu.limits_of(device, rows),
                                                       bench_gpu.Prediction("NVIDIA H200"))
        self.assertIn("| 100 | 42% | 100.0% |", table_of([kernel]))

    def test_a_gpu_of_a_point_that_the_table_lacks_is_named(self):
        one = points()
        one["step"][0]["gpu"] = "N"
        with self.assertRaisesRegex(SystemExit, "step 1 is of N, which model_gpu.toml lacks; it has M"):
            calibration.check(table(), {}, one)

    def test_a_figure_that_is_not_a_positive_number_is_named(self):
        for bad in ("nan", "0", "-1", "inf"):
            self.path.write_text(f'[[kernel]]\nprogram = "teon.cu"\ngpu = "H100"\nname = "x"\nus = {bad}\n')
            with self.assertRaisesRegex(SystemExit, "us of kernel 1 is .*; it must be above 0"):
                calibration.load(self.path)
