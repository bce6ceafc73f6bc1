"""./generate, samples, --eval-only and the views of a run:  dev/run_tests.py test/programs/test_generate.py"""

import json
import math
import random
import re
import shutil
import struct
import subprocess

import testing
from testing import BUILD, ROOT, Case, change_json, needs, read_json, write_shard, write_shards, write_tokenizer
from tokenizer_kinds import byte_level, unigram

DELIMITER = 256
BYTES = [*(bytes([byte]) for byte in range(256)), b""]  # the words of prepare.py --tokenizer bytes


def write_hellaswag(path, examples):
    """llm.c's .bin: (label, context, endings) of tokens."""
    stream = []
    for index, (label, context, endings) in enumerate(examples):
        example = [65535, 0, index, label, len(endings), len(context), *context]
        for ending in endings:
            example += [len(ending), *ending]
        example[1] = 2 * len(example)
        stream += example
    path.write_bytes(testing.header(20240522, 1, len(examples)) + struct.pack(f"<{len(stream)}H", *stream))


class GenerateTest(Case):
    """One run for all tests, trained on a text that repeats itself, so that there is something to learn."""

    @classmethod
    def setUpClass(cls):
        cls.folder = testing.temporary_folder(cls.addClassCleanup)
        words = list(b"the quick brown fox. ")
        tokens = []
        while len(tokens) < 20000:
            tokens += [DELIMITER] + words
        data = cls.folder / "data"
        write_shards(data, tokens, tokens[:2000])
        (data / "manifest.json").write_text(json.dumps({"vocab_size": 257, "delimiter": DELIMITER}))
        write_tokenizer(data / "tokenizer", BYTES, DELIMITER, "bytes")
        cls.shape = ["--model", "tiny", "--layers", 2, "--channels", 64, "--heads", 2, "--seq-len", 64,
                     "--batch-tokens", 512]
        cls.run_folder = cls.folder / "run"
        cls.trained = cls().run_program("--data", data, *cls.shape, "--steps", 60, "--lr", "1e-2", "--eval-every", 30,
                                        "--sample-every", 30, "--prompt", "the qu", "--sample-tokens", 12,
                                        "--temperature", 0, "--out", cls.run_folder)

    def published(self, name, **config):
        """Returns a copy of the checkpoint as others publish it: without a manifest, and with these settings."""
        folder = self.folder / name
        shutil.copytree(next(self.run_folder.glob("step_*")), folder)
        (folder / "manifest.json").unlink()
        change_json(folder / "config.json", **config)
        return folder

    def generate(self, *flags, checkpoint=None):
        return self.run_program("--checkpoint", checkpoint or self.run_folder, *flags, program="generate").stdout

    def test_samples_while_training(self):
        text = (self.run_folder / "samples.txt").read_text()
        samples = re.findall(r"^step (\d+)\n(.*?)\n\n", text, re.MULTILINE | re.DOTALL)
        self.assertEqual([step for step, _ in samples], ["30", "60"])
        self.assertTrue(all(sample.startswith("the qu") for _, sample in samples))
        self.assertEqual(samples[-1][1], "the quick brown fo")  # learned
        self.assertIn("sample 60 | the quick brown fo", self.trained.stdout)

    def test_greedy_text_repeats_the_learned_text_and_ends_with_it(self):
        self.assertEqual(self.generate("--prompt", "the quick", "--temperature", 0), "the quick brown fox. \n")
        self.assertEqual(self.generate("--prompt", "the quick", "--temperature", 0, "--sample-tokens", 6),
                         "the quick brown\n")
        self.assertEqual(self.generate("--temperature", 0, "--sample-tokens", 3), "the\n")  # no prompt
        numbers = self.generate("--prompt-tokens", "256,116", "--temperature", 0, "--sample-tokens", 2, "--as-tokens")
        self.assertEqual(numbers, "256 116 104 101 \n")

    def test_the_end_of_a_text_may_be_one_token_or_any_of_a_list(self):
        folder = self.published("ends")
        for eos, expected in ((256, "256 116 104 101 32 113 117 105 99 107 32 98 114 111 119 110 32 102 111 120 46 32 "
                                    "256 \n"), ([7, 113, 256], "256 116 104 101 32 113 \n"), (None, None)):
            change_json(folder / "config.json", eos_token_id=eos)
            numbers = self.generate("--prompt-tokens", "256,116", "--temperature", 0, "--as-tokens", checkpoint=folder)
            if expected:
                self.assertEqual(numbers, expected)
            else:
                self.assertEqual(len(numbers.split()), 2 + 256)  # longer than the context of 64
        settings = folder / "generation_config.json"  # alone counts, as in transformers (findings/)
        change_json(folder / "config.json", eos_token_id=256)
        for own, tokens in (({"eos_token_id": 113}, 6), ({"eos_token_id": None}, 258), ({}, 258)):
            settings.write_text(json.dumps(own))
            result = self.call(BUILD / "generate", "--checkpoint", folder, "--prompt-tokens", "256,116",
                               "--temperature", 0, "--as-tokens")
            self.assertEqual(len(result.stdout.split()), tokens, own)
            self.assertEqual("has no eos_token_id, so config.json's does not end texts" in result.stderr, tokens > 6)
        settings.unlink()
        change_json(folder / "config.json", eos_token_id=["x"])
        self.assertIn("eos_token_id", self.error_of(BUILD / "generate", "--checkpoint", folder))

    def test_other_sampling_of_generation_config_json_is_said(self):
        folder = self.published("asks")
        for asked, flags, expected in (
                ({"do_sample": True, "temperature": 0.6, "top_p": 0.95}, [],
                 " asks for --temperature 0.6 --top-k 50 --top-p 0.95, which only flags set"),
                ({"do_sample": True, "temperature": 0.6, "top_p": 0.95}, ["--temperature", 0.6, "--top-p", 0.95], None),
                ({"temperature": 0.6}, [], " asks for --temperature 0, which only flags set"),
                ({"do_sample": False}, ["--temperature", 0], None),
                ({"do_sample": True, "num_beams": 1, "min_p": 0, "top_k": None}, [], None),
                ({"num_beams": 2, "repetition_penalty": 1.1}, [], "; not built: num_beams, repetition_penalty")):
            (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 256, **asked}))
            note = self.call(BUILD / "generate", "--checkpoint", folder, "--sample-tokens", 2, *flags).stderr
            if expected:
                self.assertIn(f"generate: {folder}: generation_config.json{expected}\n", note)
            else:
                self.assertNotIn("generation_config.json", note)
        (folder / "generation_config.json").write_text('{"eos_token_id": 256, "top_k": "many"}')
        self.assertIn("top_k", self.error_of(BUILD / "generate", "--checkpoint", folder))

    def test_a_flag_gives_weights_without_a_tokenizer_one(self):
        bare = self.folder / "bare"
        shutil.copytree(self.run_folder / "step_00000060", bare, ignore=shutil.ignore_patterns(
            "tokenizer*", "manifest.json", "optimizer", "trainer.json"))
        flags = ["--prompt", "the quick", "--temperature", 0]
        command = [BUILD / "generate", "--checkpoint", bare, *flags]
        self.assertIn("--tokenizer FOLDER", self.error_of(*command))
        for folder in (self.folder / "data", self.folder / "data" / "tokenizer"):
            self.assertEqual(self.generate(*flags, "--tokenizer", folder, checkpoint=bare), "the quick brown fox. \n")
        self.assertIn("has neither description.json", self.error_of(*command, "--tokenizer", bare))
        other = self.folder / "larger"
        write_tokenizer(other, [*BYTES, b""], DELIMITER, "bytes")
        self.assertIn("has 258 tokens, the model only 257", self.error_of(*command, "--tokenizer", other))

    def test_the_seed_determines_the_text(self):
        flags = ["--sample-tokens", 30, "--as-tokens"]
        hot = [*flags, "--temperature", 20, "--top-k", 0]
        first = self.generate(*hot, "--seed", 1)
        self.assertEqual(self.generate(*hot, "--seed", 1), first)
        self.assertNotEqual(self.generate(*hot, "--seed", 2), first)
        self.assertEqual(self.generate(*flags, "--temperature", 20, "--top-k", 1),
                         self.generate(*flags, "--temperature", 0))

    def test_the_best_checkpoint_of_a_run_is_taken_and_named(self):
        run = self.folder / "with-best"
        shutil.copytree(self.run_folder, run)
        flags = ["--prompt", "the q", "--temperature", 0, "--sample-tokens", 4]
        best = run / "step_00000030"
        shutil.copytree(run / "step_00000060", best, ignore=shutil.ignore_patterns("manifest.json"))
        (run / "best").symlink_to(best.name)
        result = self.run_program("--checkpoint", run, *flags, program="generate")
        self.assertIn(f"generate: {best} has the run's lowest validation loss; {run}/step_00000060 is the newest\n",
                      result.stderr)
        (best / "model.safetensors").unlink()
        refused = self.run_program("--checkpoint", run, *flags, program="generate", expect=2).stderr
        self.assertIn(f"generate: error: {best}: has neither model.safetensors", refused)
        # Programs that continue a run's model take the newest checkpoint, and name the best.
        note = self.run_program("--init-from", run, "--data", self.run_folder.parent / "data", "--steps", 1, "--out",
                                self.folder / "on")
        self.assertIn(f"step_00000060 is the newest checkpoint; the one with the lowest validation loss is {run}/best "
                      "(step_00000030)\n", note.stdout)
        (run / "best").unlink()
        (run / "best").symlink_to("step_00000060")
        for checkpoint in (run, run / "best"):
            result = self.run_program("--checkpoint", checkpoint, *flags, program="generate")
            self.assertEqual(result.stdout, "the quick\n")
            self.assertNotIn("lowest", result.stderr)

    def test_without_a_seed_texts_differ_and_the_printed_seed_repeats_them(self):
        command = [BUILD / "generate", "--checkpoint", self.run_folder, "--sample-tokens", 30, "--as-tokens",
                   "--temperature", 20, "--top-k", 0]
        first, second = self.call(*command), self.call(*command)
        self.assertNotEqual(first.stdout, second.stdout)
        seed = re.search(r"; --seed (\d+)$", second.stderr.strip())[1]
        self.assertEqual(self.call(*command, "--seed", seed).stdout, second.stdout)
        self.assertNotIn("--seed", self.call(*command[:5], "--temperature", 0).stderr)  # it would have no effect

    def test_several_texts_have_the_seeds_that_follow(self):
        flags = ["--prompt", "the", "--sample-tokens", 9, "--temperature", 3]
        texts = [self.generate(*flags, "--seed", seed) for seed in (5, 6, 7)]
        self.assertEqual(len(set(texts)), 3)
        self.assertEqual(self.generate(*flags, "--seed", 5, "--samples", 3), "".join(
            f"--- text {i + 1}, seed {5 + i}\n{text}" for i, text in enumerate(texts)))
        numbers = self.generate(*flags, "--seed", 5, "--samples", 3, "--as-tokens")
        self.assertEqual(len(numbers.splitlines()), 3)

    def test_the_prompt_may_be_empty_or_standard_input(self):
        greedy = ["--temperature", 0, "--sample-tokens", 6]
        self.assertEqual(self.generate("--prompt", "", *greedy), self.generate(*greedy))
        for text in ("the qu", "the qu\n"):  # as echo writes it
            done = subprocess.run([BUILD / "generate", "--checkpoint", self.run_folder, "--prompt", "-",
                                   *map(str, greedy)], input=text, capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stdout), (0, self.generate("--prompt", "the qu", *greedy)))

    def test_standard_input_that_is_no_prompt_is_refused_in_one_line(self):
        large = self.folder / "large"
        large.write_bytes(b"the quick brown fox " * 1_500_000)
        for stream, why in ((f"< {self.folder}", "cannot be read: Is a directory"), ("<&-", "is empty or closed"),
                            ("< /dev/null", "is empty or closed"), ("< /dev/zero", "has more than 4.00 MiB"),
                            (f"< {large}", "has more than 4.00 MiB, too much for any prompt")):
            with self.subTest(stream):
                error = self.error_of("bash", "-c", f'exec "$@" {stream}', "bash", BUILD / "generate", "--checkpoint",
                                      self.run_folder, "--prompt", "-")
                self.assertIn(f"generate: error: --prompt -: standard input {why}", error)

    def test_greedy_sampling_in_every_spelling(self):
        few = ["--prompt", "the", "--sample-tokens", 6]
        for flags in (["--top-p", 0], ["--top-k", 1], ["--temperature", "1e-300"], ["--temperature", "1e-30"]):
            self.assertEqual(self.generate(*few, *flags), self.generate(*few, "--temperature", 0), flags)

    def test_the_fault_of_an_only_checkpoint_is_named(self):
        run = self.folder / "damaged"
        shutil.copytree(self.run_folder, run)
        [checkpoint] = run.glob("step_*")
        (checkpoint / "model.safetensors").write_bytes(b"")
        error = self.error_of(BUILD / "generate", "--checkpoint", run)
        self.assertIn(f"{run}: no checkpoint in it is whole: {checkpoint}/model.safetensors: 0 bytes, ", error)

    def test_a_text_may_be_longer_than_the_context(self):
        folder = self.published("endless", eos_token_id=None)

        def text(prompt, count):
            return self.call(BUILD / "generate", "--checkpoint", folder, "--prompt-tokens", ",".join(map(str, prompt)),
                             "--temperature", 0, "--sample-tokens", count, "--as-tokens")

        done = text([256, 116], 200)
        tokens = list(map(int, done.stdout.split()))
        self.assertEqual(len(tokens), 202)
        for end in range(65, 202, 33):  # the context is full after 64 tokens; the next one follows from the last 32
            self.assertEqual(tokens[end - 32:end + 33],
                             list(map(int, text(tokens[end - 32:end], 33).stdout.split()))[:202 - end + 32])
        self.assertIn("longer than the context of 64: the last tokens follow from at least 32 before them",
                      done.stderr)
        self.assertNotIn("longer than the context", text([256, 116], 63).stderr)

    def test_bf16_and_a_checkpoint_folder(self):
        step = next(self.run_folder.glob("step_*"))
        self.assertEqual(self.generate("--prompt", "the q", "--temperature", 0, "--sample-tokens", 4, "--dtype", "bf16",
                                       checkpoint=step), "the quick\n")

    def test_a_file_of_weights_uses_the_tokenizer_beside_it(self):
        file = next(self.run_folder.glob("step_*")) / "model.safetensors"
        self.assertEqual(self.generate("--prompt", "the quick", "--temperature", 0, checkpoint=file),
                         "the quick brown fox. \n")

    def test_a_prompt_that_is_refused_is_not_printed(self):
        tokens = ",".join(["1"] * 5000)
        for flags in (["--prompt", "the " * 2000], ["--prompt-tokens", tokens, "--as-tokens"]):
            result = self.call(BUILD / "generate", "--checkpoint", self.run_folder, *flags, expect=2)
            self.assertEqual((result.stdout, result.stderr.count("\n")), ("", 1), result.stderr)

    def test_wrong_usage_is_one_line(self):
        self.assertIn("--checkpoint: missing", self.error_of(BUILD / "generate"))
        self.assertIn("no such folder", self.error_of(BUILD / "generate", "--checkpoint", self.folder / "none"))
        self.assertIn("neither model.safetensors",
                      self.error_of(BUILD / "generate", "--checkpoint", self.folder / "data"))
        at_run = [BUILD / "generate", "--checkpoint", self.run_folder]
        refused = self.call(*at_run, "--prompt", "x" * 100, expect=2)
        self.assertIn("--prompt: its 101 tokens are more than the context of 64", refused.stderr)
        self.assertEqual(refused.stdout, "")  # not even the prompt
        self.assertIn("give one", self.error_of(*at_run, "--prompt", "x", "--prompt-tokens", "1"))
        self.assertIn("--prompt-tokens 1.5", self.error_of(*at_run, "--prompt-tokens", "1.5"))
        self.assertIn("did you mean --temperature", self.error_of(*at_run, "--temprature", "1"))
        never = self.folder / "never"
        self.assertIn("--prompt-tokens: token 257 is outside the model's vocabulary of 257",
                      self.error_of(BUILD / "train_gpt2", "--data", self.folder / "data", *self.shape, "--steps", 1,
                                    "--sample-every", 1, "--prompt-tokens", "5,257", "--out", never))
        self.assertFalse(never.exists())
        self.assertIn("of what?", self.error_of(BUILD / "train_gpt2", "--eval-only", "--val-data", "x"))
        self.assertIn("model_type is 'gpt2'; its program is ./train_gpt2",
                      self.error_of(BUILD / "train_llama", "--eval-only", "--init-from", self.run_folder,
                                     "--val-data", self.folder / "data"))

    def test_eval_only_equals_the_runs_evaluation(self):
        evals = [line for line in map(json.loads, (self.run_folder / "metrics.jsonl").read_text().splitlines())
                 if line["kind"] == "eval"]
        for source in (["--init-from", self.run_folder], ["--resume", "--out", self.run_folder]):
            batch = read_json(self.run_folder / "config.json")["options"]["micro-batch"]  # the same order of sums
            result = self.run_program("--eval-only", *source, "--val-data", self.folder / "data", "--micro-batch",
                                      batch)
            last = evals[-1]
            expected = (f"val loss {last['val_loss']:.4f} | perplexity {last['val_ppl']:.3f} | "
                        f"{last['val_tokens']} tokens")
            self.assertIn(expected, result.stdout)
            digits = json.loads(result.stdout.splitlines()[-1])
            self.assertEqual({key: digits[key] for key in ("val_loss", "val_ppl", "val_tokens")},
                             {key: last[key] for key in ("val_loss", "val_ppl", "val_tokens")})

    def test_eval_only_says_how_much_of_a_text_it_evaluates(self):
        """Nats and words of all tokens, of one split and of windows that overlap."""
        data = self.folder / "listed"
        words, count = [DELIMITER, *b"the quick brown fox. "], {}
        for split, n in (("train", 300), ("val", 200)):
            write_shard(data / f"t_{split}_000000.bin", (words * 20)[:n])
            count[split] = n
        (data / "manifest.json").write_text(json.dumps({
            "vocab_size": 257, "delimiter": DELIMITER,
            "shards": [{"file": f"t_{split}_000000.bin", "split": split, "tokens": n} for split, n in count.items()]}))
        write_tokenizer(data / "tokenizer", BYTES, DELIMITER, "bytes")
        command = ["--eval-only", "--init-from", self.run_folder, "--val-data", data]

        def evaluate(*flags):
            lines = self.run_program(*command, *flags).stdout.splitlines()
            return json.loads(lines[-1]), lines[-2]

        def words_of(*targets):
            return sum(len(bytes(token if token < 256 else 32 for token in (words * 20)[1:n + 1]).split())
                       for n in targets)

        plain, said = evaluate()
        self.assertEqual((plain["val_tokens"], plain["val_words"]), (192, words_of(192)))
        self.assertAlmostEqual(plain["val_nats"], 192 * plain["val_loss"], places=6)
        self.assertAlmostEqual(plain["val_word_ppl"], math.exp(plain["val_nats"] / words_of(192)))
        self.assertEqual(said, "192 of 200 tokens were targets (300 others of the folder are for training: --eval-all):"
                               " windows of 64 do not overlap; each shard's first token and its remainder do not count;"
                               " delimiters are tokens without bytes")
        everything, said = evaluate("--eval-all")
        self.assertEqual((everything["val_tokens"], everything["val_words"]), (256 + 192, words_of(256, 192)))
        self.assertIn("448 of 500 tokens were targets: windows", said)
        overlapping, said = evaluate("--eval-all", "--eval-stride", 16)
        self.assertEqual((overlapping["val_tokens"], overlapping["val_words"]), (299 + 199, words_of(299, 199)))
        self.assertIn("498 of 500 tokens were targets: all but each shard's first, with 49 to 64 tokens before", said)
        limited = evaluate("--eval-stride", 64, "--eval-tokens", 192)[0]  # the windows that do not overlap
        self.assertAlmostEqual(limited["val_loss"], plain["val_loss"], places=6)
        program = BUILD / "train_gpt2"
        self.assertIn("--eval-stride 65: is more than the sequence of 64",
                      self.call(program, *command, "--eval-stride", 65, expect=2).stderr)
        self.assertIn("leave out one", self.error_of(program, *command, "--eval-stride", 9, "--document-mask", "on"))
        (data / "t_train_000000.bin").unlink()
        self.assertIn("is missing", self.error_of(program, *command, "--eval-all"))

    def test_eval_only_masks_documents_as_the_run_did(self):
        run, data = self.folder / "masked", self.folder / "data"
        masked = ["--document-mask", "on"]
        self.run_program("--data", data, *self.shape, *masked, "--steps", 2, "--out", run)
        trained = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["val_loss"]
        batch = read_json(run / "config.json")["options"]["micro-batch"]
        losses = [self.evaluate(*source, "--val-data", data, "--micro-batch", batch)["val_loss"] for source in
                  (["--resume", "--out", run], ["--init-from", run, *masked], ["--init-from", run])]
        self.assertEqual(losses[:2], [trained, trained])
        self.assertNotEqual(losses[2], trained)
        bare = self.folder / "bare_val_000000.bin"
        shutil.copy(next(data.glob("*val*.bin")), bare)
        self.assertIn("names the delimiter", self.error_of(BUILD / "train_gpt2", "--eval-only", "--init-from", run,
                                                           *masked, "--val-data", bare))

    def test_evaluation_on_data_of_another_tokenizer_is_refused(self):
        checkpoint, data = self.published("described"), self.folder / "otherwise"
        shutil.copytree(self.folder / "data", data)
        (checkpoint / "tokenizer" / "description.json").write_text(json.dumps({"kind": "bytes",
                                                                               "files": {"tokens.bin": "one"}}))
        command = [BUILD / "train_gpt2", "--eval-only", "--init-from", checkpoint, "--val-data", data]
        for tokenizer, vocab_size, expect in (("one", 257, 0), ("two", 257, 2), ("one", 258, 2)):
            manifest = {"vocab_size": vocab_size, "delimiter": DELIMITER,
                        "tokenizer": {"files": {"tokens.bin": tokenizer}}}
            (data / "manifest.json").write_text(json.dumps(manifest))
            result = self.call(*command, expect=expect)
            if expect:
                self.assertIn("are not of the tokenizer of", result.stderr)

    def test_hellaswag(self):
        path = self.folder / "hellaswag.bin"
        rng = random.Random(3)
        endings = [b" brown fox", b" lazy lazy", b" zzzzzzzzz", b" xq"]
        examples = []
        for _ in range(12):
            order = rng.sample(range(4), 4)
            examples.append((order.index(0), [DELIMITER, *b"the quick"], [endings[i] for i in order]))
        write_hellaswag(path, examples)
        command = [BUILD / "train_gpt2", "--eval-only", "--init-from", self.run_folder, "--hellaswag", path]
        self.assertIn("hellaswag accuracy 1.0000 | normalized accuracy 1.0000 | 12 examples",
                      self.call(*command).stdout)
        path.write_bytes(path.read_bytes()[:-2])
        self.assertIn("ends within example 11", self.error_of(*command))

    @needs("numpy")
    def test_hellaswag_from_its_jsonl(self):
        source, out, expected = (self.folder / name for name in ("h.jsonl", "made.bin", "expected.bin"))
        command = ["hellaswag.py", source, "--data", self.folder / "data", "--out", out]
        rows = [{"ind": 4, "ctx": "A dog", "endings": ["barks.", "is a cat.", "flies"], "label": 1},
                {"ind": 9, "ctx": "Grüße", "endings": ["a", "b"], "label": "0"}]  # the hub's copy has labels as text
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
        self.run_script(*command)
        write_hellaswag(expected, [(int(row["label"]), row["ctx"].encode(), [b" " + e.encode() for e in row["endings"]])
                                   for row in rows])
        self.assertEqual(out.read_bytes(), expected.read_bytes())
        source.write_text(json.dumps(rows[0]) + "\n[]\n")
        self.assertRegex(self.run_script(*command, expect=1).stderr, r"^hellaswag.py: error: .*h\.jsonl: line 2.*\n$")
        self.assertEqual(out.read_bytes(), expected.read_bytes())

    def test_watch_shows_finished_and_unfinished_runs(self):
        text = self.run_script("watch.py", self.run_folder).stdout
        for part in ("60/60", "100% done", "perplexity", "tokens/s"):
            self.assertIn(part, text)
        self.assertRegex(text, r"loss   \d\.\d{4} [▁▂▃▄▅▆▇█]{10,}\n")

        partial = self.folder / "partial"
        partial.mkdir()
        (partial / "config.json").write_text((self.run_folder / "config.json").read_text())
        watch = ["watch.py", "--once", partial]
        metrics = (self.run_folder / "metrics.jsonl").read_text()
        lines = [line for line in metrics.splitlines() if '"kind":"step"' in line]
        (partial / "metrics.jsonl").write_text("")
        self.assertIn("none yet", self.run_script(*watch).stdout)
        skipped = json.loads(lines[14]) | {"loss": None}
        half = "\n".join(lines[:14] + [json.dumps(skipped)]) + "\n" + lines[15][:20]  # it is being written
        (partial / "metrics.jsonl").write_text(half)
        text = self.run_script(*watch).stdout
        self.assertIn("15/60", text)
        self.assertIn(" left", text)
        self.assertIn("not finite", text)
        self.assertNotEqual(self.run_script(*watch[:-1], self.folder / "none", expect=None).returncode, 0)


