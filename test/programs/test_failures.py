"""Programs whose system gives them less than they ask for: closed and full streams, limits of files and memory.

Each ends with the documented status and a line that names the cause, and never by a signal.
"""

import os
import resource
import unittest

import testing
from testing import BUILD, MODELLED, ON_GPUS, RunCase, learnable, write_shards

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
        return sorted(name for name in ("generate", "train_gpt2", "train_llama", "train_olmo2", "train_qwen3")
                      if (BUILD / name).exists())

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

    def test_a_limit_of_file_sizes_is_reported_and_costs_only_what_it_forbids(self):
        """The signal of the limit has its default action here, which ends a program without a message."""
        self.train("whole", "--checkpoint-every", 4)
        sizes = sorted(path.stat().st_size for path in self.checkpoint("whole", 4).rglob("*.safetensors"))
        logs = (self.folder / "whole" / "config.json").stat().st_size
        for limit in sorted({1, logs // 1024, sizes[0] // 1024 - 1, sizes[-1] // 1024 - 1}):
            with self.subTest(limit=limit):
                out = f"limited-{limit}"
                result = self.shell(self.command(out, "--checkpoint-every", 4), "", before=f"ulimit -f {limit}; ",
                                    expect=1)
                self.assertRegex(result.stderr.splitlines()[-1], r"train_gpt2: error: .*cannot.*: File too large")
        self.train("kept", "--checkpoint-every", 4, steps=4)
        self.shell(self.command("kept", "--checkpoint-every", 4, "--resume", steps=4), "")
        before = {path.name: path.read_bytes() for path in self.checkpoint("kept", 4).iterdir() if path.is_file()}
        self.train("kept", "--resume", "--schedule", "constant", "--steps", 8, expect=2)
        self.assertEqual(before, {path.name: path.read_bytes()
                                  for path in self.checkpoint("kept", 4).iterdir() if path.is_file()})

    def test_the_last_checkpoint_is_whole_after_the_limit_of_file_sizes_ended_the_run(self):
        flags = ["--schedule", "constant", "--checkpoint-every", 4]
        self.train("constant", *flags, steps=4)
        result = self.shell(self.command("constant", *flags, "--resume", steps=12), "", before="ulimit -f 8; ",
                            expect=1)
        self.assertRegex(result.stderr.splitlines()[-1], "error: .*: File too large")
        self.assertEqual(self.checkpoints("constant"), ["step_00000004"])
        self.train("constant", *flags, "--resume", steps=12)
        self.train("other", *flags, steps=12)
        self.assert_same_checkpoint("constant", "other", 12)

    def test_a_log_and_standard_error_on_the_same_full_disk_end_with_status_1(self):
        result = self.shell(self.command("same-disk", steps=400), "2>/dev/full", before="ulimit -f 40; ", expect=1)
        self.assertEqual(result.stderr, "")

    @unittest.skipIf(ON_GPUS or MODELLED or "asan" in BUILD.name, "these need more address space than a CPU's program")
    def test_too_little_address_space_is_refused_in_a_line_that_names_the_limit(self):
        loaded = 2 * os.path.getsize(BUILD / "train_gpt2")
        for megabytes in (100, 120, 140, 150, 160, 180, 200, 240, 280, 300, 320, 350):
            with self.subTest(megabytes=megabytes):
                limit = megabytes << 20
                result = self.train(f"space-{megabytes}", expect=None, preexec_fn=lambda: resource.setrlimit(
                    resource.RLIMIT_AS, (limit, limit)), OMP_NUM_THREADS=2)
                if result.returncode == 127 or limit < loaded:  # the libraries could not even be loaded
                    continue
                self.assertIn(result.returncode, (1, 2), result.stderr)
                self.assert_one_line(result.stderr, "the limit of address space (ulimit -v) leaves ")
                self.assertFalse((self.folder / f"space-{megabytes}").exists())

    def test_a_thread_that_cannot_start_is_named(self):
        """Root has no limit of processes."""
        if os.geteuid() == 0:
            self.skipTest("root has no limit of processes")
        result = self.shell(self.command("threads"), "", before="ulimit -u 1; ", expect=None)
        self.assertNotEqual(result.returncode, 0)
        self.assert_one_line(result.stderr, "limit of processes (ulimit -u)")
