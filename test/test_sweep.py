"""scripts/sweep.py:  python3 test/test_sweep.py"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

from test_compare import DATA

ROOT = pathlib.Path(__file__).resolve().parent.parent

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
