"""dev/loss_parity.py:  dev/run_tests.py test/dev/test_loss_parity.py"""

import json
import unittest

from testing import BUILD, MODELLED, Case, needs


class LossParity(Case):
    def parity(self, *flags, program=BUILD / "train_gpt2", **how):
        output = self.run_script("loss_parity.py", "--program", program, "--device", "cpu", *flags, **how).stdout
        return json.loads(output.splitlines()[-1])

    @needs("torch")
    def test_ten_steps_have_pytorchs_losses(self):
        result = self.parity()
        self.assertLess(result["last_loss"], result["first_loss"] - 0.5)
        self.assertLess(result["worst"], 1e-5)
        (self.folder / "program").symlink_to(BUILD / "train_gpt2")
        self.parity("--dtype", "bf16", program="./program")

    @needs("torch")
    @unittest.skipIf(MODELLED, "the same program as on a CPU")
    def test_another_update_is_a_failure(self):
        worst = self.parity("--flags=--cautious-weight-decay", "--tolerance", "1e-6", expect=1)["worst"]
        self.assertGreater(worst, 1e-6)

    @needs("torch", "transformers")
    def test_transformers_reads_the_written_model(self):
        import bench_torch
        import loss_parity
        import torch
        import transformers

        shape = loss_parity.SIZES["tiny"]
        torch.manual_seed(3)
        model = bench_torch.GPT2(*(shape[key] for key in ("V", "T", "C", "L", "NH")))
        loss_parity.write_model(self.folder / "model", model, shape)
        other = transformers.GPT2LMHeadModel.from_pretrained(self.folder / "model")
        tokens = torch.randint(shape["V"], (2, shape["T"] + 1))
        with torch.no_grad():
            logits = other(tokens[:, :-1]).logits
            theirs = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            self.assertAlmostEqual(model(tokens[:, :-1], tokens[:, 1:]).item(), theirs.item(), delta=1e-5)
