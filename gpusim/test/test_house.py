"""The modelled GPU builds outside of the project:  dev/run_tests.py gpusim/test/test_house.py"""

import os
import shutil
import subprocess
import unittest

from testing import ROOT, Case

LIBRARIES = ("libcudart.so.13", "libcublasLt.so.13", "libcusolver.so.12", "libnccl.so.2")


def has(header):
    return subprocess.run(["g++", "-E", "-x", "c++", "-"], input=f"#include <{header}>\n", text=True,
                          capture_output=True).returncode == 0


@unittest.skipUnless(shutil.which("make") and shutil.which("g++"), "needs make and g++")
class HouseTest(Case):
    def copy(self):
        """Copies the folder under another name, and the two folders of its host that it needs to another place."""
        house, host = self.folder / "elsewhere", self.folder / "host"
        shutil.copytree(ROOT / "gpusim", house, ignore=shutil.ignore_patterns("build"))
        for folder in ("base", "cpu"):
            shutil.copytree(ROOT / folder, host / folder)
        return house

    def make(self, house, *words, **keywords):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
        return self.call("make", "-C", house, *words, env=environment, timeout=900, **keywords)

    @unittest.skipUnless(has("dnnl.hpp") and has("lapacke.h"), "needs oneDNN and LAPACKE")
    def test_a_copy_builds_alone(self):
        house = self.copy()
        self.make(house, "HOST=../host", "OPT=-O0", "MARCH=", "-j2")
        for library in LIBRARIES:
            self.assertTrue((house / "build" / library).exists(), library)
        symbols = subprocess.run(["nm", "-D", "--with-symbol-versions", house / "build/libmodel_gpu.so"], text=True,
                                 capture_output=True, check=True).stdout
        self.assertRegex(symbols, r" T cudaLaunchKernel@+libcudart.so.13")

    def test_a_copy_without_its_host_says_what_it_needs(self):
        house = self.copy()
        refused = self.make(house, "HOST=/nowhere", expect=2)
        self.assertIn("/nowhere has no cpu/hardware.h; name the folder that has base/, cpu/", refused.stderr)

    def test_the_host_does_not_know_the_house(self):
        for path in sorted([*(ROOT / "cpu").rglob("*.*"), *(ROOT / "base").rglob("*.*")]):
            text = path.read_text(errors="replace")
            for word in ("kModelGpu", "TEON_MODEL_GPU", "#include \"gpusim/"):
                self.assertNotIn(word, text, path)
