"""Programs whose system gives them less than they ask for: closed and full streams, limits of files and memory.

Each ends with the documented status and a line that names the cause, and never by a signal.
"""

import json
import os
import random
import re
import resource
import stat
import sys
import unittest

import testing
from testing import BUILD, MODELLED, ON_GPUS, ROOT, RunCase, learnable, write_shards

STREAMS = {"full": "/dev/full", "closed": "&-"}


class Failures(RunCase):
    SHAPE = {"--model": "tiny", "--layers": 2, "--channels": 32, "--heads": 2, "--vocab-size": 64, "--seq-len": 16,
             "--dtype": "float", "--batch-tokens": 64, "--micro-batch": 2, "--eval-tokens": 64, "--eval-every": 0}

    @classmethod
    def setUpClass(cls):
        cls.folder = testing.temporary_folder(cls.addClassCleanup)
        write_shards(cls.folder, learnable(5000), learnable(200))

    def shell(self, command, redirections, before="", expect=0):
        return self.call("bash", "-c", f'{before}exec "$@" {redirections}', "bash", *command, expect=expect)

    def programs(self):
        return sorted(path.stem for path in ROOT.glob("*.cu") if (BUILD / path.stem).exists())

    def assert_one_line(self, errors, says):
        self.assertEqual(errors.count("\n"), 1, errors)
        self.assertIn(says, errors)

    # ---- standard output and standard error

    def test_what_was_asked_for_and_could_not_be_printed_is_a_failure(self):
        if not (self.folder / "printed").exists():
            self.train("printed")
        run = self.folder / "printed"
        asked = [(program, [flag]) for program in self.programs()
                 for flag in ("--version", "--help", "--help-all", "--completion=bash")]
        asked += [("train_gpt2", self.command("planned", "--plan-only")[1:]),
                  ("train_gpt2", ["--plan-for", "h100", "--model", "small"]),
                  ("train_gpt2", ["--eval-only", "--init-from", run, "--val-data", self.folder, "--seq-len", 16])]
        if (BUILD / "generate").exists():
            asked.append(("generate", ["--checkpoint", run, "--prompt-tokens", 1, "--sample-tokens", 2]))
        for program, flags in asked:
            for name, target in STREAMS.items():
                with self.subTest(program, flags=flags[:2], output=name):
                    result = self.shell([BUILD / program, *flags], f">{target}", expect=1)
                    self.assert_one_line(result.stderr, "standard output cannot be written: ")

    def test_an_error_that_cannot_be_printed_keeps_its_exit_status(self):
        for program in self.programs():
            for name, target in STREAMS.items():
                with self.subTest(program, errors=name):
                    self.shell([BUILD / program, "--bad"], f"2>{target}", expect=2)
                    self.shell([BUILD / program, "--bad"], f">{target} 2>{target}", expect=2)
                    self.shell([BUILD / program, "--version"], f">{target} 2>{target}", expect=1)

    def test_training_goes_on_without_output_and_none_of_it_gets_into_the_runs_files(self):
        self.train("seen")
        for name, target in STREAMS.items():
            for streams in (f">{target}", f">{target} 2>{target}", f"<&- >{target} 2>{target}"):
                with self.subTest(streams):
                    out = f"unseen-{name}-{len(streams)}"
                    self.shell(self.command(out), streams)
                    self.assert_same_checkpoint("seen", out, self.STEPS)
                    self.assertEqual(self.losses(out), self.losses("seen"))
                    self.assertRegex((self.folder / out / "lock").read_text(), r"\Aprocess \d+ on [^\n]*\n\Z")
                    self.config(out)

    # ---- limits

    def limit_files(self, kilobytes, out):
        """Trains under a limit of file sizes. The run ends with its last line naming the limit or works, and continues
        without the limit from a whole checkpoint to the bits of an undisturbed run."""
        flags = ["--checkpoint-every", 4]
        if not (self.folder / "undisturbed").exists():
            self.train("undisturbed", *flags, steps=60)
        result = self.shell(self.command(out, *flags, steps=60), "", before=f"ulimit -f {kilobytes}; ", expect=None)
        self.assertIn(result.returncode, (0, 1), result.stderr)
        if result.returncode:
            self.assertRegex(result.stderr.splitlines()[-1], "train_gpt2: error: .*: File too large")
        self.train(out, *flags, *["--resume"] * bool(self.checkpoints(out)), steps=60)
        self.assert_same_checkpoint("undisturbed", out, 60)

    def misuse_streams(self, dice):
        """Runs a program or script with streams that are closed or full: the documented status, never a signal."""
        streams = " ".join(f"{stream}{dice.choice(list(STREAMS.values()))}" for stream in
                           dice.sample(["<", ">", "2>"], dice.randrange(1, 4))).replace("</dev/full", "</dev/null")
        program = dice.choice(self.programs())
        commands = {(BUILD / program, "--version"): 1 if ">/" in streams or ">&" in streams else 0,
                    (BUILD / program, "--bad"): 2,
                    tuple(self.command(f"streams-{dice.randrange(10**9)}")): 0,
                    (sys.executable, testing.SCRIPTS / "watch.py", self.folder / "none"): 1,
                    (sys.executable, testing.SCRIPTS / "compare.py", "--bad"): 2}
        command = dice.choice(list(commands))
        if commands[command] == 1 and "--version" in map(str, command):
            commands[command] = int(bool(re.search(r"(?<!2)>", streams)))
        result = self.shell(command, streams, expect=commands[command])
        self.assertNotIn("Traceback", result.stderr)

    def limit_address_space(self, megabytes, out):
        """Trains under a limit of address space: the run ends well or with one line. Returns its result."""
        limit = megabytes << 20
        result = self.train(out, expect=None, OMP_NUM_THREADS=2,
                            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
        self.assertIn(result.returncode, (0, 1, 2, 127), result.stderr)  # 127: the libraries could not be loaded
        if result.returncode in (1, 2):
            self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
            self.assertNotIn("std::bad_alloc", result.stderr)
        return result

    def test_limits_and_streams_at_random(self):
        """What the soak repeats."""
        dice = random.Random(1)
        for i in range(4):
            self.limit_files(dice.choice((1, 9, 60, 150, 400)), f"random-{i}")
            self.limit_address_space(dice.randrange(100, 700), f"space-random-{i}")
            self.misuse_streams(dice)

    def test_a_log_and_standard_error_on_the_same_full_disk_end_with_status_1(self):
        result = self.shell(self.command("same-disk", steps=400), "2>/dev/full", before="ulimit -f 40; ", expect=1)
        self.assertEqual(result.stderr, "")

    @unittest.skipIf(ON_GPUS or MODELLED or "asan" in BUILD.name, "these need more address space than a CPU's program")
    def test_too_little_address_space_is_refused_in_a_line_that_names_the_limit(self):
        loaded = 2 * os.path.getsize(BUILD / "train_gpt2")
        for megabytes in (100, 120, 140, 150, 160, 180, 200, 240, 280, 300, 320, 350):
            with self.subTest(megabytes=megabytes):
                result = self.limit_address_space(megabytes, f"space-{megabytes}")
                if result.returncode == 127 or megabytes << 20 < loaded:  # the libraries could not even be loaded
                    continue
                self.assertIn(result.returncode, (1, 2), result.stderr)
                self.assert_one_line(result.stderr, "the limit of address space (ulimit -v) leaves ")
                self.assertFalse((self.folder / f"space-{megabytes}").exists())

    # ---- what is in the place of a file

    def replace_file(self, name, dice):
        """Puts a device, a pipe, a folder or a link in the place of a file of a run, and resumes the run: it is refused
        in one line or replaces a link, and what was there stays."""
        out = f"replaced-{dice.randrange(10**9)}"
        self.train(out, "--schedule", "constant", steps=4)
        path = self.folder / out / name
        path.unlink(missing_ok=True)
        kinds = ["pipe", "folder", "link to a device", "link to a folder", "device"]
        kind = dice.choice(kinds if os.geteuid() == 0 else kinds[:-1])
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        elif kind == "device":
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        else:
            path.symlink_to("/dev/null" if "device" in kind else self.folder)
        mode, device = os.lstat(path).st_mode, os.stat("/dev/null")
        result = self.train(out, "--schedule", "constant", "--resume", "--data", self.folder, steps=8, expect=None)
        self.assertIn(result.returncode, (0, 1, 2), result.stderr)
        if result.returncode:
            self.assertIn(name, result.stderr.splitlines()[-1])
        if not stat.S_ISLNK(mode):
            aside = path.with_name(name + ".damaged")  # where a config.json goes that cannot be read
            self.assertIn(mode, [os.lstat(p).st_mode for p in (path, aside) if os.path.lexists(p)], (name, kind))
        self.assertEqual(os.stat("/dev/null").st_rdev, device.st_rdev)

    def test_no_file_of_a_run_is_written_over_a_device(self):
        dice = random.Random(3)
        for name in ("config.json", "metrics.jsonl", "lock"):
            for _ in range(4):
                with self.subTest(name):
                    self.replace_file(name, dice)

    def test_a_linked_run_folder_and_linked_data_are_followed(self):
        (self.folder / "real-data").mkdir(exist_ok=True)
        for path in self.folder.glob("*.bin"):
            (self.folder / "real-data" / path.name).symlink_to(path)
        (self.folder / "real").mkdir(exist_ok=True)
        (self.folder / "linked").symlink_to(self.folder / "real")
        self.train("linked", data=self.folder / "real-data")
        self.train("plain")
        self.assert_same_checkpoint("plain", "real", self.STEPS)
        self.assertTrue((self.folder / "linked").is_symlink())

    def test_a_number_that_is_not_finite_in_a_config_is_refused_in_plan_mode_too(self):
        self.train("numbers", steps=2)
        checkpoint = self.checkpoint("numbers", 2)
        model, run = (testing.read_json(path / "config.json") for path in (checkpoint, self.folder / "numbers"))
        (checkpoint / "manifest.json").unlink()
        for number in ("NaN", "Infinity", "-Infinity", "1e400", '"nan"'):
            for key in ("layer_norm_epsilon", "initializer_range", "n_embd"):
                text = re.sub(f'("{key}"): [^,]*,', rf"\1: {number},", json.dumps(model))
                (checkpoint / "config.json").write_text(text)
                for mode in (["--plan-only"], ["--plan-for", "h100"], []):
                    with self.subTest(number=number, key=key, mode=mode):
                        error = self.error_of(BUILD / "train_gpt2", "--init-from", checkpoint, "--data", self.folder,
                                              "--steps", 1, "--batch-tokens", 64, *mode)
                        self.assertIn(f"{checkpoint}/config.json", error)
            (self.folder / "numbers.json").write_text(
                re.sub('("lr"): [^,]*,', rf"\1: {number},", json.dumps(run)))
            for mode in (["--plan-only"], []):
                error = self.error_of(BUILD / "train_gpt2", "--config", self.folder / "numbers.json", *mode)
                self.assertIn("numbers.json", error)

    def test_a_thread_that_cannot_start_is_named(self):
        """Root has no limit of processes."""
        if os.geteuid() == 0:
            self.skipTest("root has no limit of processes")
        result = self.shell(self.command("threads"), "", before="ulimit -u 1; ", expect=None)
        self.assertNotEqual(result.returncode, 0)
        self.assert_one_line(result.stderr, "limit of processes (ulimit -u)")
