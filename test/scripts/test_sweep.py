"""scripts/sweep.py:  dev/run_tests.py test/scripts/test_sweep.py"""

import fcntl
import json
import math
import os
import pathlib
import pty
import re
import shutil
import signal
import sys
import time
from unittest import mock

import testing
from common import live
from testing import RUN_STEPS, SCRIPTS, Case, change_json, read_json, temporary_folder, write_run

from experiments import cells, grid

# Takes the flags of a training program and writes a run as the engine does. Executes FAKE before it; LOSS is the final
# loss.
FAKE_TRAINER = f"""
import os, pathlib, signal, sys, time
sys.path.append({str(pathlib.Path(testing.__file__).parent)!r})
words = [word for word in sys.argv[1:] if word != "--resume"]
flags = dict(zip(*[iter(word.removeprefix("--") for word in words)] * 2))
out = pathlib.Path(flags.pop("out"))
out.mkdir(parents=True, exist_ok=True)
open(out / "started", "a").write("x")
if flags.get("lr") == "9": sys.exit(2)
optimizer, seed, lr = flags.pop("optimizer", "adamw"), int(flags.pop("seed")), float(flags.pop("lr", 1))
exec(os.environ.get("FAKE", ""))
import math
from testing import change_json, read_json, write_run
options = {{"weight-decay": float(flags.get("weight-decay", 0.1)), "shuffle": flags.get("shuffle", "on") != "off",
            "data": flags.get("data", ""), "log-every": 1}}
run = write_run(out, optimizer, seed, [eval(os.environ.get("LOSS", "lr + seed / 100"))] * 4, lr=lr)
change_json(run / "config.json", options=read_json(run / "config.json")["options"] | options)
exec(os.environ.get("THEN", ""))
"""


