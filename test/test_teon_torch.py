"""scripts/teon_torch.py against the steps that the engine is tested with (test/golden/optim.safetensors: optim/teon)
and against torch.optim.Muon:  scripts/run_tests.py test/test_teon_torch.py

Skipped where torch is missing (scripts/requirements-dev.txt).
"""
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
try:
    import teon_torch
    import torch
    from safetensors.torch import load_file
except ImportError:
    torch = None

STEPS, LR, DECAY, LAYERS = 10, 0.05, 0.1, 3  # of test/golden/make_optim.py
CASES = {"teon.muon": {}, "teon.muon-svd": {"ortho": "svd"}, "teon.nesterov": {"k": 2, "nesterov": True},
         "teon.you": {"k": 2, "ortho": "you"}, "teon.you6": {"k": 2, "ortho": "you6", "ns_steps": 6},
         "teon.jordan": {"k": 2, "ortho": "jordan"}, "teon.rms": {"k": 2, "rms_match": True},
         "teon.normalize": {"k": 3, "normalize_slices": True},
         **{f"teon.mode{mode}.k{k}": {"k": k, "mode": mode} for mode in (1, 2, 3) for k in (2, 3)}}


def train(golden, role, transposed=False, joined=1, **options):
    """The weights of a role's layers after the golden gradients' steps. joined: so many copies of each matrix below
    each other, as a joined QKV has three."""
    def stored(x):
        x = torch.cat([x] * joined)
        return torch.nn.Parameter((x.mT if transposed else x).contiguous())

    params = [stored(golden[f"{role}.{layer}"]) for layer in range(LAYERS)]
    optimizer = teon_torch.Teon(params, lr=LR, weight_decay=DECAY, transposed=transposed, parts=joined, **options)
    for step in range(STEPS):
        for layer, p in enumerate(params):
            p.grad = stored(golden[f"{role}.{layer}.grads"][step]).detach()
        optimizer.step()
    return [(p.mT if transposed else p).detach() for p in params]


@unittest.skipUnless(torch, "torch is not installed (scripts/requirements-dev.txt)")
class TeonTorchTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.golden = load_file(ROOT / "test/golden/optim.safetensors")

    def assert_weights(self, found, name, role, bound):
        """bound: relative to the distance that the weights travelled."""
        for layer, w in enumerate(found):
            wanted, start = self.golden[f"{name}.{role}.{layer}"], self.golden[f"{role}.{layer}"]
            error = ((w - wanted).norm() / (wanted - start).norm()).item()
            self.assertTrue(error <= bound,
                            f"{name}, {role} of layer {layer}: {error:.2g} of the distance, allowed {bound:.2g}")

    def test_ten_steps_end_where_the_engines_do(self):
        # The bound that the engine is held to: ten float updates of at most 6e-5 each against float64.
        for name, options in CASES.items():
            for role in ("q", "up", "down"):
                self.assert_weights(train(self.golden, role, **options), name, role, 1e-4)

    def test_muon_is_torchs(self):
        # Both in bfloat16: as far from each other as each is from float64, .02 on such gradients (docs/teon.md), and
        # rounding once more.
        for name, nesterov in (("torch.plain", False), ("torch.nesterov", True)):
            for role in ("q", "up", "down"):
                found = train(self.golden, role, ortho="jordan", nesterov=nesterov, ns_dtype=torch.bfloat16)
                self.assert_weights(found, name, role, .03)

    def test_rms_match_counts_for_a_last_stack_of_one(self):
        # Mode 3 of one slice: Ortho of a row has norm 1 where Muon's update has sqrt(min(m, n)).
        muon_size = min(self.golden["up.0"].shape) ** .5
        for rms_match, size in ((False, 1.0), (True, muon_size)):
            p = torch.nn.Parameter(torch.zeros_like(self.golden["up.0"]))
            p.grad = self.golden["up.0.grads"][0]
            teon_torch.Teon([p], lr=1, weight_decay=0, mode=3, ortho="svd", rms_match=rms_match).step()
            m, n = p.shape
            self.assertAlmostEqual(p.norm().item(), size * (m / n) ** .5, delta=1e-5 * size)

    def test_joined_and_transposed_matrices(self):
        plain = train(self.golden, "up", k=2, mode=2)
        for found in (train(self.golden, "up", transposed=True, k=2, mode=2),
                      [w[:28] for w in train(self.golden, "up", joined=3, k=2, mode=2)],
                      [w[56:] for w in train(self.golden, "up", joined=3, transposed=True, k=2, mode=2)]):
            for a, b in zip(found, plain):
                self.assertTrue(((a - b).norm() / b.norm()).item() < 1e-5)  # the same sums in another order of memory

    def test_state_is_saved_and_taken_up(self):
        def run(split):
            p = torch.nn.Parameter(self.golden["q.0"].clone())
            optimizer = teon_torch.Teon([p], lr=LR)
            for step in range(STEPS):
                if split and step == 4:
                    state, optimizer = optimizer.state_dict(), teon_torch.Teon([p], lr=1)
                    optimizer.load_state_dict(state)
                p.grad = self.golden["q.0.grads"][step]
                optimizer.step()
            return p.detach()
        self.assertTrue(torch.equal(run(True), run(False)))

    def test_roles_of_a_model(self):
        names = ["embed.weight", "layers.0.attn.q_proj.weight", "layers.0.mlp.up.weight", "layers.1.attn.q_proj.weight",
                 "layers.1.mlp.up.weight", "norm.weight", "lm_head.weight"]
        params = [(name, torch.nn.Parameter(torch.zeros(4) if "norm" in name else torch.zeros(4, 4))) for name in names]
        hidden, rest = teon_torch.stacks_of(params)
        self.assertEqual([(len(g["params"]), g["k"]) for g in hidden], [(2, 2), (2, 1)])
        self.assertEqual(len(rest), 3)

    def test_wrong_settings_are_refused(self):
        p = torch.nn.Parameter(torch.zeros(4, 6))
        for options in ({"ortho": "polar"}, {"mode": 4}, {"k": 0}, {"parts": 3}):
            with self.assertRaises(ValueError, msg=str(options)):
                teon_torch.Teon([p], **options)
        with self.assertRaises(ValueError):
            teon_torch.Teon([p, torch.nn.Parameter(torch.zeros(6, 4))], k=2)
        with self.assertRaises(RuntimeError):
            teon_torch.Teon([p]).step()


if __name__ == "__main__":
    unittest.main()
