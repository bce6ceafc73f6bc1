"""scripts/compare.py and scripts/sweep.py:  python3 test/test_sweep.py"""

import importlib.util
import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import compare

STEPS = 20
DATA = {"train": [{"path": "a/t_train_000000.bin", "tokens": 100}],
        "val": [{"path": "a/t_val_000000.bin", "tokens": 10}]}

# Takes the flags of a training program and writes a run as one would.
FAKE_TRAINER = """
import json, os, sys
flags = dict(zip(*[iter(word.removeprefix("--") for word in sys.argv[1:])] * 2))
os.makedirs(flags["out"])
open(os.path.join(flags["out"], "started"), "a").write("x")
if flags.get("lr") == "9": sys.exit(2)
options = {"optimizer": flags.get("optimizer", "adamw"), "lr": float(flags.get("lr", 1)), "seed": int(flags["seed"])}
data = DATA
json.dump({"program": "fake", "options": options, "run": {"steps": 2, "eval_windows": 1}, "data": data},
          open(os.path.join(flags["out"], "config.json"), "w"))
with open(os.path.join(flags["out"], "metrics.jsonl"), "w") as file:
    for step in (1, 2):
        print(json.dumps({"kind": "step", "step": step, "tokens": step, "loss": 1.0, "ms": 1.0, "tokens_per_s": 1.0,
                          "optimizer_ms": 0.1, "lr": 1.0}), file=file)
    print(json.dumps({"kind": "eval", "step": 2, "tokens": 2, "val_ppl": 1.0,
                      "val_loss": options["lr"] + options["seed"] / 100}), file=file)
""".replace("DATA", repr(DATA))