class SweepTest(Case):
    def setUp(self):
        super().setUp()
        (self.folder / "fake.py").write_text(FAKE_TRAINER)
        self.cells = self.folder / "runs/sweep"

    def words(self, *arguments, flags=(), command=True):
        return [*arguments, *(["--", sys.executable, self.folder / "fake.py", *flags] if command else [])]

    def command(self, *arguments):
        return [sys.executable, SCRIPTS / "sweep.py", *self.words(*arguments)]

    def environment(self, **values):
        stub = self.folder / "stub"  # without plots, which are slow
        stub.mkdir(exist_ok=True)
        (stub / "matplotlib.py").write_text("raise ImportError")
        (stub / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
        (stub / "nvidia-smi").chmod(0o755)
        cleared = {k: v for k, v in os.environ.items() if k not in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")}
        return cleared | {"PYTHONPATH": str(stub), "PATH": f"{stub}:{os.environ['PATH']}", **values}

    def sweep(self, *arguments, flags=(), command=True, expect=0, **environment):
        with mock.patch.dict(os.environ, self.environment(**environment), clear=True), \
                mock.patch.dict(sys.modules, matplotlib=None):
            return self.run_here("sweep.py", *self.words(*arguments, flags=flags, command=command), expect=expect)

    def refused(self, *arguments, **how):
        """Returns the one line with which a sweep is refused."""
        return self.error_here("sweep.py", *self.words(*arguments, **how))

    def wait_for(self, what):
        """Waits until the condition holds; without a limit, because the test runner has one."""
        while not what():
            time.sleep(0.02)

    def starts(self):
        return sorted(p.parent.name for p in self.cells.glob("*/started") for _ in p.read_text())

    def test_the_grid_runs_once_and_is_compared(self):
        grid = ["--grid", "optimizer=muon,teon", "--grid", "lr=1,2", "--seeds", "1,2"]
        result = self.sweep(*grid, "--baseline", "teon")
        self.assertEqual(len(self.starts()), 8)
        self.assertRegex(result.stdout, r"run  .*\nteon lr=1 .*\nmuon lr=1 .*\nmuon lr=2 .*\nteon lr=2 ")
        self.assertTrue((self.cells / "compare/compare.md").exists())
        before = {p: p.stat().st_mtime_ns for p in self.cells.glob("*/metrics.jsonl")}
        (self.cells / "optimizer_teon-lr_2-seed_1/metrics.jsonl").write_text("")  # one log was cut off
        self.sweep(*grid)
        changed = [p.parent.name for p, at in before.items() if p.stat().st_mtime_ns != at]
        self.assertEqual(changed, ["optimizer_teon-lr_2-seed_1"])

    def test_cells_of_another_command_are_refused_and_the_flag_named(self):
        grid = ["--grid", "lr=1,2"]
        begun = ["--weight-decay", "0.5", "--data", "d", "--log-every", "3", "--shuffle", "on"]
        same = ["--shuffle", "true", "--data", "d", "--log-every", "7", "--weight-decay", "5e-1"]
        for flags in (begun, begun, same):
            self.sweep(*grid, flags=flags)
        for flags, said in ((["--weight-decay", "4", "--data", "d", "--shuffle", "on"], "--weight-decay 0.5, now 4"),
                            (["--weight-decay", "0.5", "--data", "e", "--shuffle", "on"], "--data d, now e"),
                            (["--weight-decay", "0.5", "--data", "d", "--shuffle", "off"], "--shuffle on, now off"),
                            (["--data", "d", "--shuffle", "on"], "--weight-decay 0.5, now without")):
            for more in ([], ["--dry-run"]):
                error = self.refused(*grid, *more, flags=flags)
                self.assertIn(said, error)
                self.assertIn("runs/sweep/lr_1-seed_1337", error)
        for record in self.cells.glob("*.json"):  # as in a sweep of an earlier version
            record.unlink()
        self.sweep(*grid, flags=begun)
        self.assertIn("--weight-decay 0.5, now 2", self.refused(*grid, flags=["--weight-decay", "2"]))
        self.assertEqual(len(self.starts()), 2)

    def test_cells_of_another_program_or_config_file_are_refused(self):
        first, same, other = (self.folder / name for name in ("first.toml", "same.toml", "other.toml"))
        for path, text in ((first, "steps = 2"), (same, "steps = 2"), (other, "steps = 3")):
            path.write_text(text)
        for path in (first, same):
            self.sweep("--grid", "lr=1", flags=["--config", path])
        self.assertIn("lr_1-seed_1337 is a run with other flags (--config other.toml has other content)",
                      self.refused("--grid", "lr=1", flags=["--config", "other.toml"]))
        self.assertIn("first.toml, now without", self.refused("--grid", "lr=1"))
        first.write_text("steps = 4")
        self.assertIn("other content", self.refused("--grid", "lr=1", flags=["--config", first]))
        command = ["--", sys.executable, self.folder / "fake2.py", "--config", same]
        self.assertIn("(fake.py, now fake2.py)", self.refused("--grid", "lr=1", *command, command=False))
        self.assertEqual(self.starts(), ["lr_1-seed_1337"])

    def test_each_cell_has_a_folder_of_its_own(self):
        toml = self.folder / "s.toml"
        for arguments, text, said in ((["--grid", "seed=1,2"], "", "seed: cannot be in the grid or a cell; use --s"),
                                      (["--grid", "out=a,b"], "", "use --out of sweep.py"),
                                      ([], "[[cells]]\nlr = 1\nseed = 2", "use --seeds"),
                                      (["--grid", "lr=1,1"], "", "runs/sweep/lr_1-seed_1337: the folder of more than"),
                                      (["--grid", "lr=1", "--seeds", "3,3"], "", "runs/sweep/lr_1-seed_3: the folder"),
                                      (["--grid", "data=a/b,a_b"], "", "runs/sweep/data_a_b-seed_1337: the folder"),
                                      (["--grid", "lr=1"], "[[cells]]\nlr = 1", "runs/sweep/lr_1-seed_1337: the")):
            toml.write_text(text)
            for more in ([], ["--dry-run"]):
                self.assertIn(said, self.refused(toml, *arguments, *more))
        self.assertEqual(self.starts(), [])

    def test_a_run_of_another_process_is_not_changed(self):
        folder = self.cells / "lr_1-seed_1337"
        for locked in ("", "lock"):  # an engine holds both; NFS does not lock folders
            for saved in ("", "step_00000001"):
                with self.subTest(locked=locked, saved=saved):
                    (folder / saved).mkdir(parents=True)
                    (folder / "lock").touch()
                    engine = os.open(folder / locked, os.O_RDONLY)
                    fcntl.flock(engine, fcntl.LOCK_EX)
                    error = self.refused("--grid", "lr=1")
                    os.close(engine)
                    self.assertIn("runs/sweep/lr_1-seed_1337: another process is writing it", error)
                    self.assertTrue((folder / "lock").exists())
                    shutil.rmtree(folder)
        folder.mkdir()
        self.sweep("--grid", "lr=1")

    def test_a_checkpoint_below_any_folder_name_is_resumed(self):
        step = self.folder / "out[1]*" / "lr_1-seed_1337" / "step_00000001"
        step.mkdir(parents=True)
        result = self.sweep("--grid", "lr=1", "--out", "out[1]*")
        self.assertTrue(step.exists())
        self.assertIn("--resume", result.stdout)

    def test_a_cell_that_another_sweep_has_finished_is_kept(self):
        wait = f"\nwhile not os.path.exists('{self.folder}/go'): time.sleep(0.02)"
        process = self.start(*self.command("--grid", "lr=1,2"), env=self.environment(FAKE=wait))
        self.wait_for((self.cells / "lr_1-seed_1337/started").exists)
        self.sweep("--grid", "lr=2")
        (self.folder / "go").touch()
        output, errors = process.communicate()
        self.assertEqual(process.returncode, 0, errors)
        self.assertIn("[2/2] lr=2 seed=1337: finished\n", output)
        self.assertEqual(self.starts(), ["lr_1-seed_1337", "lr_2-seed_1337"])

    def test_auto_is_not_what_a_cell_was_given(self):
        for begun, now, changed in (({"dtype": "float"}, {"dtype": "auto"}, True), ({}, {"dtype": "auto"}, False),
                                    ({"dtype": "auto"}, {"dtype": "auto"}, False),
                                    ({"dtype": "auto"}, {"dtype": "bf16"}, True),
                                    ({"dtype": "float"}, {"dtype": "float"}, False)):
            with self.subTest(begun=begun, now=now):
                folder = temporary_folder(self.addCleanup) / "cell"
                write_run(folder, dtype="float")
                (folder.parent / "cell.json").write_text(json.dumps({"flags": begun, "program": "train_gpt2"}))
                change = cells.stale(str(folder), {"flags": now, "program": "train_gpt2"})
                self.assertEqual("--dtype" in change, changed)

    def test_values_of_config_json_and_of_flags(self):
        for text, value in (("0.02", 0.02), ("2e-2", 0.02), ("2.5e-3", 0.0025), ("512Ki", 524288), ("1M", 10**6),
                            ("on", True), ("", True), ("off", False), ("q,k", ["q", "k"]), ("q=0.5", {"q": 0.5}),
                            ("auto", "auto"), ("auto", None), ("a", "a")):
            self.assertTrue(cells.is_value(text, value), (text, value))
        for text, value in (("0.02", 0.03), ("10", 20), ("on", False), ("off", True), ("q", ["q", "k"]), ("a", "b"),
                            ("auto", "bf16"), ("auto", "float"), ("1", None),
                            *((text, 1.2) for text in ("1..2", "1.2.3", "..", "٣", "1e", "7" * 10000))):
            self.assertFalse(cells.is_value(text, value), (text[:9], value))

    # Takes some time to save, as an engine that writes a checkpoint, and then executes END.
    SAVES = """
def save(*_):
    for number in (signal.SIGTERM, signal.SIGUSR1): signal.signal(number, signal.SIG_IGN)
    (out / "saving").touch()
    for _ in range(int(os.environ["SAVE_TAKES"])): time.sleep(0.1)
    (out / "step_00000001").mkdir()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    exec(os.environ["END"])
if not (out / "step_00000001").exists():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1): signal.signal(number, save)
    (out / "ready").touch()
    while True: time.sleep(0.1)
"""

    def test_ctrl_c_lets_the_cells_save(self):
        ends = ("os._exit(0)", "os.kill(os.getpid(), signal.SIGINT)")
        for end, (jobs, to_all) in ((end, how) for end in ends for how in ((1, True), (2, False))):
            with self.subTest(end=end, jobs=jobs):
                arguments = ["--grid", "lr=1,2", "--jobs", jobs, "--out", f"out{ends.index(end)}{jobs}"]
                process = self.start(*self.command(*arguments), start_new_session=True,
                                     env=self.environment(FAKE=self.SAVES, SAVE_TAKES="8", END=end))
                out = self.folder / arguments[-1]
                self.wait_for(lambda: len(list(out.glob("*/ready"))) == jobs)
                (os.killpg if to_all else os.kill)(process.pid, signal.SIGINT)
                _, errors = process.communicate()
                self.assertEqual(process.returncode, 130, errors)
                self.assertIn(f"{jobs} running: they save, then end", errors)
                self.assertIn("run the same command to continue", errors)
                self.assertEqual(len(list(out.glob("*/step_*"))), jobs)  # saved; no further cell was begun
                self.assertEqual(len(list(out.glob("*/started"))), jobs)
                self.sweep(*arguments)

    def test_signals_that_a_scheduler_repeats_let_the_cells_save(self):
        for i, sequence in enumerate(([signal.SIGTERM] * 3, [signal.SIGUSR1, signal.SIGTERM],
                                      [signal.SIGTERM, signal.SIGINT])):
            with self.subTest(sequence):
                out = self.folder / f"out{i}"
                process = self.start(*self.command("--grid", "lr=1,2", "--out", out),
                                     env=self.environment(FAKE=self.SAVES, SAVE_TAKES="8", END="os._exit(0)"))
                self.wait_for(lambda out=out: list(out.glob("*/ready")))
                for number in sequence:
                    process.send_signal(number)
                    time.sleep(0.2)
                _, errors = process.communicate()
                self.assertEqual(process.returncode, 130, errors)
                self.assertEqual(len(list(out.glob("*/step_*"))), 1, errors)

    def test_a_second_ctrl_c_kills_the_cells(self):
        process = self.start(*self.command("--grid", "lr=1"),
                             env=self.environment(FAKE=self.SAVES, SAVE_TAKES="1000000", END=""))
        for sign in ("ready", "saving"):
            self.wait_for(lambda: list(self.cells.glob(f"*/{sign}")))
            process.send_signal(signal.SIGINT)
        process.communicate()
        self.assertEqual(process.returncode, 130)
        self.assertFalse(list(self.cells.glob("*/step_*")))

    # Waits until JOBS cells run, and records its environment.
    TOGETHER = """
while len(list(out.parent.glob("*/started"))) < int(os.environ["JOBS"]): time.sleep(0.02)
(out / "given").write_text(" ".join(os.environ.get(x, "-") for x in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")))
"""

    def test_parallel_jobs_get_a_gpu_or_a_share_of_the_cores_each(self):
        def given():
            return sorted(p.read_text() for p in self.cells.glob("*/given"))

        cores = len(os.sched_getaffinity(0))
        self.sweep("--grid", "lr=1,2,3", "--jobs", 3, FAKE=self.TOGETHER, JOBS="3")
        self.assertEqual(given(), [f"- {max(1, cores // 3)}"] * 3)
        self.sweep("--grid", "lr=1,2,3,4", "--jobs", 2, "--seeds", "7,", FAKE=self.TOGETHER, JOBS="2",
                   CUDA_VISIBLE_DEVICES="5,3", OMP_NUM_THREADS="6")
        self.assertEqual({text for text in given() if "-" not in text}, {"3 6", "5 6"})
        result = self.sweep("--grid", "lr=1,2,3", "--jobs", 3, CUDA_VISIBLE_DEVICES="5,3", expect=2)
        self.assertIn("--jobs 3: this machine has 2 GPUs", result.stderr)
        with mock.patch.dict(os.environ, clear=True), mock.patch("subprocess.run") as smi:
            smi.return_value.stdout = "GPU 0: NVIDIA H100 (UUID: x)\nGPU 1: NVIDIA H100 (UUID: y)\n"
            self.assertEqual(grid.gpus(), ["0", "1"])

    def test_a_terminal_shows_a_line_for_each_running_cell_and_one_for_the_sweep(self):
        ours, theirs = pty.openpty()
        wait = "\nwhile not os.path.exists('seen'): time.sleep(0.02)"
        process = self.popen(self.command("--grid", "lr=1,2,3", "--jobs", 2), self.environment(FAKE=wait), {},
                             stdout=theirs, stderr=theirs)
        os.close(theirs)
        shown = ""
        while process.poll() is None or not shown.endswith("\n"):
            try:
                shown += os.read(ours, 1 << 16).decode(errors="replace")
            except OSError:  # the other end was closed
                break
            if "2 running" in shown:
                (self.folder / "seen").touch()
        os.close(ours)
        self.assertEqual(process.wait(), 0, shown)
        self.assertRegex(shown, "lr=1 seed=1337  0/0 .*starting")
        self.assertIn("0 of 3 cells finished, 2 running", shown)
        self.assertRegex(shown, r"lr=2 seed=1337: done in \d+s, validation loss 15\.37")

    def test_a_terminal_of_unknown_size_has_80_columns(self):
        with mock.patch("shutil.get_terminal_size", return_value=os.terminal_size((0, 0))):
            self.assertEqual(live.terminal_size(), (80, 24))

    def test_time_left(self):
        whole, folder = grid.Grid([], str(self.cells), 2), write_run(self.cells / "cell")
        change_json(folder / "config.json", run={"steps": RUN_STEPS + 900})
        step, total, loss, seconds = whole.progress(str(folder))
        self.assertEqual((step, total, loss), (RUN_STEPS, RUN_STEPS + 900, 3.0))
        self.assertAlmostEqual(seconds, 9)  # 900 steps of 10 ms
        whole.waiting, whole.took = [{}, {}, {}], [100]
        began = mock.Mock(began=900)
        with mock.patch("time.monotonic", return_value=1000):
            self.assertEqual(whole.time_left([began, began], [0, 0]), ", 2m30s left")  # 3 cells of 100 s in 2 slots
            self.assertEqual(whole.time_left([began], [None]), "")

    def test_the_next_rate(self):
        self.assertEqual(cells.next_rate({1: 3.0, 2: 2.0, 4: 1.0}), 8)
        self.assertEqual(cells.next_rate({0.01: 1.0, 0.02: 2.0}), 0.005)
        self.assertEqual(cells.next_rate({1: math.inf, 2: math.inf}), 0.5)  # all have diverged
        for losses in ({1: 3.0, 2: 1.0, 4: 2.0}, {1: 3.0, 2: None}, {1: 1.0}, {}, {0: 2.0, 1: 1.0}, {0: 1.0, 1: 2.0}):
            self.assertIsNone(cells.next_rate(losses))

    def test_a_best_rate_at_the_end_of_the_grid_is_reported_and_the_grid_extended(self):
        best_at_8 = "abs(math.log2(lr) - {'teon': 3}.get(optimizer, 1)) + seed / 100"
        grid = ["--grid", "optimizer=muon,teon", "--grid", "lr=1,2,4", "--seeds", "1,2"]
        result = self.sweep(*grid, LOSS=best_at_8)
        self.assertIn("optimizer=teon: the best rate, 4, is an end of the grid; 8 would follow (--extend-grid)",
                      result.stderr)
        self.assertNotIn("muon: the best", result.stderr)
        result = self.sweep(*grid, "--extend-grid", LOSS=best_at_8)
        self.assertNotIn("would follow", result.stderr)
        added = sorted(f"optimizer_teon-lr_{rate}-seed_{seed}" for rate in (8, 16) for seed in (1, 2))
        self.assertEqual([name for name in self.starts() if "lr_8" in name or "lr_16" in name], added)
        self.sweep(*grid, "--extend-grid", LOSS=best_at_8)  # nothing runs twice
        self.assertEqual(len(self.starts()), 12 + 4)
        result = self.sweep("--grid", "lr=4,8", "--out", "d", FAKE="if lr > 7: sys.exit(1)", expect=1)
        self.assertIn("failed: d/lr_8-seed_1337 (exit status 1)", result.stderr)
        self.assertNotIn("the best rate", result.stderr)  # the other rate's loss is not known
        endless = self.sweep("--grid", "lr=4,8", "--extend-grid", 2, "--out", "o")  # the loss is the rate
        self.assertIn("the grid: the best rate, 1, is an end of the grid; 0.5 would follow", endless.stderr)

    def test_only_a_validation_loss_that_is_not_finite_means_diverged(self):
        def run(name, old, new):
            path = write_run(self.cells / name, seed=1337) / "metrics.jsonl"
            path.write_text(re.sub(old, new, path.read_text()))
            return path.parent

        self.assertEqual(cells.loss_of(run("skipped", '"loss": 4.3', '"loss": null')), 2.2)
        self.assertEqual(cells.loss_of(run("diverged", '"val_loss": 2.2', '"val_loss": null')), math.inf)
        self.assertIsNone(cells.loss_of(run("damaged", '"kind"', '"king"')))
        self.assertIsNone(cells.loss_of(self.folder))
        path = run("lr_0.01-seed_1337", '.*"eval".*\n', "") / "config.json"
        change_json(path, data={"train": [{"path": "a", "tokens": 100}], "val": []})
        self.assertIn("lr_0.01-seed_1337: has no validation loss; give the run --val-data",
                      self.refused("--grid", "lr=0.01"))

    def test_a_run_ended_because_of_skipped_updates_has_diverged(self):
        diverges = "if lr > 7:\n from testing import end_by_skipped_updates\n end_by_skipped_updates(run)\n sys.exit(1)"
        for state in ("diverged after", "diverged"):  # while it runs, and for a later command
            result = self.sweep("--grid", "lr=4,8", THEN=diverges, expect=1)  # compare.py's status
            self.assertIn(f"[2/2] lr=8 seed=1337: {state}", result.stdout)
            self.assertIn("lr_8-seed_1337: ended after step 2 of 20: too many updates were skipped", result.stderr)
            self.assertIn("the best rate, 4, is an end of the grid; 2 would follow", result.stderr)
        self.assertEqual(self.starts(), ["lr_4-seed_1337", "lr_8-seed_1337"])

    def test_toml(self):
        (self.folder / "s.toml").write_text(f"command = ['{sys.executable}', '{self.folder}/fake.py']\nseeds = [3]\n"
                                            "[grid]\nlr = [1, 2]\n[[cells]]\noptimizer = 'teon'\nlr = 5\n")
        self.sweep("s.toml", command=False)
        self.assertEqual(self.starts(), ["lr_1-seed_3", "lr_2-seed_3", "optimizer_teon-lr_5-seed_3"])

    def test_a_command_may_follow_without_two_dashes(self):
        program = self.folder / "train_fake"
        program.write_text(f"#!{sys.executable}\n{FAKE_TRAINER}")
        program.chmod(0o755)
        self.sweep("--grid", "lr=1,2", "--out", "train_of_today", program, "--data", "d", command=False)
        options = read_json(self.folder / "train_of_today/lr_2-seed_1337/config.json")["options"]
        self.assertEqual((options["data"], options["lr"]), ("d", 2))

    def test_a_number_of_seeds_is_not_taken_for_a_seed(self):
        for text, hint in (("3", "write --seeds 1,2,3 for 3 seeds, or --seeds 3, for the seed 3"),
                           ("5", "--seeds 1,2,3,... for 5 seeds")):
            self.assertIn(hint, self.refused("--grid", "lr=1", "--seeds", text))
        self.sweep("--grid", "lr=1", "--seeds", "3,")
        self.assertEqual(self.starts(), ["lr_1-seed_3"])

    def test_usage_errors(self):
        plan = self.folder / "s.toml"
        plan.write_text("seeds = [-1]")
        for arguments, words in ((["--grid", "lr"], "flag=value"), ([plan], "seeds -1: write whole numbers"),
                                 (["--grid", "lr=1", "--grid", "lr=2"], "given twice"),
                                 (["missing.toml"], "missing.toml"),
                                 *((["--grid", f"lr=1,{value}"], "write numbers") for value in ("1.2.3", ".", "x", "")),
                                 *((["--seeds", x], "write whole numbers") for x in ("٣", "7" * 5000, "1,-2", "1.5"))):
            self.assertIn(words, self.refused(*arguments))
        (self.folder / "file").touch()
        for out, said in (("file/out", "file/out: Not a directory"), ("x" * 300, "File name too long")):
            self.assertIn(said, self.sweep("--grid", "lr=1", "--out", out, expect=1).stderr)
        self.sweep("--grid", "lr=9,1", expect=2)
        self.assertEqual(self.starts(), ["lr_9-seed_1337"])
