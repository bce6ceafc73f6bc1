"""Initial models and data of runs:  dev/run_tests.py test/programs/test_import.py"""

import hashlib
import json
import math
import random
import resource
import shutil
import sys
import unittest

import testing
from testing import BUILD, MODELLED, RunCase, change_json, read_json, read_tensors, write_tensors

SHAPE = {"--model": "tiny", "--layers": 2, "--channels": 16, "--heads": 2, "--seq-len": 16}
RUN = {"--batch-tokens": 64, "--micro-batch": 2, "--eval-tokens": 64, "--eval-every": 25, "--dtype": "float"}


def write_manifest(folder, tokenizer):
    (folder / "manifest.json").write_text(json.dumps(
        {"tokenizer": tokenizer, "vocab_size": tokenizer["vocab_size"], "delimiter": tokenizer["delimiter"]}))


class ImportTest(RunCase):
    SHAPE = SHAPE | RUN

    def setUp(self):
        super().setUp()
        self.words = [bytes([97 + i % 26]) * (1 + i % 5) for i in range(63)] + [b"<end>"]
        self.data = self.write_data("data", 1)

    def write_data(self, name, seed, words=None):
        """Writes shards of random tokens. Every 50th is the delimiter, the last id of the vocabulary."""
        folder, rng, words = self.folder / name, random.Random(seed), words or self.words
        self.val = [63 if i % 50 == 0 else rng.randrange(63) for i in range(200)]
        testing.write_shards(folder, [rng.randrange(64) for _ in range(20000)], self.val)
        write_manifest(folder, testing.write_tokenizer(folder / "tokenizer", words, 63))
        return folder

    def generate(self, model, *flags):
        return self.run_program("--checkpoint", model, *flags, "--as-tokens", "--temperature", 0,
                                program="generate").stdout

    def model(self, out, steps=8):
        """Returns a copy of a run's model as others might publish it: without a manifest."""
        folder = self.folder / f"{out}-model"
        shutil.copytree(self.folder / out / f"step_{steps:08}", folder)
        (folder / "manifest.json").unlink()
        return folder

    # ---- --init-from

    def test_a_run_resumes_without_its_initial_model_and_refuses_another(self):
        self.train("first")
        first = self.model("first")
        begin = ["--init-from", first, "--checkpoint-every", 4]
        self.train("whole", *begin, shape=RUN)
        shutil.copytree(self.folder / "whole", self.folder / "cut")
        shutil.rmtree(self.folder / "cut" / "step_00000008")
        self.train("other", "--seed", 5)
        other = self.model("other")
        self.assertIn("this run began with another model",
                      self.refused("cut", "--init-from", other, "--resume", shape=RUN))
        self.assertIn("this run did not begin from a model",
                      self.refused("other", "--seed", 5, "--init-from", first, "--resume"))
        shutil.copytree(first, self.folder / "moved")
        shutil.rmtree(first)
        for flags in ([], begin, ["--init-from", self.folder / "moved"]):  # the same weights in any folder
            with self.subTest(flags):
                shutil.rmtree(self.folder / "cut" / "step_00000008", ignore_errors=True)
                self.train("cut", *flags, "--resume", shape=RUN)
                self.assert_same_checkpoint("whole", "cut", 8, [*testing.STATE, "config.json"])

    def test_a_model_is_not_trained_on_tokens_of_another_tokenizer(self):
        self.train("first")
        other = self.write_data("other", 2, [*self.words[1:63], b"!", b"<end>"])
        self.assertIn("are not of the tokenizer of",
                      self.refused("second", "--init-from", self.folder / "first", data=other))
        self.assertFalse((self.folder / "second").exists())
        self.train("second", "--init-from", self.folder / "first")

    def test_a_config_that_does_not_fit_the_weights_is_refused_by_name(self):
        self.train("first")
        model = self.model("first")
        config = (model / "config.json").read_text()
        for changes, says in (({"n_layer": 1}, "has a tensor 'transformer.h.1."),
                              ({"n_layer": 3}, "has no tensor 'transformer.h.2."),
                              ({"n_layer": 20000}, "n_layer is 20000, expected a whole number from 1 to 1024"),
                              ({"n_embd": 2**31 - 1}, "n_embd is 2147483647, expected a whole number from 1 to 65536"),
                              ({"vocab_size": 2**31 - 1}, "vocab_size is 2147483647"),
                              ({"n_head": 3}, "config.json: --channels 16 is not a multiple of --heads 3")):
            with self.subTest(changes):
                change_json(model / "config.json", **changes)
                self.assertIn(says, self.refused("second", "--init-from", model, shape=RUN))
                self.assertIn(says, self.error_of(BUILD / "generate", "--checkpoint", model, "--prompt-tokens", 1))
                (model / "config.json").write_text(config)

    def test_the_index_determines_a_tensors_file(self):
        self.train("first")
        model = self.model("first")
        right = self.generate(model, "--prompt-tokens", "1,2")
        tensors = read_tensors(model / "model.safetensors")
        stale = {name: (dtype, shape, bytes(len(data))) for name, (dtype, shape, data) in tensors.items()}
        other = dict(list(tensors.items())[:1])
        (model / "model.safetensors").unlink()
        write_tensors(model / "a.safetensors", stale | other)
        write_tensors(model / "b.safetensors", tensors)
        places = {name: "a.safetensors" if name in other else "b.safetensors" for name in tensors}
        (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
        self.assertEqual(self.generate(model, "--prompt-tokens", "1,2"), right)

    def test_a_hostile_name_in_the_index_is_refused_in_a_short_line(self):
        self.train("first")
        model = self.model("first")
        (model / "model.safetensors").rename(model / "a.safetensors")
        for name in ("a.safetensors\0b", "../first/a.safetensors", "", "n" * 5000):
            for key in ("transformer.wte.weight", "t" * 5000):
                with self.subTest(name=name[:20], key=key[:20]):
                    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {key: name}}))
                    error = self.error_of(BUILD / "generate", "--checkpoint", model, "--prompt-tokens", 1, expect=2)
                    self.assertIn(str(model), error)
                    self.assertLess(len(error), 2200)
        self.assertLess(len(self.error_of(BUILD / "generate", "--checkpoint", "n" * 5000, "--prompt-tokens", 1)), 600)

    def test_a_tied_head_that_differs_from_the_embedding_is_refused_and_unused_tensors_are_listed(self):
        self.train("first")
        model = self.model("first")
        tensors = read_tensors(model / "model.safetensors")
        embedding = tensors["transformer.wte.weight"]
        write_tensors(model / "model.safetensors", tensors | {"lm_head.weight": embedding})
        self.train("same", "--init-from", model, shape=RUN)
        changed = (*embedding[:2], bytes(len(embedding[2])))
        write_tensors(model / "model.safetensors", tensors | {"lm_head.weight": changed})
        self.assertIn("its tensor 'lm_head.weight' is not 'transformer.wte.weight'",
                      self.refused("second", "--init-from", model, shape=RUN))
        extra = {f"h.{i}.attn.masked_bias": ("F32", [1], bytes(4)) for i in range(5)}
        write_tensors(model / "model.safetensors", tensors | extra)
        result = self.train("second", "--init-from", model, shape=RUN)
        self.assertIn("not used: h.0.attn.masked_bias, h.1.attn.masked_bias, h.2.attn.masked_bias and 2 others\n",
                      result.stdout)

    def test_an_imported_models_first_and_last_tokens_of_texts_are_kept(self):
        self.train("first")
        model = self.model("first")
        change_json(model / "config.json", bos_token_id=7, eos_token_id=8)
        (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [8, 9]}))
        self.train("second", "--init-from", model, "--checkpoint-every", 4, shape=RUN)
        for step in (4, 8):
            exported = read_json(self.checkpoint("second", step) / "config.json")
            self.assertEqual((exported["bos_token_id"], exported["eos_token_id"]), (7, [8, 9]))
        shutil.rmtree(self.folder / "second" / "step_00000008")
        self.train("second", "--resume", shape=RUN)
        exported = read_json(self.checkpoint("second", 8) / "config.json")
        self.assertEqual((exported["bos_token_id"], exported["eos_token_id"]), (7, [8, 9]))
        first = int(self.generate(model, "--prompt-tokens", 1, "--sample-tokens", 1).split()[1])
        (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [first]}))
        self.assertEqual(self.generate(model, "--prompt-tokens", 1, "--sample-tokens", 5).split(), ["1", str(first)])

    # ---- data and the experiment

    def test_changed_data_are_refused_by_name(self):
        self.train("run")
        shard, manifest = self.data / "t_train_000000.bin", self.data / "manifest.json"
        shutil.copytree(self.data, self.folder / "moved")
        (self.folder / "moved" / shard.name).rename(self.folder / "moved" / "u_train_000000.bin")
        self.train("run", "--resume", data=self.folder / "moved")  # the same shard
        before, described = shard.read_bytes(), manifest.read_text()
        shard.write_bytes(before[:20000] + b"\1\0" + before[20002:])
        self.assertIn("the training shards of --data (other content or order;", self.refused("run", "--resume"))
        shard.write_bytes(before)
        change_json(manifest, delimiter=5)
        self.assertIn("the delimiter of --data 5 (was 63)", self.refused("run", "--resume"))
        manifest.write_text(described)
        self.assertEqual(self.config("run")["changes"], [])

    def test_other_validation_data_are_recorded_as_event_and_change(self):
        self.train("run", "--checkpoint-every", 4)
        shutil.rmtree(self.folder / "run" / "step_00000008")
        other = self.write_data("other", 3)
        result = self.train("run", "--resume", "--val-data", other)
        self.assertIn("validation_changed: --val-data: other content or order;", result.stdout)
        [event] = self.events("run", "validation_changed")
        [change] = self.config("run")["changes"]
        self.assertEqual((change["step"], change["reason"]), (4, event["reason"]))
        self.train("run", "--resume", "--val-data", other)  # the change stays recorded, once
        self.assertEqual(self.config("run")["changes"], [change])

    def test_a_run_records_its_experiment(self):
        other = self.write_data("other", 2)
        mixed = [f"{self.data}:0.9,{other}:0.1", f"{self.data}:0.1,{other}:0.9"]
        runs = {"a": {}, "seed": {"flags": ["--seed", 2]}, "copy": {"data": shutil.copytree(self.data,
                                                                                            self.folder / "copy-of")},
                "mixed": {"data": mixed[0]}, "mixed otherwise": {"data": mixed[1]}, "third": {"data": other}}
        for out, how in runs.items():
            val = ["--val-data", self.data]
            self.train(out, *val, *how.pop("flags", []), **how, steps=1)
        experiments = {out: self.config(out)["experiment"] for out in runs}
        same = [experiments["a"], experiments["seed"], experiments["copy"]]
        self.assertEqual(same[1:], same[:1] * 2)
        different = [experiments[out] for out in ("a", "mixed", "mixed otherwise", "third")]
        for i, experiment in enumerate(different):
            self.assertNotIn(experiment, different[i + 1:])
        self.assertEqual([self.config(out)["seed"] for out in ("a", "seed")], [1337, 2])
        data = self.config("mixed")["data"]
        self.assertEqual([(m["source"], round(m["share"], 9)) for m in data["mixture"]],
                         [(str(self.data), 0.9), (str(other), 0.1)])
        self.assertEqual(data["tokenizer"], hashlib.sha256(
            (self.data / "tokenizer" / "tokens.bin").read_bytes()).hexdigest())

    def test_evaluations_report_bits_per_byte_if_the_bytes_are_known(self):
        self.train("run")
        [line] = self.metrics("run", "eval")
        expected = sum(0 if token == 63 else len(self.words[token]) for token in self.val[1:line["val_tokens"] + 1])
        self.assertEqual(line["val_bytes"], expected)
        self.assertAlmostEqual(line["val_bits_per_byte"],
                               line["val_loss"] * line["val_tokens"] / expected / math.log(2), delta=1e-12)
        figures = self.evaluate("--init-from", self.folder / "run", "--val-data", self.data, "--eval-tokens", 64,
                                "--seq-len", 16)
        self.assertEqual(figures["val_bytes"], expected)
        (self.data / "tokenizer" / "tokens.bin").unlink()
        self.train("unknown")
        self.assertNotIn("val_bytes", self.metrics("unknown", "eval")[0])

    # ---- the plan

    def test_counts_that_overflow_are_refused(self):
        for flags, says in ((["--steps", "1e15", "--batch-tokens", 524288], "more tokens than can be counted (5.2e+20"),
                            (["--steps", 1, "--seq-len", 1 << 20, "--micro-batch", 1 << 20, "--batch-tokens", 1 << 40],
                             "more than can be counted"),
                            (["--steps", 1, "--seq-len", 1, "--batch-tokens", "1e12"],
                             "--batch-tokens 1000000000000: its 1000000000000 sequences of --seq-len 1 are more")):
            self.assertIn(says, self.error_of(BUILD / "train_gpt2", "--plan-only", "--model", "large", *flags))

    @unittest.skipIf("asan" in BUILD.name or MODELLED, "these hold more than the program does")
    def test_the_plan_is_all_memory_of_the_process(self):
        script = ("import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=2); "
                  "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)")
        shape = RUN | {"--model": "tiny", "--channels": 384, "--heads": 6, "--vocab-size": 16384, "--seq-len": 64,
                       "--batch-tokens": 256}
        del shape["--micro-batch"]
        for optimizer in ("adamw", "teon"):
            command = self.command(optimizer, "--optimizer", optimizer, *["--ns-steps", 1] * (optimizer == "teon"),
                                   steps=2, shape=shape)
            result = self.call(sys.executable, "-c", script, *command)
            held, planned = int(result.stdout) * 1024, self.config(optimizer)["memory_bytes"]
            self.assertLess(held, sum(planned.values()))
            self.assertGreater(held, 0.7 * sum(planned.values()))

    def test_a_model_that_does_not_fit_is_refused_with_sizes_and_flags(self):
        error = self.error_of(BUILD / "train_gpt2", "--plan-only", "--model", "large", "--memory", "20Gi")
        self.assertRegex(error, r"large needs 2\d\.\d+ GiB at .*, but only 20.00 GiB are available \(.*checkpoint "
                                r"being written \d+\.\d+ GiB.*\); .*--optimizer muon")

    def test_a_failed_allocation_names_its_purpose_and_flags_that_help(self):
        limit = 1 << 30
        shape = RUN | {"--model": "tiny", "--channels": 1024, "--heads": 8, "--seq-len": 16, "--memory": "64Gi"}
        result = self.train("out", shape=shape, steps=1, expect=None,
                            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
        if result.returncode in (0, 127):
            self.skipTest(f"a limit of {limit} bytes is not what ends the program here: {result.stderr}")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr,
                         r"error: [\w ,]+: out of \w+( \w+)? memory: \d+ bytes wanted.*planned in all: .*--")
        self.assertEqual(len(result.stderr.splitlines()), 1)
