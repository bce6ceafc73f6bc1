"""Every script that reads runs or checkpoints names a damaged file in one line, without a traceback.

    dev/run_tests.py test/scripts/test_damaged_runs.py
"""

import io
import json
import os
import re
import struct
import sys
from unittest import mock

from common import live, run_folder
from testing import Case, change_json, needs, write_run, write_shard, write_tensors

DEEP = b"[" * 200_000  # deeper than any parser's stack


def write_checkpoint(folder):
    """Writes the files of a checkpoint with one tensor."""
    (folder / "optimizer").mkdir(parents=True)
    names = ("model.safetensors", "optimizer/master.safetensors", "optimizer/state.safetensors")
    for name in names:
        write_tensors(folder / name, {"w": ("F32", [2], struct.pack("<2f", 1, 2))})
    statistics = {"mean": 1.0, "variance": 1.0, "count": 1}
    (folder / "config.json").write_text('{"architectures": ["GPT2LMHeadModel"]}')
    (folder / "trainer.json").write_text(json.dumps({"step": 5, "tokens": 5, "next_sample": 5, "updates": 5,
        "guard": {"skipped_in_row": 0, "loss": statistics, "grad_norm": statistics},
        "run": {"model": {}, "steps": 5, "program": "train_gpt2", "version": "1", "options": {}}}))
    (folder / "manifest.json").write_text(json.dumps(
        {"files": [{"path": name, "bytes": (folder / name).stat().st_size, "xxh3": "0" * 16} for name in names]}))
    return folder


def replace(old, new):
    return lambda data: data.replace(old, new)


def line(number, text):
    """Replaces a line."""
    return lambda data: b"\n".join(data.split(b"\n")[:number] + [text] + data.split(b"\n")[number + 1:])


ANY_JSON = {"empty": lambda _: b"", "not JSON": lambda data: data[:-20], "an array": lambda _: b"[1]\n",
            "too deep": lambda _: DEEP, "not UTF-8": lambda data: b"\xff\xfe" + data,
            "null": lambda _: b"null\n", "a number": lambda _: b"7"}
CONFIG = ANY_JSON | {
    "no steps": replace(b'"steps"', b'"stairs"'), "steps of text": replace(b'"steps": 20', b'"steps": "20"'),
    "no options": replace(b'"options"', b'"opinions"'), "data of text": replace(b'"data": {', b'"data": "x", "y": {'),
    "a shard without a path": replace(b'"path"', b'"road"'), "no program": replace(b'"program"', b'"pogrom"'),
    "steps beyond 64 bits": replace(b'"steps": 20', b'"steps": 1' + b"0" * 400),
    "NaN": replace(b'"lr": 0.01', b'"lr": NaN'), "beyond a double": replace(b'"lr": 0.01', b'"lr": 1e999'),
    "half of a surrogate pair": replace(b'"train_gpt2"', rb'"\ud800"')}
METRICS = {"not JSON": line(3, b"{"), "an array": line(3, b"[]"), "too deep": line(3, DEEP),
    "no kind": line(3, b'{"step": 4}'), "no step": line(3, b'{"kind": "step"}'),
    "a step of text": line(3, b'{"kind": "step", "step": "4"}'),
    "a loss of text": replace(b'"loss": 4.9', b'"loss": "low"'), "not UTF-8": line(3, b"\xff\xfe\xff"),
    "a binary file": lambda _: bytes(range(256)) * 8 + b"\n",
    "NaN": replace(b'"loss": 4.9', b'"loss": NaN'), "infinity": replace(b'"loss": 4.9', b'"loss": -Infinity'),
    "a loss beyond a float": replace(b'"loss": 4.9', b'"loss": 4.9e300'),
    "a loss beyond a double": replace(b'"loss": 4.9', b'"loss": 4.9e999'),
    "an integer beyond 64 bits": replace(b'"tokens": 100,', b'"tokens": 1' + b"0" * 400 + b","),
    "an integer of many digits": replace(b'"tokens": 100,', b'"tokens": 1' + b"0" * 5000 + b","),
    "half of a surrogate pair": replace(b'"role": "q"', rb'"role": "\udc00"')}
TRAINER = ANY_JSON | {"no step": replace(b'"step"', b'"stop"'), "no guard": replace(b'"guard"', b'"gourd"'),
                      "guard without loss": replace(b'"loss"', b'"lass"'),
                      "options of text": replace(b'"options": {}', b'"options": "x"')}
MANIFEST = ANY_JSON | {"no files": replace(b'"files"', b'"piles"'), "a file of text": lambda _: b'{"files": ["x"]}',
                       "bytes of text": replace(b'"bytes": ', b'"bytes": null, "x": ')}
