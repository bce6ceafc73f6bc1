"""bench/compare_output.py:  dev/run_tests.py test/dev/test_bench.py"""

import contextlib
import io
import re
import sys
from unittest import mock

from testing import ROOT, Case

sys.path.insert(0, str(ROOT / "bench"))
import compare_output


def output(float_rate, bf16_rate, processor, ms, load):
    """Two programs' tables, as `make bench` prints them."""
    lines = ["build/cpu/bench/bench_linalg", "cpu backend, some CPU, 2 threads",
             f"{'':<24} {'M':>5} {'type':>6} {'median us':>10} {'GFLOP/s':>10} {'of a core':>10}"]
    for name, dtype, rate in (("X X^T", "float", float_rate), ("X X^T", "bf16", bf16_rate)):
        lines.append(f"{name:<24} {512:>5} {dtype:>6} {1.5:>10.1f} {7:>10.1f} {rate:>10.1f}")
    lines += ["build/cpu/bench/bench_kernels",
              f"{'kernel':<16} {'type':<6} {'bytes':>6} {'G elements':>10} {'GB/s':>8}",
              f"{'AdamW':<16} {'float':<6} {28:>6.1f} {0.5:>10.2f} {14:>8.1f}",
              "GPT-2 3.00M, 8 x 256 tokens, float, AdamW: 250.0 ms/step, 8000 tokens/s",
              "bench/bench_train.py", "", f"GPT-2 3M on 2 cores, load {load:.1f}",
              f"{'':<16}{'tokens/s':>10}{'cpu s/step':>12}", f"{'ours float':<16}{5000:>10.0f}{processor:>12.3f}",
              "bench/bench_shared.py", f"{'dtype':<8}{'at once':>8}{'ms/step':>10}", f"{'bf16':<8}{2:>8}{ms:>10.1f}"]
    return "\n".join(lines) + "\n"


def printed(folder, path):
    """Returns what compare_output.py prints about a file if the outputs of all machines are in `folder`."""
    text = io.StringIO()
    with mock.patch.object(compare_output, "MEASURED", folder), contextlib.redirect_stdout(text), \
            mock.patch.object(sys, "argv", ["compare_output.py", str(path)]):
        compare_output.main()
    return text.getvalue()


class CompareTest(Case):
    def compare(self, before, now):
        stored, new = self.folder / f"{compare_output.machine()}.txt", self.folder / "bench.txt"
        stored.write_text(output(*before))
        new.write_text(output(*now))
        return printed(self.folder, new)

    def test_rows_that_are_more_than_10_percent_slower_are_named(self):
        self.assertEqual(self.compare((100, 200, 2.0, 10, 0.1), (89, 182, 2.3, 11.2, 3.2)).splitlines()[:-1], [
            "slower: bench_linalg: cpu backend, some CPU, 2 threads: X X^T 512 float: 89 of a core, 100 before",
            "slower: bench_shared.py: : bf16 2: 11.2 ms/step, 10 before",
            "slower: bench_train.py: GPT-2 3M on 2 cores: ours float: 2.3 cpu s/step, 2 before"])
        self.assertIn("5 rows compared", self.compare((100, 200, 2.0, 10, 0.1), (95, 250, 1.0, 9, 0.1)))

    def test_a_new_machine_is_told_what_to_keep(self):
        new = self.folder / "bench.txt"
        new.write_text(output(1, 1, 1, 1, 1))
        self.assertIn(f"copy {new} to", printed(self.folder / "none", new))

    def test_every_compared_column_is_one_of_a_benchmark(self):
        sources = "".join(path.read_text() for path in (ROOT / "bench").glob("bench_*"))
        for header in compare_output.PROCESSOR | compare_output.CLOCK:
            self.assertTrue(re.search(rf"""['"]{re.escape(header)}['"]""", sources), header)

    def test_a_text_that_no_models_name_has_is_refused(self):
        error = self.call(sys.executable, ROOT / "bench/bench_train.py", "--models", "3X", expect=2).stderr
        self.assertIn("no model's name has '3X'; there are GPT-2 3M;", error)
