"""Models by their name on the Hugging Face Hub:  dev/run_tests.py test/programs/test_hub.py

No network is used: the hub's cache is made here, as its client makes it.
"""

import math
import os
import shutil

import testing
from testing import BUILD, RunCase, needs, read_tensors

SHA = "0123456789abcdef0123456789abcdef01234567"


@needs("huggingface_hub")
class HubTest(RunCase):
    SHAPE = {"--model": "tiny", "--layers": 1, "--channels": 16, "--heads": 2, "--vocab-size": 64, "--seq-len": 16,
             "--batch-tokens": 64, "--micro-batch": 2, "--eval-tokens": 64, "--dtype": "float"}

    def setUp(self):
        super().setUp()
        self.environment = {"HF_HOME": self.folder / "home", "HF_HUB_OFFLINE": 1}
        testing.write_shards(self.folder, testing.learnable(2000), testing.learnable(200))

    def publish(self, name, source, files):
        """Puts files into the cache as the main revision of a repository. Returns its folder."""
        repository = self.folder / "home" / "hub" / f"models--{name.replace('/', '--')}"
        snapshot = repository / "snapshots" / SHA
        snapshot.mkdir(parents=True)
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text(SHA)
        for file in files:
            shutil.copy(source / file, snapshot / file)
        return snapshot

    def greedy(self, model):
        return self.call(BUILD / "generate", "--checkpoint", model, "--prompt-tokens", "1,2", "--temperature", 0,
                         "--sample-tokens", 20, **self.environment).stdout

    def test_a_hub_name_stands_for_the_model_in_the_cache(self):
        self.train("first")
        self.publish("someone/model", self.checkpoint("first", 8), ["config.json", "model.safetensors"])
        self.assertEqual(self.greedy("hf:someone/model"), self.greedy(self.checkpoint("first", 8)))
        shape = {key: self.SHAPE[key] for key in ("--batch-tokens", "--micro-batch", "--eval-tokens", "--dtype")}
        self.train("second", "--init-from", "hf:someone/model", shape=shape, **self.environment)
        self.train("third", "--init-from", self.checkpoint("first", 8), shape=shape)
        self.assert_same_checkpoint("second", "third", 8)
        self.assertTrue(math.isfinite(self.losses("second")[-1]))
        shutil.rmtree(self.folder / "second" / "step_00000008")
        self.train("second", "--resume", "--init-from", "hf:someone/model", shape=shape, **self.environment)
        self.assert_same_checkpoint("second", "third", 8)
        evaluated = self.call(BUILD / "train_gpt2", "--eval-only", "--init-from", "hf:someone/model", "--val-data",
                              self.folder / "t_val_000000.bin", **self.environment)
        self.assertIn("val_loss", evaluated.stdout)

    def test_names_that_are_wrong_or_not_there_are_one_line(self):
        command = [BUILD / "generate", "--prompt-tokens", 1, "--checkpoint"]
        for name, says in (("hf:none/none", "cannot fetch hf:none/none"), ("hf:none", "expected hf:OWNER/NAME"),
                           ("hf:a/b:c:d", "expected hf:OWNER/NAME")):
            errors = self.call(*command, name, expect=2, **self.environment).stderr
            self.assertIn(says, errors)
            self.assertEqual(errors.count("\n"), 2, errors)  # what is fetched, and the error
        self.train("first")
        self.publish("someone/empty", self.checkpoint("first", 8), ["config.json"])
        self.assertIn("hf:someone/empty", self.call(*command, "hf:someone/empty", expect=2, **self.environment).stderr)

    @needs("torch", "safetensors")
    def test_a_pickled_model_is_converted_without_running_its_code(self):
        import safetensors.torch
        import torch

        self.train("first")
        checkpoint = self.checkpoint("first", 8)
        tensors = safetensors.torch.load_file(checkpoint / "model.safetensors")
        tensors = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
        tensors["lm_head.weight"] = tensors["wte.weight"]  # shares its memory
        tensors["h.0.attn.bias"] = torch.ones(16, 16, dtype=torch.uint8)  # a mask, as published GPT-2s have it
        torch.save(tensors, self.folder / "pytorch_model.bin")
        shutil.copy(checkpoint / "config.json", self.folder)
        self.publish("someone/pickled", self.folder, ["config.json", "pytorch_model.bin"])
        expected = self.greedy(checkpoint)
        for _ in range(2):  # converted, then found
            self.assertEqual(self.greedy("hf:someone/pickled"), expected)
        [converted] = (self.folder / "home").rglob("model.safetensors")
        self.assertNotIn("h.0.attn.bias", read_tensors(converted))
        torch.save({"a": Evil(self.folder / "evil")}, self.folder / "pytorch_model.bin")
        self.publish("someone/evil", self.folder, ["config.json", "pytorch_model.bin"])
        error = self.call(BUILD / "generate", "--checkpoint", "hf:someone/evil", "--prompt-tokens", 1, expect=2,
                          **self.environment).stderr
        self.assertIn("is damaged or holds more than tensors", error)
        self.assertFalse((self.folder / "evil").exists())


class Evil:
    """Unpickling it makes a folder."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)