TENSORS = {"empty": lambda _: b"", "cut in its length": lambda data: data[:5],
           "cut in its header": lambda data: data[:20], "cut in its data": lambda data: data[:-1],
           "a huge header": lambda data: struct.pack("<Q", 2**62) + data[8:],
           "an array": lambda _: struct.pack("<Q", 2) + b"[]",
           "too deep": lambda _: struct.pack("<Q", len(DEEP)) + DEEP,
           "no dtype": replace(b'"dtype"', b'"ctype"'), "unknown dtype": replace(b'"F32"', b'"F33"'),
           "a negative shape": replace(b"[2]", b"[-9]"), "offsets that swap": replace(b"[0, 8]", b"[8, 0]")}


class DamagedTest(Case):
    def each(self, make, file, damages, *scripts):
        for number, (name, damage) in enumerate(damages.items()):
            target = make(self.folder / f"{file.replace('/', '-')}-{number}")
            path = target / file
            before = path.read_bytes()
            path.write_bytes(damage(before))
            self.assertNotEqual(path.read_bytes(), before, name)
            for script, *arguments in scripts:
                with self.subTest(file=file, damage=name, script=script):
                    self.assertIn(str(path), self.error_here(script, target, *arguments, expect=1))

    def test_runs(self):
        readers = [["watch.py", "--once"], ["follow.py", "--to", "wandb"],
                   ["demo_report.py", "--data", self.corpus(), "--must-beat", "bigram"]]
        self.each(write_run, "config.json", CONFIG, *readers)
        self.each(write_run, "metrics.jsonl", METRICS, *readers)

    def test_compare_continues_without_damaged_runs(self):
        for file, damages in (("config.json", CONFIG), ("metrics.jsonl", METRICS)):
            for number, (name, damage) in enumerate(damages.items()):
                with self.subTest(file=file, damage=name):
                    runs = self.folder / f"{file}-{number}"
                    write_run(runs / "good")
                    path = write_run(runs / "bad") / file
                    path.write_bytes(damage(path.read_bytes()))
                    with mock.patch.dict(sys.modules, matplotlib=None):  # plots are slow
                        done = self.run_here("compare.py", runs, "--out", runs / "out", expect=1)
                    self.assertEqual([e.startswith(f"compare.py: left out: {path}") for e in done.stderr.splitlines()],
                                     [True, False])
                    self.assertIn("| adamw | 1 |", (runs / "out" / "compare.md").read_text())

    def test_a_run_cannot_control_the_terminal(self):
        escape = "\\u001b]0;title\\u0007\\u202e"
        run = write_run(self.folder / "run\x1b[31m")
        event = f'{{"kind": "event", "step": 20, "event": "spike", "reason": "{escape}"}}\n'
        (run / "metrics.jsonl").write_text((run / "metrics.jsonl").read_text() + event)
        (run / "config.json").write_text((run / "config.json").read_text().replace(
            '"lr": 0.01', f'"lr": 0.01, "schedule": "{escape}"'))
        write_run(self.folder / "other", schedule="cosine")
        write_run(self.folder / "bad\x1b[31m").joinpath("metrics.jsonl").write_text("{\n")
        for script in (["watch.py", run], ["watch.py", self.folder / "bad\x1b[31m"],
                       ["compare.py", self.folder, "--out", self.folder / "out"]):
            with self.subTest(script=script[0]), mock.patch.dict(sys.modules, matplotlib=None):
                done = self.run_here(*script, expect=None)
                text = done.stdout + done.stderr
                self.assertNotRegex(text, "[\x00-\x09\x0b-\x1f\x7f\u202e]")
                self.assertIn(r"\x1b", text)

    def test_the_step_in_trainer_json_must_be_the_folders(self):
        folder = write_checkpoint(self.folder / "step_00000006")
        self.assertIn("trainer.json: of step 5, not of this folder's",
                      self.error_here("inspect_checkpoint.py", folder, expect=1))

    def test_the_state_of_a_long_run_fits_80_columns(self):
        run = write_run(self.folder / "run")
        change_json(run / "config.json", run={"steps": 10**6})
        path = run / "metrics.jsonl"
        path.write_text(path.read_text().replace('"ms": 10.0', '"ms": 12970.0').replace(
            '"tokens_per_s": 10000.0', '"tokens_per_s": 4.3e6').replace('"tokens": 2000', '"tokens": 15000000000000'))
        with mock.patch.dict(os.environ, COLUMNS="80"):
            output = self.run_here("watch.py", run, "--once").stdout
        self.assertRegex(output, "h.*m left\n")
        self.assertIn("12970 ms/step, 4,300,000 tokens/s, 15,000,000,000,000 tokens, lr 1.00e-02\n", output)

    def test_lines_fit_a_low_terminal(self):
        stream = io.StringIO()
        with mock.patch.dict(os.environ, COLUMNS="80", LINES="5"):
            shown = live.Live(stream, on=True)
            for _ in range(2):
                shown.draw([f"line {i}" for i in range(9)])
        self.assertEqual(shown.drawn, 4)
        self.assertEqual(re.findall(r"line \d", stream.getvalue()), 2 * [f"line {i}" for i in (5, 6, 7, 8)])

    def corpus(self):
        """Makes a folder of shards for demo_report.py."""
        folder = self.folder / "corpus"
        shards = [{"file": f"t_{split}_000000.bin", "split": split, "tokens": 3} for split in ("train", "val")]
        for shard in shards:
            write_shard(folder / shard["file"], [1, 0, 1])
        (folder / "manifest.json").write_text(json.dumps({"vocab_size": 2, "shards": shards}))
        return folder

    def test_a_damaged_corpus(self):
        run, folder = write_run(self.folder / "run"), self.corpus()
        words = ["demo_report.py", "--data", folder, "--must-beat", "bigram", run]
        for file, contents in (("manifest.json", (b"", b"[]", b"{}", b'{"vocab_size": 2, "shards": [1]}',
                                                  b'{"vocab_size": 2, "shards": []}')),
                               ("t_val_000000.bin", (b"", b"x" * 1025))):
            before = (folder / file).read_bytes()
            for content in contents:
                with self.subTest(file=file, content=content[:40]):
                    (folder / file).write_bytes(content)
                    self.assertIn("manifest.json", self.error_here(*words, expect=1))
            (folder / file).write_bytes(before)
        (folder / "t_val_000000.bin").unlink()
        self.assertIn("t_val_000000.bin: No such file", self.error_here(*words, expect=1))

    @needs("numpy")
    def test_a_checkpoint_cannot_control_the_terminal(self):
        checkpoint = write_checkpoint(self.folder / "run\x1b[31m")
        (checkpoint / "config.json").write_text(r'{"architectures": ["\u001b]0;title\u0007"]}')
        write_tensors(checkpoint / "model.safetensors", {"w\x1b[31m": ("F32", [2], struct.pack("<2f", 1, 2))})
        output = self.run_here("inspect_checkpoint.py", checkpoint, expect=None).stdout
        self.assertNotRegex(output, "[\x00-\x09\x0b-\x1f\x7f]")
        self.assertEqual(output.count(r"w\x1b[31m"), 1)

    @needs("numpy")
    def test_checkpoints(self):
        self.each(write_checkpoint, "trainer.json", TRAINER, ["inspect_checkpoint.py", "--state-only"])
        self.each(write_checkpoint, "config.json", ANY_JSON, ["inspect_checkpoint.py", "--state-only"])
        self.each(write_checkpoint, "manifest.json", MANIFEST, ["inspect_checkpoint.py", "--state-only"])
        self.each(write_checkpoint, "model.safetensors", TENSORS, ["inspect_checkpoint.py"])

    def test_the_newest_checkpoint_has_the_highest_step(self):
        for name in ("step_00000007", "step_99999999", "step_100000000", "step_200000000.staged"):
            (self.folder / name).mkdir()
        self.assertEqual(run_folder.find_checkpoint(self.folder), str(self.folder / "step_100000000"))

    def test_integers_have_64_bits(self):
        for text in (str(-2**63), str(2**63 - 1)):
            self.assertEqual(run_folder.whole_number(text), int(text))
        for text in (str(-2**63 - 1), str(2**63), "1" * 5000):
            self.assertRaises(ValueError, run_folder.whole_number, text)

    def refuses_what_is_no_file(self, *scripts):
        os.mkfifo(self.folder / "pipe")
        (self.folder / "run").mkdir()
        os.mkfifo(self.folder / "run" / "config.json")
        os.mkfifo(self.folder / "run" / "metrics.jsonl")
        for script in scripts:
            for path in ("absent", "pipe", "run", "/dev/null"):
                with self.subTest(script=script[0], path=path):
                    done = self.run_here(script[0], self.folder / path, *script[1:], expect=None)
                    self.assertIn(done.returncode, (1, 2))
                    self.assertIn(path, done.stderr)

    def test_runs_whose_files_are_missing_or_not_regular(self):
        self.refuses_what_is_no_file(["watch.py"], ["compare.py"], ["follow.py", "--once", "--to", "wandb"])

    @needs("numpy")
    def test_checkpoints_whose_files_are_missing_or_not_regular(self):
        self.refuses_what_is_no_file(["inspect_checkpoint.py"])

    def test_plans_of_a_sweep(self):
        for content in (b"grid = 3", b"[grid]\nlr = {}", b"cells = 'x'", b"cells = ['x']", b"seeds = 'one'",
                        b"seeds = 7", b"out = 3", b"command = 5", b"\xff\xfe", b"grid = [1]", b"seeds = []",
                        b"[grid]\nlr = []", b"command = ['true']\nseeds = [[1]]", b"command = \"a 'b\""):
            with self.subTest(content=content):
                (self.folder / "s.toml").write_bytes(content)
                self.assertIn("s.toml", self.error_here("sweep.py", "s.toml"))
