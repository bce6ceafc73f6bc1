"""docs/using.md's recipe for lm-evaluation-harness:  dev/run_tests.py test/programs/test_lm_eval.py

The questions and the text are made here, so that nothing is downloaded. The model is trained until it prefers endings
that follow from the context, and the harness and --hellaswag are compared in every question.
"""

import json
import math
import random
import sys

import testing
from testing import BUILD, ROOT, Case, needs

WORDS = "the a quick brown fox dog jumps sleeps over under lazy hill river and then sees café Grüße".split()
TASK = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{validation: {path}}}}}
validation_split: validation
"""
CHOICE = TASK + """
output_type: multiple_choice
doc_to_text: "{{{{ctx}}}}"
doc_to_choice: "{{{{endings}}}}"
doc_to_target: "{{{{label}}}}"
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
  - {{metric: acc_norm, aggregation: mean, higher_is_better: true}}
"""
ROLLING = TASK + """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
metric_list:
  - {{metric: word_perplexity}}
  - {{metric: bits_per_byte}}
"""


@needs("lm_eval", "torch", "transformers", "datasets", "numpy", "pyarrow", "tokenizers")
class LmEvalTest(Case):
    @classmethod
    def setUpClass(cls):
        cls.folder = testing.temporary_folder(cls.addClassCleanup)
        rng = random.Random(5)
        chain = {word: rng.sample(WORDS, 3) for word in WORDS}  # a word is followed by one of three

        def sentence(n, word):
            words = [word]
            while len(words) < n:
                words.append(rng.choice(chain[words[-1]]))
            return " ".join(words)

        (cls.folder / "t.txt").write_text("\n".join(sentence(12, rng.choice(WORDS)) for _ in range(4000)))
        (cls.folder / "v.txt").write_text(" ".join(sentence(12, rng.choice(WORDS)) for _ in range(120)))
        (cls.folder / "v.jsonl").write_text(json.dumps({"text": (cls.folder / "v.txt").read_text()}) + "\n")
        rows = []
        for i in range(200):
            ctx = sentence(6, rng.choice(WORDS))
            label = i % 4
            endings = [sentence(rng.randint(1, 5), rng.choice(WORDS)) for _ in range(4)]
            endings[label] = sentence(rng.randint(1, 5), rng.choice(chain[ctx.split()[-1]]))
            rows.append({"ctx": ctx, "endings": endings, "label": label})
        cls.rows = rows
        (cls.folder / "q.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        test = cls()
        prepare = [sys.executable, ROOT / "scripts/prepare.py"]
        test.output_of(*prepare, "t.txt", "--tokenizer", "train:300", "--out", "data")
        test.output_of(*prepare, "v.txt", "--tokenizer", "data/tokenizer", "--val-tokens", "1e9", "--out", "val")
        test.output_of(BUILD / "train_llama", "--model", "tiny", "--seq-len", 64, "--data", "data", "--steps", 150,
                       "--batch-tokens", 1024, "--lr", "3e-3", "--dtype", "float", "--out", "run")

    def output_of(self, *command):
        return self.call(*command, HF_HUB_OFFLINE=1, HF_DATASETS_OFFLINE=1, HF_HOME=self.folder / "cache").stdout

    def evaluate_here(self, *flags):
        output = self.output_of(BUILD / "train_llama", "--eval-only", "--init-from", "run", "--dtype", "float", *flags)
        return json.loads(output.splitlines()[-1])

    def harness(self, task, name, path, *arguments):
        """Returns the results and the samples of a task, which is run as docs/using.md says."""
        (self.folder / name).mkdir()
        (self.folder / name / "task.yaml").write_text(task.format(name=name, path=self.folder / path))
        self.output_of(sys.executable, "-m", "lm_eval", "run", "--model", "hf", "--model_args",
                       ",".join(["pretrained=run/step_00000150", "dtype=float32", *arguments]), "--include_path",
                       self.folder / name, "--tasks", name, "--device", "cpu", "--batch_size", 8, "--log_samples",
                       "--output_path", f"{name}/results")
        [results] = (self.folder / name / "results").rglob("results*.json")
        [samples] = (self.folder / name / "results").rglob("samples*.jsonl")
        return (json.loads(results.read_text())["results"][name],
                sorted(map(json.loads, samples.read_text().splitlines()), key=lambda sample: sample["doc_id"]))

    def test_the_harness_and_hellaswag_agree_in_every_question(self):
        self.output_of(sys.executable, ROOT / "scripts/hellaswag.py", "q.jsonl", "--data", "data", "--out", "q.bin")
        ours = self.evaluate_here("--hellaswag", "q.bin", "--hellaswag-out", "q.scores")
        scores = [json.loads(line) for line in (self.folder / "q.scores").read_text().splitlines()]
        results, samples = self.harness(CHOICE, "made_here", "q.jsonl", "add_bos_token=False")
        self.assertGreater(ours["hellaswag_accuracy"], 0.4)  # it was trained; chance is 0.25
        right = []
        for row, score, sample in zip(self.rows, scores, samples, strict=True):
            theirs = [-float(logprob) for [[logprob, _]] in sample["resps"]]
            for a, b in zip(score["nats"], theirs, strict=True):
                self.assertAlmostEqual(a, b, delta=1e-3)  # float32 sums of up to 20 tokens
            self.assertEqual(score["nats"].index(min(score["nats"])), theirs.index(min(theirs)), row)
            per_character = [nats / len(text) for nats, text in zip(theirs, row["endings"])]
            right.append(per_character.index(min(per_character)) == row["label"])
        self.assertEqual(ours["hellaswag_accuracy"], results["acc,none"])
        self.assertEqual(sum(right) / len(right), results["acc_norm,none"])  # by characters, not by bytes or tokens
        _, with_bos = self.harness(CHOICE, "with_bos", "q.jsonl")
        self.assertGreater(max(abs(nats + float(logprob)) for score, sample in zip(scores, with_bos, strict=True)
                               for nats, [[logprob, _]] in zip(score["nats"], sample["resps"], strict=True)), 2e-3)

    def test_the_harness_and_an_evaluation_in_strides_have_one_word_perplexity(self):
        """The delimiter is the harness's first context, so both predict every token of the text."""
        ours = self.evaluate_here("--val-data", "val", "--eval-stride", 64)
        theirs, _ = self.harness(ROLLING, "rolling", "v.jsonl", "add_bos_token=False")
        self.assertEqual(ours["val_words"], 120 * 12)
        self.assertAlmostEqual(math.log(ours["val_word_ppl"]), math.log(theirs["word_perplexity,none"]), places=4)
        self.assertAlmostEqual(ours["val_bits_per_byte"], theirs["bits_per_byte,none"], places=4)
        windows = self.evaluate_here("--val-data", "val")
        self.assertLess(windows["val_tokens"], ours["val_tokens"])