def write_run(folder, optimizer="adamw", seed=1, losses=(4.0, 3.0, 2.5, 2.2), data=None, **options):
    folder.mkdir(parents=True)
    config = {"program": "train_gpt2",
              "options": {"optimizer": optimizer, "seed": seed, "out": str(folder), "lr": 0.01, **options},
              "run": {"steps": STEPS, "eval_windows": 4}, "data": data or DATA}
    (folder / "config.json").write_text(json.dumps(config))
    lines = []
    for step in range(1, STEPS + 1):
        lines.append({"kind": "step", "step": step, "tokens": 100 * step, "loss": 5 - step / 10, "ms": 10.0,
                      "tokens_per_s": 1e4, "optimizer_ms": 2.0, "lr": 0.01})
        if step % 5 == 0:
            lines.append({"kind": "eval", "step": step, "tokens": 100 * step, "val_loss": losses[step // 5 - 1],
                          "val_ppl": 2.0})
            lines.append({"kind": "diagnose", "step": step, "role": "q", "layers": [0, 1], "left": 0.1, "right": 0.8,
                          "norm_ratio": 1.2})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


class CompareTest(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.temporary.name)

    def tearDown(self):
        self.temporary.cleanup()

    def compare(self, *arguments):
        done = subprocess.run([sys.executable, ROOT / "scripts" / "compare.py", "--out", self.folder / "out",
                               *map(str, arguments)],
                              capture_output=True, text=True)
        if importlib.util.find_spec("matplotlib") is None:
            done.stderr = re.sub("compare.py: no plots: matplotlib is not installed.*\n", "", done.stderr)
        return done

    def test_seeds_are_grouped_and_their_mean_and_deviation_shown(self):
        for seed, last in ((1, 2.0), (2, 2.2), (3, 2.4)):
            write_run(self.folder / f"a{seed}", seed=seed, losses=(4, 3, 2.5, last))
            write_run(self.folder / f"b{seed}", "teon", seed=seed, losses=(4, 3, 2.5, last - 1))
        result = self.compare(self.folder / "a*", self.folder / "b*")
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = result.stdout.splitlines()
        self.assertRegex(lines[1], r"^adamw +3 +2\.2000 ± 0\.2000")
        self.assertRegex(lines[2], r"^teon +3 +1\.2000 ± 0\.2000 .* -1\.0000 +0\.00\d")
        self.assertIn("20.0%", lines[1])  # optimizer share
        text = (self.folder / "out" / "compare.md").read_text()
        self.assertIn("| teon | 3 | 1.2000 ± 0.2000 |", text)

    def test_labels_say_what_differs(self):
        write_run(self.folder / "a", "muon", lr=0.01)
        write_run(self.folder / "b", "muon", lr=0.02)
        result = self.compare(self.folder / "a", self.folder / "b")
        self.assertIn("muon lr=0.01", result.stdout)
        self.assertIn("muon lr=0.02", result.stdout)

    def test_labels_pass_over_what_is_off_or_empty(self):
        write_run(self.folder / "a", "teon", **{"teon-rms-match": False, "lr-scale": {}})
        write_run(self.folder / "b", "teon", **{"teon-rms-match": True, "lr-scale": {}})
        write_run(self.folder / "c", "teon", **{"teon-rms-match": False, "lr-scale": {"q": 0.5}})
        lines = self.compare(*(self.folder / name for name in "abc")).stdout.splitlines()
        self.assertRegex(lines[1], r"^teon  +1 ")
        self.assertRegex(lines[2], r"^teon teon-rms-match +1 ")
        self.assertRegex(lines[3], r"^teon lr-scale=q=0\.5 +1 ")

    def test_steps_tokens_and_time_to_a_target(self):
        run = compare.read_run(write_run(self.folder / "a"))
        step, tokens, seconds = compare.reach(run, 2.75)
        self.assertAlmostEqual(step, 12.5)
        self.assertAlmostEqual(tokens, 1250)
        self.assertAlmostEqual(seconds, 0.125)
        self.assertIsNone(compare.reach(run, 1.0))

    def test_welch_p_against_known_values(self):
        # t = 1 with 4 degrees of freedom: 0.373901; t = 2.776445 with 4: 0.05 (tables of Student's distribution).
        a = [0.0, 1.0, 2.0]
        for t, p in ((1.0, 0.373901), (2.776445, 0.05)):
            b = [x + t * math.sqrt(2 / 3) for x in a]
            self.assertAlmostEqual(compare.welch_p(a, b), p, places=5)
        self.assertTrue(math.isnan(compare.welch_p([1.0], [2.0, 3.0])))

    def test_paired_p_against_known_values(self):
        # Differences of mean 3 and deviation 1, -1, 1, -1, 0 times c have t = 3 sqrt(5) / c; tables as above.
        for t, p in ((1.0, 0.373901), (2.776445, 0.05)):
            c = 3 * math.sqrt(5) / t
            self.assertAlmostEqual(compare.paired_p([3 + c * x for x in (1, -1, 1, -1, 0)]), p, places=5)
        self.assertEqual((compare.paired_p([1.0, 1.0]), compare.paired_p([0.0, 0.0])), (0.0, 1.0))
        self.assertTrue(math.isnan(compare.paired_p([1.0])))

    def test_bad_runs_are_named_and_left_out(self):
        write_run(self.folder / "good")
        def damage(name, change):
            run = write_run(self.folder / name)
            change(run / "metrics.jsonl")
        damage("cut", lambda f: f.write_text(f.read_text()[:-9]))
        damage("short", lambda f: f.write_text("".join(f.read_text().splitlines(True)[:-8])))
        damage("nan", lambda f: f.write_text(f.read_text().replace('"val_loss": 2.2', '"val_loss": null')))
        damage("garbage", lambda f: f.write_text("{}\nnot json\n"))
        damage("gone", lambda f: f.unlink())
        write_run(self.folder / "other", data={"train": [{"path": "x_train.bin", "tokens": 5}], "val": []})
        result = self.compare(*(self.folder / n
                                for n in ("good", "cut", "short", "nan", "garbage", "gone", "other", "absent")))
        self.assertEqual(result.returncode, 1)
        for name, fault in (("cut", "unfinished"), ("short", "unfinished"), ("nan", "not finite"), ("garbage", "lacks"),
                            ("gone", "missing"), ("other", "other data"), ("absent", "no such folder")):
            self.assertTrue(any(name in line and fault in line for line in result.stderr.splitlines()),
                            (name, result.stderr))
        self.assertRegex(result.stdout.splitlines()[1], r"^adamw +1 +2\.2000")
        self.assertEqual(len([line for line in result.stdout.splitlines() if line.startswith("adamw")]), 1)
        result = self.compare(*(self.folder / n for n in ("good", "cut", "short")))  # unfinished is no fault
        self.assertEqual(result.returncode, 0)
        self.assertEqual(len(result.stderr.splitlines()), 2)

    def test_folders_of_runs_are_descended_into(self):
        write_run(self.folder / "runs" / "demo" / "adamw")
        write_run(self.folder / "runs" / "demo" / "muon", "muon")
        write_run(self.folder / "runs" / "teon", "teon")
        (self.folder / "runs" / "demo" / "compare").mkdir()  # what an earlier comparison left
        result = self.compare(self.folder / "runs" / "*")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertEqual([line.split()[0] for line in result.stdout.splitlines()[1:4]], ["adamw", "muon", "teon"])

    def test_plots(self):
        try:
            import matplotlib  # noqa: F401
        except ImportError:
            self.skipTest("matplotlib is not installed")
        write_run(self.folder / "a")
        self.assertEqual(self.compare(self.folder / "a").returncode, 0)
        for name in ("loss.png", "alignment.png"):
            self.assertGreater((self.folder / "out" / name).stat().st_size, 5000)


class SweepTest(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.temporary.name)
        (self.folder / "fake.py").write_text(FAKE_TRAINER)

    def tearDown(self):
        self.temporary.cleanup()

    def sweep(self, *arguments, command=True):
        tail = ["--", sys.executable, self.folder / "fake.py"] if command else []
        return subprocess.run([sys.executable, ROOT / "scripts" / "sweep.py", *map(str, [*arguments, *tail])],
                              capture_output=True,
                              text=True, cwd=self.folder)

    def starts(self):
        return sorted(p.parent.name for p in self.folder.glob("runs/sweep/*/started") for _ in p.read_text())

    def test_the_grid_runs_once_and_is_compared(self):
        result = self.sweep("--grid", "optimizer=muon,teon", "--grid", "lr=1,2", "--seeds", "1,2")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(len(self.starts()), 8)
        self.assertIn("teon lr=2", result.stdout)
        self.assertTrue((self.folder / "runs/sweep/compare/compare.md").exists())
        before = {p: p.stat().st_mtime_ns for p in self.folder.glob("runs/sweep/*/metrics.jsonl")}
        (self.folder / "runs/sweep/optimizer_teon-lr_2-seed_1/metrics.jsonl").write_text("")  # one was cut off
        self.assertEqual(self.sweep("--grid", "optimizer=muon,teon", "--grid", "lr=1,2", "--seeds", "1,2").returncode,
                         0)
        changed = [p.parent.name for p, at in before.items() if p.stat().st_mtime_ns != at]
        self.assertEqual(changed, ["optimizer_teon-lr_2-seed_1"])

    def test_toml(self):
        (self.folder / "s.toml").write_text(f"command = ['{sys.executable}', '{self.folder}/fake.py']\nseeds = "
                                            f"[3]\n[grid]\nlr = [1, 2]\n"
                                            "[[cells]]\noptimizer = 'teon'\nlr = 5\n")
        result = self.sweep("s.toml", command=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.starts(), ["lr_1-seed_3", "lr_2-seed_3", "optimizer_teon-lr_5-seed_3"])

    def test_usage_errors(self):
        for arguments, words in ((["--grid", "lr"], "flag=value"),
                                 (["--grid", "lr=1", "--grid", "lr=2"], "given twice"),
                                 (["missing.toml"], "missing.toml")):
            result = self.sweep(*arguments)
            self.assertEqual(result.returncode, 2)
            self.assertIn(words, result.stderr)
            self.assertEqual(len(result.stderr.splitlines()), 1)
        result = self.sweep("--grid", "lr=9,1")
        self.assertEqual(result.returncode, 2)
        self.assertEqual(self.starts(), ["lr_9-seed_1337"])


if __name__ == "__main__":
    unittest.main()