@needs("tokenizers", "numpy")
class PreparedTest(Case):
    TINY = ["--model", "tiny", "--layers", 1, "--channels", 32, "--heads", 2, "--seq-len", 64, "--batch-tokens", 128,
            "--steps", 1]

    def test_prompts_are_encoded_as_by_the_library_that_trained_the_tokenizer(self):
        """Goes from text to shards, run, checkpoint and back to text."""
        import tokenizers
        from teon_data import tokenizer

        data, text, run_folder = (self.folder / name for name in ("data", "text.txt", "run"))
        text.write_text("".join((ROOT / name).read_text() for name in ("Makefile", "scripts/prepare.py")))
        self.run_script("prepare.py", text, "--txt-documents", "line", "--tokenizer", "train:600", "--val-tokens", 500,
                        "--out", data)
        self.run_program("--data", data, *self.TINY, "--out", run_folder, program="train_llama")
        library = tokenizer.load(str(data / "tokenizer"))
        self.assertEqual(self.tokens_without_libraries(run_folder, "--prompt-tokens", "5,6"), [5, 6])
        for prompt in ("def main():\n    don't(x,  y)", "naïve “東京”\t½ 🙂  "):
            flags = ["--checkpoint", run_folder, "--prompt", prompt, "--sample-tokens", 1]
            tokens = self.run_program(*flags, "--as-tokens", program="generate").stdout.split()
            expected = [library.delimiter, *map(int, library.encode([prompt])[0])]
            self.assertEqual(list(map(int, tokens))[:len(expected)], expected)
            self.assertTrue(self.run_program(*flags, program="generate").stdout.startswith(prompt))
            exported = tokenizers.Tokenizer.from_file(str(run_folder / "step_00000001" / "tokenizer.json"))
            self.assertEqual(exported.encode(prompt).ids, expected)
            self.assertEqual(exported.encode(prompt, prompt).ids, expected + expected[1:])

    def tokens_without_libraries(self, checkpoint, *flags):
        """Returns the prompt's tokens from a program that finds neither a .venv nor Python's packages. First checks
        that a text is refused there in one line."""
        bare = self.folder / "bare"
        for folder in ("build/cpu", "scripts/teon_data", "scripts/common"):
            (bare / folder).mkdir(parents=True, exist_ok=True)
        program = bare / "build/cpu/generate"
        shutil.copy(BUILD / "generate", program)
        environment = {"PYTHONPATH": bare / "hidden", "PYTHONNOUSERSITE": "1"}
        command = [program, "--checkpoint", checkpoint, "--sample-tokens", 1, "--as-tokens"]
        self.assertIn("scripts/encode_text.py is not", self.error_of(*command, "--prompt", "x"))
        for name in ("encode_text.py",
                     *(f"common/{name}.py" for name in ("__init__", "startup", "use_venv", "written_files")),
                     *(f"teon_data/{name}.py" for name in ("__init__", "tokenizer", "token_table", "files"))):
            shutil.copy(ROOT / "scripts" / name, bare / "scripts" / name)
        (bare / "hidden").mkdir(exist_ok=True)
        (bare / "hidden" / "tokenizers.py").write_text("raise ImportError('No module named tokenizers')")
        error = self.error_of(*command, "--prompt", "x", **environment)
        for part in ("needs the Python package tokenizers", "`make setup` installs it", "--prompt-tokens works"):
            self.assertIn(part, error)
        return list(map(int, self.call(*command, *flags, **environment).stdout.split()))[:-1]

    def test_tokens_need_no_tokenizer(self):
        """A published folder with a Unigram tokenizer.json, and one with a file that no library reads."""
        run_folder = self.folder / "run"
        write_shard(self.folder / "t_train_000000.bin", [i % 400 for i in range(500)])
        self.run_program("--data", self.folder / "t_train_000000.bin", *self.TINY, "--vocab-size", 400, "--out",
                         run_folder)
        published = next(run_folder.glob("step_*"))
        (published / "manifest.json").unlink()
        for content in (unigram().to_str(), "{}"):
            (published / "tokenizer.json").write_text(content)
            result = self.run_program("--checkpoint", published, "--prompt-tokens", "5,7", "--sample-tokens", 3,
                                      "--temperature", 0, "--as-tokens", program="generate")
            self.assertRegex(result.stdout, r"^5 7( \d+){3} \n$")

    def test_an_exported_tokenizer_begins_texts_as_generate_does(self):
        """A template with the delimiter is added behind a post-processor of byte offsets. An own template stays."""
        import tokenizers
        from teon_data import tokenizer_folder
        from tokenizers import processors

        model, delimiter = byte_level(size=300, texts=[(ROOT / "Makefile").read_text()]), "<|endoftext|>"
        template = processors.TemplateProcessing(
            single=f"{delimiter} $A {delimiter}", special_tokens=[(delimiter, model.token_to_id(delimiter))])
        for name, own, ends in (("offsets", processors.ByteLevel(trim_offsets=False), 0), ("template", template, 1)):
            with self.subTest(name):
                data, run_folder = self.folder / name, self.folder / f"{name} run"
                model.post_processor = own
                model.save(str(self.folder / "tokenizer.json"))
                write_shard(data / "t_train_000000.bin", [i % 250 for i in range(500)])
                made = tokenizer_folder.create(str(data / "tokenizer"), str(self.folder), None, None, None)
                (data / "manifest.json").write_text(
                    json.dumps({"vocab_size": made["vocab_size"], "delimiter": made["delimiter"]}))
                self.run_program("--data", data / "t_train_000000.bin", *self.TINY, "--out", run_folder)
                prompt = "don't make\n all"
                tokens = self.run_program("--checkpoint", run_folder, "--prompt", prompt, "--sample-tokens", 1,
                                          "--as-tokens", program="generate").stdout.split()
                exported = tokenizers.Tokenizer.from_file(str(run_folder / "step_00000001" / "tokenizer.json"))
                self.assertEqual(exported.encode(prompt).ids, [*map(int, tokens[:-1]), *[made["delimiter"]] * ends])
                self.assertEqual(exported.encode(prompt).ids[0], made["delimiter"])
                self.assertEqual(exported.decode(exported.encode(prompt).ids), prompt)


