"""The wheel of teon_torch and the examples that use it."""
import math
import os
import pathlib
import re
import sys
import zipfile

from testing import ROOT, Case, needs
from torch_models import torch

SMOKE_TEST = """
import teon_torch, torch
p = torch.nn.Parameter(torch.zeros(4, 6))
p.grad = torch.randn(4, 6)
teon_torch.Teon([p], lr=1, ortho="svd", update_rms=6 ** -.5).step()
print(teon_torch.__file__, f"{p.norm().item():.3f}")  # the norm of a polar factor of 4 rows
"""
EXAMPLES = ROOT / "scripts/teon_torch_examples"


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
        code = {name for name in zipfile.ZipFile(wheel).namelist() if "dist-info" not in name}
        self.assertEqual(code, {f"teon_torch/{path.name}" for path in (ROOT / "scripts/teon_torch").glob("*.py")})
        self.smoke_test(wheel)

    def smoke_test(self, wheel):
        """Installs the wheel in an empty environment, to which only torch's folder is added, and takes a step."""
        self.call(sys.executable, "-m", "venv", "--without-pip", self.folder / "empty")
        python = self.folder / "empty/bin/python"
        self.call(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel)
        if torch is None:
            self.skipTest("the wheel was installed, but without torch it cannot be tried")
        code, = (self.folder / "empty").glob("lib/python3*/site-packages")
        (code / "torch.pth").write_text(str(pathlib.Path(torch.__file__).parents[1]))
        done = self.call(python, "-c", SMOKE_TEST, env={"PATH": os.environ["PATH"]})
        self.assertEqual(done.stdout.split(), [str(code / "teon_torch/__init__.py"), "2.000"])

    def losses_of(self, *command):
        done = self.call(*command, PYTHONPATH=ROOT / "scripts", OMP_NUM_THREADS=1)
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
