"""The tables of bench/bench_gpu.py:  scripts/run_tests.py test/bench/test_bench_gpu.py"""
import sys
import unittest

from testing import ROOT

sys.path.insert(0, str(ROOT / "bench"))
import bench_gpu


class Tables(unittest.TestCase):
    def test_tables_contain_the_measurements_of_a_program_that_failed(self):
        device = {"name": "NVIDIA H200", "gpu": True, "peak_bf16_flops": 0, "h200_flops": 989e12, "h200_bytes": 4.8e12}
        forward = {"method": "PyTorch cudnn", "pass": "forward", "T": 1024, "HS": 64, "ms": 0.1}
        text = bench_gpu.attention_table([forward])
        self.assertIn("| forward | 1024 | 64 | 34.4 | not run | not run | 344 | not run |", text)
        self.assertEqual(bench_gpu.limits_of(device, [])["bytes"], 4.8e12)
        copied = {"name": "copy", "count": 0, "flops": 0, "bytes": 2 << 30, "ms": 0.5}
        self.assertEqual(bench_gpu.limits_of(device, [copied])["bytes"], (2 << 30) / 0.5e-3)
        kernel = {"name": "norm forward", "count": 25, "flops": 0, "bytes": 201e6, "ms": 0.1}
        self.assertIn("| 42 | 100 | 42% | 100.0% |",
                      bench_gpu.kernel_table([kernel], bench_gpu.limits_of(device, [kernel])))