@needs("tokenizers", "transformers", "torch")
class TransformersTest(Case):
    def test_models_and_tokenizers_that_transformers_saved(self):
        import torch
        from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

        tokenizer = byte_level(size=500, texts=[(ROOT / "Makefile").read_text()])
        V = tokenizer.get_vocab_size()
        end = V - 1
        common = {"vocab_size": V, "bos_token_id": end, "eos_token_id": end, "initializer_range": 0.3}
        torch.manual_seed(5)
        models = [GPT2LMHeadModel(GPT2Config(n_positions=64, n_embd=48, n_layer=2, n_head=3, **common)),
                  LlamaForCausalLM(LlamaConfig(hidden_size=48, intermediate_size=100, num_hidden_layers=2,
                                               num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
                                               rope_theta=5000.0, tie_word_embeddings=True, **common))]
        for model in models:
            folder = self.folder / model.config.model_type
            with self.subTest(folder.name):
                model.eval().save_pretrained(folder)
                tokenizer.save(str(folder / "tokenizer.json"))
                for prompt in ("check: don't fail\n\n\tnow", "Ünïcode — 東京 12345  "):
                    ids = [end, *tokenizer.encode(prompt).ids]
                    expected = model.generate(torch.tensor([ids]), max_new_tokens=20, do_sample=False)[0].tolist()
                    flags = ["--checkpoint", folder, "--prompt", prompt, "--temperature", 0, "--sample-tokens", 20,
                             "--dtype", "float"]  # as transformers computed; bf16 takes other tokens
                    shown = self.run_program(*flags, "--as-tokens", program="generate").stdout
                    self.assertEqual(list(map(int, shown.split())), expected)
                    if expected[-1] == end:  # a number, but no text
                        expected.pop()
                    text = tokenizer.decode(expected[1:], skip_special_tokens=False)
                    text = re.sub("\r\n?", "\n", text)  # as Python's text mode reads the output
                    self.assertEqual(self.run_program(*flags, program="generate").stdout, text + "\n")

    def test_sets_and_frequencies_of_known_logits(self):
        """The final norm makes the same vector of everything, so each token is drawn from the same known logits."""
        import torch
        from transformers import GPT2Config, GPT2LMHeadModel
        from transformers.generation import logits_process

        V, n = 64, 10000
        torch.manual_seed(3)
        model = GPT2LMHeadModel(GPT2Config(vocab_size=V, n_positions=32, n_embd=16, n_layer=1, n_head=1))
        model.generation_config.eos_token_id = None

        def drawn(logits, *flags):
            with torch.no_grad():
                model.transformer.ln_f.weight[:] = 0
                model.transformer.ln_f.bias[:] = torch.eye(16)[0]
                model.transformer.wte.weight[:, 0] = logits
            model.save_pretrained(self.folder / "known")
            text = self.run_program("--checkpoint", self.folder / "known", "--prompt-tokens", 0, "--as-tokens",
                                    "--dtype", "float", "--sample-tokens", n, "--seed", 1, *flags, program="generate")
            return torch.bincount(torch.tensor(list(map(int, text.stdout.split()))[1:]), minlength=V)

        def theirs(logits, temperature, top_k, top_p):
            scores = logits_process.TemperatureLogitsWarper(temperature)(None, logits[None])
            scores = logits_process.TopKLogitsWarper(top_k)(None, scores)
            return logits_process.TopPLogitsWarper(top_p)(None, scores)[0].double().softmax(0)

        logits = torch.randn(V)
        for temperature, top_k, top_p in ((1.0, V, 1.0), (0.7, 10, 1.0), (1.5, V, 0.5), (0.8, 20, 0.7)):
            with self.subTest(temperature=temperature, top_k=top_k, top_p=top_p):
                counts = drawn(logits, "--temperature", temperature, "--top-k", top_k, "--top-p", top_p)
                expected = n * theirs(logits, temperature, top_k, top_p)
                self.assertEqual((counts > 0).tolist(), (expected > 0).tolist())
                kept = expected > 0
                chi_square = ((counts - expected)[kept] ** 2 / expected[kept]).sum()
                freedom = kept.sum() - 1
                self.assertLess(abs(chi_square - freedom), 5 * (2 * freedom) ** 0.5 + 10)
        # Ties: transformers keeps all equal to the k-th; which of them top-p keeps depends on torch's sort.
        tied = torch.zeros(V)
        tied[:3] = 1
        self.assertEqual(theirs(tied, 1.0, 2, 1.0).nonzero().flatten().tolist(), [0, 1, 2])
        self.assertEqual(drawn(tied, "--top-k", 2).nonzero().flatten().tolist(), [0, 1])
        self.assertEqual((theirs(torch.zeros(V), 1.0, V, 0.25) > 0).sum(), 16)
        self.assertEqual(drawn(torch.zeros(V), "--top-k", 0, "--top-p", 0.25).nonzero().flatten().tolist(),
                         list(range(16)))
