"""scripts/sweep.py:  scripts/run_tests.py test/scripts/test_sweep.py"""

import fcntl
import json
import math
import os
import pty
import re
import shutil
import signal
import sys
import time
from unittest import mock

import live
import sweep
from testing import SCRIPTS, Case, change_json, temporary_folder, write_run

from experiments import cells

# Takes the flags of a training program and writes a run as the engine does. Executes FAKE before it writes the log;
# LOSS is the final loss.
FAKE_TRAINER = """
import json, math, os, signal, sys, time
words = [word for word in sys.argv[1:] if word != "--resume"]
flags = dict(zip(*[iter(word.removeprefix("--") for word in words)] * 2))
os.makedirs(flags["out"], exist_ok=True)
open(os.path.join(flags["out"], "started"), "a").write("x")
if flags.get("lr") == "9": sys.exit(2)
options = {"optimizer": flags.get("optimizer", "adamw"), "lr": float(flags.get("lr", 1)), "seed": int(flags["seed"]),
           "weight-decay": float(flags.get("weight-decay", 0.1)), "data": flags.get("data", ""), "log-every": 1,
           "shuffle": flags.get("shuffle", "on") != "off"}
exec(os.environ.get("FAKE", ""))
data = {"train": [{"path": "a", "tokens": 100}], "val": [{"path": "b", "tokens": 10}]}
json.dump({"program": "fake", "experiment": {"options": options}, "options": options, "data": data,
           "run": {"steps": 2, "eval_windows": 1}},
          open(os.path.join(flags["out"], "config.json"), "w"))
with open(os.path.join(flags["out"], "metrics.jsonl"), "w") as file:
    for step in (1, 2):
        print(json.dumps({"kind": "step", "step": step, "tokens": step, "loss": 1.0, "ms": 1.0, "tokens_per_s": 1.0,
                          "optimizer_ms": 0.1, "lr": 1.0}), file=file)
    print(json.dumps({"kind": "eval", "step": 2, "tokens": 2, "val_ppl": 1.0,
                      "val_loss": eval(os.environ.get("LOSS", "options['lr'] + options['seed'] / 100"))}), file=file)
"""


