"""The wheel of teon_torch and the examples that use it."""
import math
import re
import sys
import zipfile

from testing import ROOT, Case, needs
from torch_models import torch


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
        self.call(sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", folder / "site", wheel)
        if torch:
            done = self.call(sys.executable, "-c", "import teon_torch; print(teon_torch.__file__)",
                             PYTHONPATH=folder / "site")
            self.assertEqual(done.stdout.strip(), str(folder / "site/teon_torch/__init__.py"), done.stderr)

    @needs("torch", "safetensors", "transformers")
    def test_example_learns(self):
        done = self.run_script("teon_torch_example.py", ROOT / "README.md", "--steps", 30)
        losses = [float(loss) for loss in re.findall(r"loss (\S+)", done.stdout)]
        self.assertTrue(losses[-1] < .6 * math.log(256), done.stdout)
