"""docs/using.md's recipe for lm-evaluation-harness:  dev/run_tests.py test/programs/test_lm_eval.py

The questions are made here, so that nothing is downloaded. The harness and --hellaswag must agree on each of them.
"""

import json
import random
import sys

from testing import ROOT, Case, needs

TASK = """
task: made_here
dataset_path: json
dataset_kwargs: {{data_files: {{validation: {path}}}}}
validation_split: validation
output_type: multiple_choice
doc_to_text: "{{{{ctx}}}}"
doc_to_choice: "{{{{endings}}}}"
doc_to_target: "{{{{label}}}}"
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
"""


@needs("lm_eval", "torch", "transformers", "datasets", "numpy", "pyarrow", "tokenizers")
class LmEvalTest(Case):
    def output_of(self, *command):
        return self.call(*command, HF_HUB_OFFLINE=1, HF_DATASETS_OFFLINE=1, HF_HOME=self.folder / "cache").stdout

    def test_the_harness_and_eval_only_agree(self):
        rng = random.Random(5)
        words = "the a quick brown fox dog jumps sleeps over under lazy hill river and then sees".split()

        def sentence(n):
            return " ".join(rng.choices(words, k=n))

        (self.folder / "t.txt").write_text("\n".join(sentence(12) for _ in range(3000)))
        rows = [{"ctx": sentence(6), "endings": [sentence(rng.randint(1, 5)) for _ in range(4)],
                 "label": rng.randrange(4)} for _ in range(40)]
        (self.folder / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (self.folder / "task.yaml").write_text(TASK.format(path=self.folder / "q.jsonl"))
        scripts = ROOT / "scripts"
        self.output_of(sys.executable, scripts / "prepare.py", "t.txt", "--tokenizer", "train:300", "--out", "data")
        self.output_of(ROOT / "train_llama", "--model", "tiny", "--seq-len", 64, "--data", "data", "--steps", 5,
                         "--batch-tokens", 512, "--dtype", "float", "--out", "run")
        self.output_of(sys.executable, scripts / "hellaswag.py", "q.jsonl", "--data", "data", "--out", "q.bin")
        ours = self.output_of(ROOT / "train_llama", "--eval-only", "--init-from", "run", "--dtype", "float",
                                "--hellaswag", "q.bin")
        self.output_of(sys.executable, "-m", "lm_eval", "run", "--model", "hf", "--model_args",
                         "pretrained=run/step_00000005,dtype=float32", "--include_path", self.folder, "--tasks",
                         "made_here", "--device", "cpu", "--batch_size", 8, "--output_path", "results")
        [results] = (self.folder / "results").rglob("*.json")
        theirs = json.loads(results.read_text())["results"]["made_here"]["acc,none"]
        self.assertIn(f"hellaswag accuracy {theirs:.4f} ", ours)
