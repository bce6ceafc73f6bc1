"""The rows and tables of dev/gpu_first.py:  dev/run_tests.py test/dev/test_first_hour.py"""

import json
import os
import types

from first_hour import report, rows, running, speed, stages
from testing import Case, write_program

SMI = """#!/bin/bash
case "$2" in
*driver_version*) echo "NVIDIA H200, 580.1, 1980, 3201, 700.00, 143771" ;;
*) echo "1755, 3201, 612.50, 51, 20480" ;;
esac
"""
PROGRAM = "#!/bin/bash\necho '1.0 (abc123)'\n"
DEVICE = {"name": "NVIDIA H200", "gpu": True, "peak_bf16_flops": 0, "h200_flops": 989e12, "h200_bytes": 4.8e12}


class FirstHour(Case):
    def machine(self):
        for name, text in (("nvidia-smi", SMI), ("train_gpt2", PROGRAM)):
            write_program(self.folder / name, text)
        path = os.environ["PATH"]
        self.addCleanup(os.environ.__setitem__, "PATH", path)
        os.environ["PATH"] = f"{self.folder}:{path}"
        return rows.machine_facts(self.folder / "train_gpt2")

    def test_each_row_has_driver_commit_and_clocks_and_is_not_repeated(self):
        facts = self.machine()
        first = rows.Rows(self.folder / "out", facts)
        row = first.add("b", "a test", "passed", 0.5)
        self.assertEqual((row["on"]["gpu"], row["on"]["driver"], row["on"]["commit"]),
                         ("NVIDIA H200", "580.1", "1.0 (abc123)"))
        self.assertEqual((row["clocks"]["sm_mhz"], row["clocks"]["watt"]), ("1755", "612.50"))
        self.assertEqual(report.measured_on(row), "580.1 / ? / ? / abc123 / 1755 MHz, 612.50 W")
        first.add("b", "a kernel", "hang")
        with open(first.path, "a") as file:
            file.write('{"stage": "b", "na')  # the call was killed here
        second = rows.Rows(self.folder / "out", facts)
        self.assertTrue(second.has("b", "a test") and second.has("b", "a kernel"))
        second.add("b", "another", "passed")
        self.assertEqual(json.loads(first.path.read_text().splitlines()[-1])["name"], "another")
        self.assertFalse(rows.Rows(self.folder / "out", facts, again=True).has("b", "a kernel"))
        self.assertFalse(rows.Rows(self.folder / "out", facts | {"commit": "1.0 (def456)"}).has("b", "a test"))

    def test_memory_of_a_run_excludes_what_ran_before_it_and_beside_it(self):
        self.machine()
        write_program(self.folder / "nvidia-smi", "#!/bin/bash\nexit 9\n")
        clocks = rows.Clocks()
        self.assertEqual((clocks.now, clocks.used_since(0)), ({}, 0))
        clocks.used = [(1, 3000), (2, 26000), (3, 3000), (4, 24000), (5, 8000)]
        self.assertEqual([clocks.used_since(start) for start in (0, 3, 5, 6)], [23000, 21000, 5000, 0])

    def test_runs_go_on_with_portable_kernels_if_one_of_hopper_fails(self):
        call = types.SimpleNamespace(rows=rows.Rows(self.folder / "out", self.machine()))
        call.rows.add("b", "kernels/attention/flash: is right", "passed")
        call.rows.add("b", "kernels/norm: is right", "failed")
        self.assertEqual(stages.kernels(call), [])
        call.rows.add("b", "kernels/attention/flash: is right for documents", "hang")
        self.assertEqual(stages.kernels(call), ["--kernels", "portable"])

    def test_tables_contain_the_measurements_of_a_program_that_failed(self):
        ours = {"method": "flash", "pass": "forward", "T": 1024, "HS": 64, "flops": 34.4e9}
        torch = {"method": "PyTorch cudnn", "pass": "forward", "T": 1024, "HS": 64, "ms": 0.1}
        self.assertIn("| forward | 1024 | 64 | 34.4 | not run | 344 | not run |",
                      report.attention_table([ours], [torch]))
        self.assertIn("| forward | 1024 | 64 | 34.4 | 172 | 344 | 0.50 |",
                      report.attention_table([ours | {"ms": 0.2}], [torch]))
        self.assertEqual(report.limits_of(DEVICE, [])["bytes"], 4.8e12)
        copied = {"name": "copy", "count": 0, "flops": 0, "bytes": 2 << 30, "ms": 0.5}
        self.assertEqual(report.limits_of(DEVICE, [copied])["bytes"], (2 << 30) / 0.5e-3)
        kernel = {"name": "norm forward", "count": 25, "flops": 0, "bytes": 201e6, "ms": 0.1}
        limits = report.limits_of(DEVICE, [])
        self.assertIn("| 42 | 100 | 42% | 100.0% | 50 |",
                      report.kernel_table([kernel], [{"name": "norm forward", "ms": 0.05}], limits))
        update = kernel | {"name": "AdamW", "count": 1, "ms": 0.8}  # once for eight micro-batches
        self.assertRegex(report.kernel_table([kernel, update], [], limits), r"(?s)\| 96\.2% \|.*\| 3\.8% \|")

    def test_counters_are_read_from_the_csv_that_ncu_prints(self):
        # The format of ncu --csv --print-units base in outputs that others have published; not yet from a run of ours.
        head = ('"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size",'
                '"Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"')
        line = ('"0","7","bench_gpu","127.0.0.1","void teon::norm_forward_kernel<teon::bf16, 4>(teon::bf16 *, int)",'
                '"1","13","(256, 1, 1)","(2048, 1, 1)","0","9.0","Command line profiler metrics","{}","{}","{}"')
        text = lambda us, unit, sm, dram: "\n".join(
            ["==PROF== Connected to process 7 (/first/bench_gpu)", '{"kind": "kernel", "name": "copy"}', head,
             line.format(speed.COUNTERS["dram_percent"], "%", dram), line.format(speed.COUNTERS["us"], unit, us),
             line.format(speed.COUNTERS["sm_percent"], "%", sm), "==PROF== Disconnected from process 7"])
        self.assertEqual(speed.counted(text("64,032", "ns", "38.25", "91.50")),
                         {"us": 64.032, "sm_percent": 38.25, "dram_percent": 91.5})
        self.assertEqual(speed.counted(text("1,205.00", "usecond", "n/a", "7")), {"us": 1205.0, "dram_percent": 7.0})
        self.assertEqual(speed.counted("==ERROR== ERR_NVGPUCTRPERM - ..."), {})
        row = {"name": "ncu: norm forward", "ncu": {"us": 64.032, "dram_percent": 91.5}}
        self.assertIn("| norm forward | 64.0 | - | 91.5 |", report.counters([row]))

    def test_a_build_counts_towards_the_time_of_a_call_unless_it_outlasts_it(self):
        self.assertEqual([running.seconds_left(520, build) for build in (0, 85, 460, 461, 900)],
                         [520, 435, 60, 520, 520])

    def test_what_is_furthest_from_its_limit_comes_first(self):
        text = report.furthest([(0.9, "near"), (0.2, "far"), (1.1, "beyond")])
        self.assertLess(text.index("far"), text.index("near"))
        self.assertLess(text.index("near"), text.index("beyond"))

    def test_versions_as_libraries_report_them(self):
        self.assertEqual([report.version(n) for n in ("13000", "12040", "130100", "")], ["13.0", "12.4", "13.1.0", "?"])

    def test_a_missing_or_old_driver_is_refused_before_the_first_row(self):
        def fault(needs, has):
            return rows.fault_of_driver({"cuda": needs, "driver_cuda": has})

        self.assertIn("no NVIDIA driver here", fault("13000", "0"))
        self.assertIn("is for CUDA 12, the programs need 13", fault("13000", "12080"))
        self.assertEqual([fault("13000", "13000"), fault("13020", "13000"), fault("12080", "13000")], [""] * 3)
        self.assertEqual(rows.fault_of_driver({}), "")  # not linked with CUDA
