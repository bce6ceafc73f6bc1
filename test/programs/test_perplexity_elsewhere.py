"""docs/comparing.md's table of perplexities:  dev/run_tests.py test/programs/test_perplexity_elsewhere.py

Each program evaluates one checkpoint on one text, and its number is --eval-only's or differs for the reason that the
table gives. The harness has a file of its own (test_lm_eval.py), Trainer a script in findings/.
"""

import json
import math
import subprocess
import sys

import testing
from testing import Case, needs, write_shards
from tokenizer_kinds import byte_level

T = 32


@needs("torch", "transformers", "tokenizers")
class PerplexityElsewhereTest(Case):
    """A LLaMA that has learned a text a little, and the log-probabilities of transformers in float64."""

    @classmethod
    def setUpClass(cls):
        import tokenizers
        import torch
        import transformers
        from teon_data import tokenizer_folder

        cls.folder = testing.temporary_folder(cls.addClassCleanup)
        text = (testing.ROOT / "Makefile").read_text()
        byte_level(size=300, texts=[text]).save(str(cls.folder / "tokenizer.json"))
        made = tokenizer_folder.create(str(cls.folder / "data" / "tokenizer"), str(cls.folder), None, None, None)
        tokens = tokenizers.Tokenizer.from_file(str(cls.folder / "tokenizer.json")).encode(text).ids
        cls.tokens = [made["delimiter"], *tokens[:1000]]
        write_shards(cls.folder / "data", tokens, cls.tokens)
        cls().run_program("--model", "tiny", "--layers", 2, "--channels", 64, "--heads", 2, "--seq-len", T, "--data",
                          cls.folder / "data", "--vocab-size", made["vocab_size"], "--batch-tokens", 512, "--steps", 40,
                          "--lr", "1e-2", "--dtype", "float", "--out", cls.folder / "run", program="train_llama")
        cls.checkpoint = cls.folder / "run" / "step_00000040"
        cls.model = transformers.AutoModelForCausalLM.from_pretrained(cls.checkpoint, dtype=torch.float64).eval()

    def ours(self, *flags):
        return self.evaluate("--init-from", self.checkpoint, "--val-data", self.folder / "data", "--dtype", "float",
                             *flags, program="train_llama")

    def nats(self, first, end, counted):
        """Returns the nats of the last `counted` tokens of [first, end), which are given those before them."""
        import torch
        window = torch.tensor([self.tokens[first:end]])
        with torch.no_grad():
            losses = torch.nn.functional.cross_entropy(self.model(window).logits[0, :-1], window[0, 1:],
                                                       reduction="none")
        return losses[len(losses) - counted:].sum().item()

    def blocks(self):
        """Returns nats and targets of blocks of T tokens, of which no first token is predicted."""
        n = len(self.tokens) // T
        return sum(self.nats(T * i, T * i + T, T - 1) for i in range(n)), n * (T - 1)

    def assert_close(self, perplexity, expected):
        self.assertAlmostEqual(math.log(perplexity), math.log(expected), delta=2e-5)  # float32 against float64

    def test_windows_and_strides_are_those_that_the_page_states(self):
        n = len(self.tokens)
        windows = (n - 1) // T
        self.assert_close(self.ours()["val_ppl"],
                          math.exp(sum(self.nats(T * i, T * i + T + 1, T) for i in range(windows)) / (T * windows)))
        for stride in (T, 12, 1):
            ends = [T + 1]
            while ends[-1] < n:
                ends.append(min(n, ends[-1] + stride))
            nats = self.nats(0, T + 1, T) + sum(self.nats(b - T - 1, b, b - a) for a, b in zip(ends, ends[1:]))
            result = self.ours("--eval-stride", stride)
            self.assertEqual(result["val_tokens"], n - 1)
            self.assert_close(result["val_ppl"], math.exp(nats / (n - 1)))

    def test_transformers_guide(self):
        """https://huggingface.co/docs/transformers/perplexity weighs each window's mean by one target too few of what
        its stride counts, and so differs from the sum over the same targets."""
        import torch
        n, stride, before, total, counted, exact = len(self.tokens), T // 2, 0, 0.0, 0, 0.0
        for begin in range(0, n, stride):
            end = min(begin + T, n)
            labels = torch.tensor([self.tokens[begin:end]])
            labels[:, :len(labels[0]) - (end - before)] = -100
            with torch.no_grad():
                loss = self.model(torch.tensor([self.tokens[begin:end]]), labels=labels).loss.item()
            targets = int((labels != -100).sum())
            total += loss * (targets - 1)
            counted += targets - 1
            exact += self.nats(begin, end, min(targets, end - begin - 1))
            before = end
            if end == n:
                break
        ours = self.ours("--eval-stride", stride)
        self.assertEqual(ours["val_tokens"], n - 1)
        # Its windows have T tokens and ours T + 1: one token of context more for each target.
        self.assertAlmostEqual(exact / (n - 1), ours["val_loss"], delta=0.02)
        self.assertNotAlmostEqual(total / counted, ours["val_loss"], places=5)

    @needs("ctranslate2")
    def test_ctranslate2(self):
        """It scores T targets of T + 1 tokens; of blocks of T it does not score the first."""
        import ctranslate2
        import transformers
        out = self.folder / "ctranslate2"
        ctranslate2.converters.TransformersConverter(str(self.checkpoint)).convert(str(out))
        generator = ctranslate2.Generator(str(out))
        tokenizer = transformers.AutoTokenizer.from_pretrained(self.checkpoint)

        def score(spans):
            texts = [tokenizer.convert_ids_to_tokens(self.tokens[a:b]) for a, b in spans]
            scores = [x for result in generator.score_batch(texts) for x in result.log_probs]
            return math.exp(-sum(scores) / len(scores)), len(scores)

        windows = (len(self.tokens) - 1) // T
        perplexity, targets = score([(T * i, T * i + T + 1) for i in range(windows)])
        ours = self.ours()
        self.assertEqual(targets, ours["val_tokens"])
        self.assert_close(perplexity, ours["val_ppl"])
        nats, count = self.blocks()
        perplexity, targets = score([(T * i, T * i + T) for i in range(len(self.tokens) // T)])
        self.assertEqual(targets, count)
        self.assert_close(perplexity, math.exp(nats / count))

    @needs("mlx", "mlx_lm")
    def test_mlx_lm(self):
        """Blocks of T tokens, of which no first one is predicted."""
        import mlx.core as mx
        from mlx_lm.perplexity import eval_ppl
        from mlx_lm.utils import load
        model, _ = load(str(self.checkpoint))
        n = len(self.tokens) // T
        perplexity, _ = eval_ppl(model, mx.array(self.tokens[:n * T]).reshape(n, T))
        nats, count = self.blocks()
        self.assert_close(perplexity, math.exp(nats / count))

    @needs("gguf", "xllamacpp")
    def test_llama_cpp(self):
        """Its rule, applied to its own log-probabilities: chunks of T tokens of which the first becomes BOS, and of
        which the second half is predicted."""
        out = self.folder / "model.gguf"
        self.run_script("export_gguf.py", self.checkpoint, "--out", out, "--type", "f32")
        chunks = [[self.tokens[0], *self.tokens[begin + 1:begin + T]] for begin in range(0, 4 * T, T)]
        prefixes = [chunk[:end] for chunk in chunks for end in range(T // 2 + 1, T)]
        request = {"models": {"": str(out)}, "prefixes": prefixes, "texts": [], "prompts": [], "length": 0}
        answer = subprocess.run([sys.executable, testing.ROOT / "test/readers/read.py", "llama_cpp"], text=True,
                                input=json.dumps(request), stdout=subprocess.PIPE, timeout=testing.PATIENCE, check=True)
        logs = json.loads(answer.stdout)[""]["logs"]
        targets = [chunk[end] for chunk in chunks for end in range(T // 2 + 1, T)]
        perplexity = math.exp(-sum(row[token] for row, token in zip(logs, targets)) / len(targets))
        tokens, self.tokens = self.tokens, [token for chunk in chunks for token in chunk]
        self.addCleanup(setattr, self, "tokens", tokens)
        nats = sum(self.nats(T * i, T * i + T, T // 2 - 1) for i in range(len(chunks)))
        self.assertEqual(len(targets), len(chunks) * (T // 2 - 1))
        self.assert_close(perplexity, math.exp(nats / len(targets)))