class SweepTest(Case):
    def setUp(self):
        super().setUp()
        (self.folder / "fake.py").write_text(FAKE_TRAINER)

    def command(self, *arguments, flags=(), command=True):
        tail = ["--", sys.executable, self.folder / "fake.py", *flags] if command else []
        return [sys.executable, SCRIPTS / "sweep.py", *arguments, *tail]

    def environment(self, **values):
        stub = self.folder / "stub"  # without plots, which are slow
        stub.mkdir(exist_ok=True)
        (stub / "matplotlib.py").write_text("raise ImportError")
        (stub / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
        (stub / "nvidia-smi").chmod(0o755)
        cleared = {k: v for k, v in os.environ.items() if k not in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")}
        return cleared | {"PYTHONPATH": str(stub), "PATH": f"{stub}:{os.environ['PATH']}", **values}

    def sweep(self, *arguments, flags=(), command=True, expect=0, **environment):
        return self.call(*self.command(*arguments, flags=flags, command=command), expect=expect,
                         env=self.environment(**environment))

    def wait_for(self, what):
        """Waits until the condition holds; without a limit, because the test runner has one."""
        while not what():
            time.sleep(0.02)

    def starts(self):
        return sorted(p.parent.name for p in self.folder.glob("runs/sweep/*/started") for _ in p.read_text())

    def test_the_grid_runs_once_and_is_compared(self):
        result = self.sweep("--grid", "optimizer=muon,teon", "--grid", "lr=1,2", "--seeds", "1,2")
        self.assertEqual(len(self.starts()), 8)
        self.assertIn("teon lr=2", result.stdout)
        self.assertTrue((self.folder / "runs/sweep/compare/compare.md").exists())
        before = {p: p.stat().st_mtime_ns for p in self.folder.glob("runs/sweep/*/metrics.jsonl")}
        (self.folder / "runs/sweep/optimizer_teon-lr_2-seed_1/metrics.jsonl").write_text("")  # one log was cut off
        self.sweep("--grid", "optimizer=muon,teon", "--grid", "lr=1,2", "--seeds", "1,2")
        changed = [p.parent.name for p, at in before.items() if p.stat().st_mtime_ns != at]
        self.assertEqual(changed, ["optimizer_teon-lr_2-seed_1"])

    def test_cells_of_another_command_are_refused_and_the_flag_named(self):
        grid = ["--grid", "lr=1,2"]
        begun = ["--weight-decay", "0.5", "--data", "d", "--log-every", "3", "--shuffle", "on"]
        self.sweep(*grid, flags=begun)
        same = ["--shuffle", "true", "--data", "d", "--log-every", "7", "--weight-decay", "5e-1"]
        for flags in (begun, same):
            self.sweep(*grid, flags=flags)
        for flags, said in ((["--weight-decay", "4", "--data", "d", "--shuffle", "on"], "--weight-decay 0.5, now 4"),
                            (["--weight-decay", "0.5", "--data", "e", "--shuffle", "on"], "--data d, now e"),
                            (["--weight-decay", "0.5", "--data", "d", "--shuffle", "off"], "--shuffle on, now off"),
                            (["--data", "d", "--shuffle", "on"], "--weight-decay 0.5, now without")):
            for more in ([], ["--dry-run"]):
                error = self.error_of(*self.command(*grid, *more, flags=flags), env=self.environment())
                self.assertIn(said, error)
                self.assertIn("runs/sweep/lr_1-seed_1337", error)
        for record in self.folder.glob("runs/sweep/*.json"):  # as in a sweep of an earlier version
            record.unlink()
        self.sweep(*grid, flags=begun)
        self.assertIn("--weight-decay 0.5, now 2", self.sweep(*grid, flags=["--weight-decay", "2"], expect=2).stderr)
        self.assertEqual(len(self.starts()), 2)

    def test_cells_of_another_program_or_config_file_are_refused(self):
        first, same, other = (self.folder / name for name in ("first.toml", "same.toml", "other.toml"))
        for path, text in ((first, "steps = 2"), (same, "steps = 2"), (other, "steps = 3")):
            path.write_text(text)
        self.sweep("--grid", "lr=1", flags=["--config", first])
        self.sweep("--grid", "lr=1", flags=["--config", same])
        self.assertIn("lr_1-seed_1337 is a run with other flags (--config other.toml has other content)",
                      self.sweep("--grid", "lr=1", flags=["--config", "other.toml"], expect=2).stderr)
        self.assertIn("first.toml, now without", self.sweep("--grid", "lr=1", expect=2).stderr)
        first.write_text("steps = 4")
        self.assertIn("other content", self.sweep("--grid", "lr=1", flags=["--config", first], expect=2).stderr)
        (self.folder / "fake.py").rename(self.folder / "fake2.py")
        command = self.command("--grid", "lr=1", command=False)
        command += ["--", sys.executable, self.folder / "fake2.py", "--config", same]
        self.assertIn("(fake.py, now fake2.py)", self.error_of(*command, env=self.environment()))
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
                self.assertIn(said, self.error_of(*self.command(toml, *arguments, *more), env=self.environment()))
        self.assertEqual(self.starts(), [])

    def test_a_run_of_another_process_is_not_changed(self):
        folder = self.folder / "runs/sweep/lr_1-seed_1337"
        for locked in ("", "lock"):  # an engine holds both; NFS does not lock folders
            for saved in (False, True):
                with self.subTest(locked=locked, saved=saved):
                    (folder / "step_00000001" if saved else folder).mkdir(parents=True)
                    (folder / "lock").touch()
                    engine = os.open(folder / locked, os.O_RDONLY)
                    fcntl.flock(engine, fcntl.LOCK_EX)
                    error = self.error_of(*self.command("--grid", "lr=1"), env=self.environment())
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
        cells = self.folder / "runs/sweep"
        wait = f"\nwhile not os.path.exists('{self.folder}/go'): time.sleep(0.02)"
        process = self.start(*self.command("--grid", "lr=1,2"), env=self.environment(FAKE=wait))
        self.wait_for((cells / "lr_1-seed_1337/started").exists)
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
        for text, value in (("0.02", 0.02), ("2e-2", 0.02), ("512Ki", 524288), ("1M", 10**6), ("on", True), ("", True),
                            ("off", False), ("q,k", ["q", "k"]), ("q=0.5", {"q": 0.5}), ("auto", "auto"),
                            ("auto", None), ("a", "a")):
            self.assertTrue(cells.is_value(text, value), (text, value))
        for text, value in (("0.02", 0.03), ("10", 20), ("on", False), ("off", True), ("q", ["q", "k"]), ("a", "b"),
                            ("auto", "bf16"), ("auto", "float"), ("1", None)):
            self.assertFalse(cells.is_value(text, value), (text, value))

    # Takes some time to save, as an engine that writes a checkpoint, and then executes END.
    SAVES = """
def save(*_):
    open(os.path.join(flags["out"], "saving"), "w").close()
    for _ in range(int(os.environ["SAVE_TAKES"])): time.sleep(0.1)
    os.makedirs(os.path.join(flags["out"], "step_00000001"))
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    exec(os.environ["END"])
if not os.path.exists(os.path.join(flags["out"], "step_00000001")):
    signal.signal(signal.SIGINT, save)
    open(os.path.join(flags["out"], "ready"), "w").close()
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

    def test_a_second_ctrl_c_kills_the_cells(self):
        process = self.start(*self.command("--grid", "lr=1"),
                             env=self.environment(FAKE=self.SAVES, SAVE_TAKES="1000000", END=""))
        self.wait_for(lambda: list(self.folder.glob("runs/sweep/*/ready")))
        process.send_signal(signal.SIGINT)
        self.wait_for(lambda: list(self.folder.glob("runs/sweep/*/saving")))
        process.send_signal(signal.SIGINT)
        process.communicate()
        self.assertEqual(process.returncode, 130)
        self.assertFalse(list(self.folder.glob("runs/sweep/*/step_*")))

    # Waits until JOBS cells run, and records its environment.
    TOGETHER = """
top = os.path.dirname(flags["out"])
while len([f for f in os.listdir(top) if os.path.exists(os.path.join(top, f, "started"))]) < int(os.environ["JOBS"]):
    time.sleep(0.02)
open(os.path.join(flags["out"], "given"), "w").write(
    os.environ.get("CUDA_VISIBLE_DEVICES", "-") + " " + os.environ.get("OMP_NUM_THREADS", "-"))
"""

    def given(self):
        return sorted(p.read_text() for p in self.folder.glob("runs/sweep/*/given"))

    def test_parallel_jobs_get_a_gpu_or_a_share_of_the_cores_each(self):
        cores = len(os.sched_getaffinity(0))
        self.sweep("--grid", "lr=1,2,3", "--jobs", 3, FAKE=self.TOGETHER, JOBS="3")
        self.assertEqual(self.given(), [f"- {max(1, cores // 3)}"] * 3)
        self.sweep("--grid", "lr=1,2,3,4", "--jobs", 2, "--seeds", "7,", FAKE=self.TOGETHER, JOBS="2",
                   CUDA_VISIBLE_DEVICES="5,3", OMP_NUM_THREADS="6")
        self.assertEqual({text for text in self.given() if "-" not in text}, {"3 6", "5 6"})
        result = self.sweep("--grid", "lr=1,2,3", "--jobs", 3, CUDA_VISIBLE_DEVICES="5,3", expect=2)
        self.assertIn("--jobs 3: this machine has 2 GPUs", result.stderr)
        with mock.patch.dict(os.environ, clear=True), mock.patch("subprocess.run") as smi:
            smi.return_value.stdout = "GPU 0: NVIDIA H100 (UUID: x)\nGPU 1: NVIDIA H100 (UUID: y)\n"
            self.assertEqual(sweep.gpus(), ["0", "1"])

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
        self.sweep("--grid", "lr=1")
        whole = sweep.Sweep([], str(self.folder / "runs/sweep"), 2)
        folder = self.folder / "runs/sweep/lr_1-seed_1337"
        config = (folder / "config.json").read_text().replace('"steps": 2', '"steps": 9002')
        (folder / "config.json").write_text(config)
        step, total, loss, seconds = whole.progress(str(folder))
        self.assertEqual((step, total, loss), (2, 9002, 1.0))
        self.assertAlmostEqual(seconds, 9)  # 9000 steps of 1 ms
        whole.waiting, whole.took = [{}, {}, {}], [100]
        began = mock.Mock(began=time.monotonic() - 100)
        self.assertEqual(whole.time_left([began, began], [0, 0]), ", 2m30s left")  # 3 cells of 100 s in 2 slots
        self.assertEqual(whole.time_left([began], [None]), "")

    def test_a_best_rate_at_the_end_of_the_grid_is_reported_and_the_grid_extended(self):
        self.assertEqual(cells.next_rate({1: 3.0, 2: 2.0, 4: 1.0}), 8)
        self.assertEqual(cells.next_rate({0.01: 1.0, 0.02: 2.0}), 0.005)
        self.assertEqual(cells.next_rate({1: float("inf"), 2: float("inf")}), 0.5)  # all have diverged
        for losses in ({1: 3.0, 2: 1.0, 4: 2.0}, {1: 3.0, 2: None}, {1: 1.0}, {}, {0: 2.0, 1: 1.0}, {0: 1.0, 1: 2.0}):
            self.assertIsNone(cells.next_rate(losses))
        best_at_8 = "abs(math.log2(options['lr']) - {'teon': 3}.get(options['optimizer'], 1)) + options['seed'] / 100"
        grid = ["--grid", "optimizer=muon,teon", "--grid", "lr=1,2,4", "--seeds", "1,2"]
        result = self.sweep(*grid, LOSS=best_at_8)
        self.assertIn("optimizer=teon: the best rate, 4, is an end of the grid; 8 would follow (--extend-grid)",
                      result.stderr)
        self.assertNotIn("muon: the best", result.stderr)
        result = self.sweep(*grid, "--extend-grid", LOSS=best_at_8)
        self.assertNotIn("would follow", result.stderr)
        names = {p.name for p in self.folder.glob("runs/sweep/*_*") if p.is_dir()}
        self.assertEqual({name for name in names if "lr_8" in name or "lr_16" in name},
                         {f"optimizer_teon-lr_{rate}-seed_{seed}" for rate in (8, 16) for seed in (1, 2)})
        self.assertEqual(len(self.starts()), 12 + 4)
        self.sweep(*grid, "--extend-grid", LOSS=best_at_8)  # nothing runs twice
        self.assertEqual(len(self.starts()), 16)
        fails = "if options['lr'] > 7: sys.exit(1)"
        result = self.sweep("--grid", "lr=4,8", "--out", "d", FAKE=fails, expect=1)
        self.assertIn("failed: d/lr_8-seed_1337 (exit status 1)", result.stderr)
        self.assertNotIn("the best rate", result.stderr)  # the other rate's loss is not known
        endless = self.sweep("--grid", "lr=4,8", "--extend-grid", 2, "--out", "o")  # the loss is the rate
        self.assertIn("the grid: the best rate, 1, is an end of the grid; 0.5 would follow", endless.stderr)

    def test_only_a_validation_loss_that_is_not_finite_means_diverged(self):
        def run(name, old, new):
            path = write_run(self.folder / "runs/sweep" / name, seed=1337) / "metrics.jsonl"
            path.write_text(re.sub(old, new, path.read_text()))
            return path.parent

        self.assertEqual(cells.loss_of(run("skipped", '"step": 7, "tokens": 700, "loss": 4.3', '"step": 7, '
                                           '"tokens": 700, "loss": null')), 2.2)
        self.assertEqual(cells.loss_of(run("diverged", '"val_loss": 2.2', '"val_loss": null')), math.inf)
        self.assertIsNone(cells.loss_of(run("damaged", '"kind"', '"king"')))
        self.assertIsNone(cells.loss_of(self.folder))
        path = run("lr_0.01-seed_1337", '.*"eval".*\n', "") / "config.json"
        change_json(path, data={"train": [{"path": "a", "tokens": 100}], "val": []})
        self.assertIn("lr_0.01-seed_1337: has no validation loss; give the run --val-data",
                      self.error_of(*self.command("--grid", "lr=0.01"), env=self.environment()))

    # Ends as an engine does after --max-skipped skipped updates in a row.
    DIVERGES = """
if options["lr"] > 7:
    config = {"program": "fake", "experiment": {"options": options}, "options": options | {"max-skipped": 2},
              "run": {"steps": 9, "eval_windows": 1},
              "data": {"train": [{"path": "a", "tokens": 100}], "val": [{"path": "b", "tokens": 10}]}}
    json.dump(config, open(os.path.join(flags["out"], "config.json"), "w"))
    with open(os.path.join(flags["out"], "metrics.jsonl"), "w") as file:
        for step in (1, 2, 3):
            print(json.dumps({"kind": "step", "step": step, "tokens": step, "loss": None, "ms": 1.0, "lr": 1.0,
                              "tokens_per_s": 1.0, "optimizer_ms": 0.1}), file=file)
            print(json.dumps({"kind": "event", "event": "update_skipped", "step": step, "reason": "-"}), file=file)
    sys.exit(1)
"""

    def test_a_run_ended_because_of_skipped_updates_has_diverged(self):
        for state in ("diverged after", "diverged"):  # while it runs, and for a later command
            result = self.sweep("--grid", "lr=4,8", FAKE=self.DIVERGES, expect=1)  # compare.py's status
            self.assertIn(f"[2/2] lr=8 seed=1337: {state}", result.stdout)
            self.assertIn("lr_8-seed_1337: ended after step 3 of 9: too many updates were skipped", result.stderr)
            self.assertIn("the best rate, 4, is an end of the grid; 2 would follow", result.stderr)
        self.assertEqual(self.starts(), ["lr_4-seed_1337", "lr_8-seed_1337"])

    def test_toml(self):
        (self.folder / "s.toml").write_text(f"command = ['{sys.executable}', '{self.folder}/fake.py']\nseeds = "
                                            f"[3]\n[grid]\nlr = [1, 2]\n"
                                            "[[cells]]\noptimizer = 'teon'\nlr = 5\n")
        self.sweep("s.toml", command=False)
        self.assertEqual(self.starts(), ["lr_1-seed_3", "lr_2-seed_3", "optimizer_teon-lr_5-seed_3"])

    def test_a_command_may_follow_without_two_dashes(self):
        program = self.folder / "train_fake"
        program.write_text(f"#!{sys.executable}\n{FAKE_TRAINER}")
        program.chmod(0o755)
        self.sweep("--grid", "lr=1,2", "--out", "train_of_today", program, "--data", "d", command=False)
        config = json.loads((self.folder / "train_of_today" / "lr_2-seed_1337" / "config.json").read_text())
        self.assertEqual((config["options"]["data"], config["options"]["lr"]), ("d", 2))

    def test_a_number_of_seeds_is_not_taken_for_a_seed(self):
        for text, hint in (("3", "write --seeds 1,2,3 for 3 seeds, or --seeds 3, for the seed 3"),
                           ("5", "--seeds 1,2,3,... for 5 seeds")):
            self.assertIn(hint, self.error_of(*self.command("--grid", "lr=1", "--seeds", text),
                                              env=self.environment()))
        self.sweep("--grid", "lr=1", "--seeds", "3,")
        self.assertEqual(self.starts(), ["lr_1-seed_3"])

    def test_the_baseline_is_passed_on(self):
        done = self.sweep("--grid", "optimizer=muon,teon", "--grid", "lr=1", "--seeds", "1,2", "--baseline", "teon")
        self.assertRegex(done.stdout, r"run  .*\nteon .*\nmuon ")

    def test_usage_errors(self):
        for arguments, words in ((["--grid", "lr"], "flag=value"),
                                 (["--grid", "lr=1", "--grid", "lr=2"], "given twice"),
                                 (["missing.toml"], "missing.toml")):
            self.assertIn(words, self.error_of(*self.command(*arguments), env=self.environment()))
        for value in ("1.2.3", ".", "x", ""):
            self.assertIn("write numbers", self.error_of(*self.command("--grid", f"lr=1,{value}"),
                                                         env=self.environment()))
        (self.folder / "s.toml").write_text("seeds = [-1]")
        self.assertIn("seeds -1: write whole numbers", self.error_of(*self.command("s.toml"), env=self.environment()))
        (self.folder / "file").touch()
        for out, said in (("file/out", "file/out: Not a directory"), ("x" * 300, "File name too long")):
            self.assertIn(said, self.sweep("--grid", "lr=1", "--out", out, expect=1).stderr)
        self.sweep("--grid", "lr=9,1", expect=2)
        self.assertEqual(self.starts(), ["lr_9-seed_1337"])
