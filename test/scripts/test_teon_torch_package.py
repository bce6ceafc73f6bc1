"""The wheel of teon_torch, the example that uses it, and how continuous integration gets torch."""
import email
import math
import os
import re
import shutil
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
        metadata = email.message_from_bytes(
            zipfile.ZipFile(wheel).read(f"teon_torch-{version}.dist-info/METADATA"))
        self.assertIn("Muon and Teon", metadata["Summary"])
        self.assertEqual((metadata["Requires-Python"], metadata["License-Expression"]), (">=3.10", "MIT"))
        self.assertIn("pip install", metadata.get_payload())  # the readme
        self.assertIn("Programming Language :: Python :: 3", metadata.get_all("Classifier"))
        self.assertGreaterEqual(len(metadata.get_all("Project-URL")), 1)
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


class TorchTestsTest(Case):
    """test/torch_tests.sh, in a checkout without .venv."""

    def setUp(self):
        super().setUp()
        here = self.folder / "checkout"
        (here / "test").mkdir(parents=True)
        shutil.copy(ROOT / "test/torch_tests.sh", here / "test")
        (here / "test/scripts").symlink_to(ROOT / "test/scripts")
        (here / "scripts").symlink_to(ROOT / "scripts")

    def run_tests(self, **environment):
        script = self.folder / "checkout/test/torch_tests.sh"
        return self.call(script, CACHE=self.folder / "cache", **environment).stdout

    @needs("ensurepip")
    def test_an_index_that_cannot_be_reached_skips_the_tests_by_name(self):
        self.assertRegex(self.run_tests(PIP_NO_INDEX=1), r"\ASKIPPED: tests of teon_torch: ERROR: .*\n\Z")
        self.assertFalse((self.folder / "cache/venv").exists())

    def test_the_packages_are_installed_once(self):
        python = self.folder / "cache/venv/bin/python"
        python.parent.mkdir(parents=True)
        python.write_text("#!/bin/sh\necho ran $*\n")
        python.chmod(0o755)
        version = self.call("python3", "--version").stdout
        (self.folder / "cache/made").write_text(
            version + "".join((ROOT / "scripts" / name).read_text()
                              for name in ("requirements.txt", "requirements-dev.txt")))
        ran = self.run_tests(PIP_NO_INDEX=1).split()
        self.assertEqual(ran[:2], ["ran", "scripts/run_tests.py"])
        self.assertEqual(sorted(ran[2:]), sorted(os.path.relpath(path, ROOT)
                                                 for path in ROOT.glob("test/scripts/test_teon_torch*.py")))
