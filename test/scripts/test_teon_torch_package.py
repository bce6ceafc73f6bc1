"""The wheel of teon_torch, the examples that use it, and how continuous integration gets torch."""
import email
import json
import math
import os
import pathlib
import re
import shutil
import sys
import zipfile

from testing import ROOT, Case, needs, write_program
from torch_models import torch

SMOKE_TEST = """
import teon_torch, torch
p = torch.nn.Parameter(torch.zeros(4, 6))
p.grad = torch.randn(4, 6)
teon_torch.Teon([p], lr=1, ortho="svd", update_rms=6 ** -.5).step()
print(teon_torch.__file__, f"{p.norm().item():.3f}")  # the norm of a polar factor of 4 rows
"""
EXAMPLES = ROOT / "scripts/teon_torch_examples"


def python_path(*folders):
    return os.pathsep.join(map(str, filter(None, [*folders, os.environ.get("PYTHONPATH")])))


class PackageTest(Case):
    @needs("pip")
    def test_pip_install(self):
        folder = self.folder
        done = self.call(sys.executable, "-m", "pip", "wheel", "--no-deps", "--retries", 0, "-w", folder,
                         ROOT / "scripts", expect=None)
        if done.returncode and re.search(r"No matching distribution|Could not find a version|onnection", done.stderr):
            self.skipTest("hatchling, which builds the wheel, cannot be fetched here")
        self.assertEqual(done.returncode, 0, done.stderr)
        version = re.search(r"^## (\d\S*)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1]
        wheel, = folder.glob("*.whl")
        self.assertEqual(wheel.name, f"teon_torch-{version}-py3-none-any.whl")
        metadata = email.message_from_bytes(
            zipfile.ZipFile(wheel).read(f"teon_torch-{version}.dist-info/METADATA"))
        self.assertIn("Muon and Teon", metadata["Summary"])
        self.assertEqual((metadata["Requires-Python"], metadata["License-Expression"]), (">=3.10", "MIT"))
        self.assertIn("pip install", metadata.get_payload())  # the readme
        self.assertIn("Programming Language :: Python :: 3", metadata.get_all("Classifier"))
        self.assertGreaterEqual(len(metadata.get_all("Project-URL")), 1)
        code = {name for name in zipfile.ZipFile(wheel).namelist() if "dist-info" not in name}
        self.assertEqual(code, {f"teon_torch/{path.name}" for path in (ROOT / "scripts/teon_torch").glob("*.py")})
        self.smoke_test(wheel)

    def smoke_test(self, wheel):
        """Installs the wheel in an empty environment, to which only torch's folder is added, and takes a step."""
        self.call(sys.executable, "-m", "venv", "--without-pip", self.folder / "empty")
        python = self.folder / "empty/bin/python"
        code, = (self.folder / "empty").glob("lib/python3*/site-packages")
        self.call(sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", code, wheel)
        if torch is None:
            self.skipTest("the wheel was installed, but without torch it cannot be tried")
        (code / "torch.pth").write_text(str(pathlib.Path(torch.__file__).parents[1]))
        done = self.call(python, "-c", SMOKE_TEST, env={"PATH": os.environ["PATH"]})
        self.assertEqual(done.stdout.split(), [str(code / "teon_torch/__init__.py"), "2.000"])

    def losses_of(self, *command):
        done = self.call(*command, PYTHONPATH=python_path(ROOT / "scripts"), OMP_NUM_THREADS=1)
        return [float(loss) for loss in re.findall(r"loss (\S+)", done.stdout)], done.stdout + done.stderr

    def assert_learns(self, *command):
        losses, output = self.losses_of(*command)
        self.assertTrue(len(losses) > 1 and losses[-1] < .6 * math.log(256), output[-3000:])

    @needs("torch", "transformers")
    def test_example_on_one_process(self):
        self.assert_learns(sys.executable, ROOT / "scripts/teon_torch_example.py", ROOT / "README.md", "--steps", 30)

    @needs("torch", "transformers")
    def test_example_of_fsdp2(self):
        self.assert_learns(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2,
                           EXAMPLES / "fsdp2.py", ROOT / "README.md", "--steps", 40)

    @needs("torch", "transformers", "accelerate")
    def test_example_of_hugging_faces_trainer(self):
        self.assert_learns(sys.executable, EXAMPLES / "hf_trainer.py", ROOT / "README.md", "--steps", 30)

    def torchtitan_losses(self, steps):
        """Runs torchtitan's trainer on two ranks and returns {step: loss}. It continues from its last checkpoint."""
        done = self.call(
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2,
            ROOT / "test/scripts/torchtitan_on_cpu.py", "--module", "torchtitan_llama", "--config", "teon_debugmodel",
            "--training.steps", steps, "--training.local_batch_size", 2, "--training.seq_len", 32,
            "--training.disable_cuda_graphs", "--validator.freq", 100, "--lr_scheduler.decay_ratio", 0,
            "--checkpoint.enable", "--checkpoint.interval", 3,
            PYTHONPATH=python_path(ROOT / "scripts", EXAMPLES), OMP_NUM_THREADS=1, HF_HOME=self.folder / "cache",
            HF_HUB_OFFLINE=1)
        text = re.sub("\x1b\\[[0-9;]*m", "", done.stdout + done.stderr)
        return {int(step): float(loss) for step, loss in re.findall(r"step: *(\d+) *loss: *(\S+)", text)}

    def write_torchtitan_assets(self):
        """Writes a tokenizer of bytes and a text where torchtitan's debug configuration expects its own."""
        from tokenizers import Tokenizer, models, pre_tokenizers
        alphabet = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<s>", "</s>"]
        tokenizer = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(alphabet)}, merges=[]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.add_special_tokens(["<s>", "</s>"])
        assets = self.folder / "tests/assets"
        for name in ("tokenizer", "c4_test"):
            (assets / name).mkdir(parents=True)
        tokenizer.save(str(assets / "tokenizer/tokenizer.json"))
        (assets / "tokenizer/tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": "</s>"}')
        paragraphs = (ROOT / "README.md").read_text().split("\n\n")
        (assets / "c4_test/data.json").write_text("".join(json.dumps({"text": x}) + "\n" for x in paragraphs))

    @needs("torch", "torchtitan", "tokenizers")
    def test_torchtitans_trainer(self):
        # Six steps; then three more from the checkpoint of the third, in new processes.
        self.write_torchtitan_assets()
        losses = self.torchtitan_losses(6)
        self.assertEqual(sorted(losses), [1, 2, 3, 4, 5, 6])
        self.assertLess(min(losses[5], losses[6]), losses[1])
        shutil.rmtree(self.folder / "outputs/checkpoint/step-6")
        continued = self.torchtitan_losses(6)
        self.assertEqual(sorted(continued), [4, 5, 6])
        for step, loss in continued.items():
            self.assertAlmostEqual(loss, losses[step], delta=1e-4)


class TorchTestsTest(Case):
    """test/torch_tests.sh, in a checkout without .venv."""

    def setUp(self):
        super().setUp()
        here = self.folder / "checkout"
        (here / "test").mkdir(parents=True)
        shutil.copy(ROOT / "test/torch_tests.sh", here / "test")
        (here / "test/scripts").symlink_to(ROOT / "test/scripts")
        for name in ("scripts", "dev"):
            (here / name).symlink_to(ROOT / name)

    def run_tests(self, **environment):
        script = self.folder / "checkout/test/torch_tests.sh"
        return self.call(script, CACHE=self.folder / "cache", **environment).stdout

    @needs("ensurepip")
    def test_an_index_that_cannot_be_reached_skips_the_tests_by_name(self):
        self.assertRegex(self.run_tests(PIP_NO_INDEX=1), r"\ASKIPPED: tests of teon_torch: ERROR: .*\n\Z")
        self.assertFalse((self.folder / "cache/venv").exists())

    def test_the_packages_are_installed_once(self):
        python = self.folder / "cache/venv/bin/python"
        write_program(python, "#!/bin/sh\necho $TEON_VENV $*\n")
        version = self.call("python3", "--version").stdout
        (self.folder / "cache/made").write_text(
            version + "".join((ROOT / name).read_text()
                              for name in ("scripts/requirements.txt", "dev/requirements-dev.txt",
                                           "dev/requirements-torchtitan.txt")))
        ran = self.run_tests(PIP_NO_INDEX=1).split()
        # With TEON_VENV the tests do not restart with the Python of .venv, which has no torch.
        self.assertEqual(ran[:2], [str(self.folder / "cache/venv"), "dev/run_tests.py"])
        self.assertEqual(sorted(ran[2:]), sorted(os.path.relpath(path, ROOT)
                                                 for path in ROOT.glob("test/scripts/test_teon_torch*.py")))
