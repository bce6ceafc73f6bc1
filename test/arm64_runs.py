"""Programs for ARM64 Linux under qemu, beside those for this machine:  test/arm64.sh"""

import os
import shlex

from resuming import ResumeCase
from testing import BUILD, ROOT

ARM = ROOT / "build/arm64"
QEMU = shlex.split(os.environ["TEON_QEMU"])


class Arm64(ResumeCase):
    STEPS = 5

    def arm(self, out, *flags):
        return self.call(*QEMU, *self.command(out, *flags, program=ARM / "train_gpt2"))

    def test_training_gives_the_losses_of_x86_and_resumes_to_the_same_bits(self):
        for optimizer in ("adamw", "teon"):
            for dtype, rounding in (("float", 1e-5), ("bf16", 2**-8)):
                with self.subTest(optimizer=optimizer, dtype=dtype):
                    flags = ["--optimizer", optimizer, "--dtype", dtype, "--checkpoint-every", 3]
                    self.arm("arm", *flags)
                    self.train("x86", *flags)
                    for ours, theirs in zip(self.losses("arm"), self.losses("x86"), strict=True):
                        self.assertAlmostEqual(ours, theirs, delta=rounding * theirs)
                    self.call("cp", "-r", self.folder / "arm", self.folder / "cut")
                    self.cut("cut", 3)
                    self.arm("cut", *flags, "--resume")
                    self.assert_same_run("arm", "cut", 5)
                    self.remove("arm", "x86", "cut")

    def test_a_checkpoint_of_either_machine_writes_the_same_text_on_both(self):
        self.arm("arm", "--dtype", "float")
        self.train("x86", "--dtype", "float")
        for run in ("arm", "x86"):
            command = ["--checkpoint", self.folder / run, "--prompt-tokens", "1,2,3", "--temperature", 0,
                       "--sample-tokens", 8, "--as-tokens"]
            texts = [self.call(*program, *command).stdout
                     for program in ([*QEMU, ARM / "generate"], [BUILD / "generate"])]
            self.assertEqual(len(texts[0].split()), 3 + 8)  # the prompt, too
            self.assertEqual(*texts)
