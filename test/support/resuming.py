"""Helpers for tests of runs that end and are resumed."""

import json
import random
import shutil
import subprocess
import time

from testing import PATIENCE, STATE, RunCase, read_json, write_shards

TIMES = ("time", "ms", "tokens_per_s", "data_wait_ms", "comm_wait_ms", "optimizer_ms")  # differ from run to run


def damage(path):
    """Flips one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


class ResumeCase(RunCase):
    SHAPE = {"--model": "tiny", "--layers": 2, "--channels": 16, "--heads": 2, "--vocab-size": 64, "--seq-len": 16,
             "--batch-tokens": 64, "--micro-batch": 2, "--eval-tokens": 64, "--eval-every": 25, "--log-every": 50,
             "--keep-best": "off"}
    STEPS = 40

    def setUp(self):
        super().setUp()
        rng = random.Random(1)
        self.data = self.folder / "data"
        write_shards(self.data, *([rng.randrange(64) for _ in range(count)] for count in (20000, 200)))

    def trained(self, out):
        """Returns the part of the log that must not depend on interruptions."""
        return [{k: v for k, v in m.items() if k not in TIMES} for m in self.metrics(out) if m["kind"] != "event"]

    def assert_same_run(self, a, b, steps):
        self.assert_same_checkpoint(a, b, steps, [*STATE, "config.json"])
        a_state, b_state = (read_json(self.checkpoint(run, steps) / "trainer.json") for run in (a, b))
        for state in (a_state, b_state):
            del state["run"], state["log"]  # the log holds times
        self.assertEqual(a_state, b_state)
        self.assertEqual(self.trained(a), self.trained(b))
        self.assertEqual([m["step"] for m in self.trained(b) if m["kind"] == "step"], list(range(1, steps + 1)))

    def resume(self, step, *flags, of="whole", out="cut", **how):
        """Resumes a copy of a run as it was after this step, with the same result."""
        shutil.copytree(self.folder / of, self.folder / out)
        self.cut(out, step)
        self.train(out, *flags, "--resume", **how)
        self.assert_same_run(of, out, how.get("steps", self.STEPS))

    def remove(self, *runs):
        for out in runs:
            shutil.rmtree(self.folder / out)

    def kill_until_it_ends(self, out, *flags, kills, steps, duration, rng, **variables):
        """Starts a run again and again, killed at random moments. Returns the kills that it did not need."""
        while True:
            process = self.start(*self.command(out, *flags, "--resume", steps=steps), **variables)
            try:
                _, error = process.communicate(timeout=rng.uniform(0.1, 0.7) * duration if kills else PATIENCE)
                self.assertEqual(process.returncode, 0, error)
                return kills
            except subprocess.TimeoutExpired:
                kills -= 1
                process.kill()
                process.communicate()
                log = self.folder / out / "metrics.jsonl"
                # A kill may cut the last line's write at the end of a page of the file.
                for line in log.read_text().split("\n")[:-1] if log.exists() else []:
                    json.loads(line)

    def wait_for(self, out, steps=1):
        """Waits until a run has logged `steps` steps."""
        path = self.folder / out / "metrics.jsonl"
        while not path.exists() or path.read_text().count('"kind":"step"') < steps:
            time.sleep(0.01)
