"""Compares scripts/teon_torch with the golden steps of the engine's tests (test/golden/optim.safetensors, used by
optim/teon) and with torch.optim.Muon, and checks what torch's own tests require of an optimizer:
dev/run_tests.py test/scripts/test_teon_torch.py

Tests are skipped if torch (dev/requirements-dev.txt) is missing.
"""
import copy
import io
import itertools
import math
import pickle
import tempfile
import unittest
import unittest.mock

from testing import ROOT, needs, needs_torch
from torch_models import Operations, matrix, one_rank

try:
    import teon_torch
    import torch
    from safetensors.torch import load_file
except ImportError:
    torch = None

STEPS, LR, DECAY, LAYERS = 10, 0.05, 0.1, 3  # of test/golden/make_optim.py
CASES = {"teon.muon": {}, "teon.muon-svd": {"ortho": "svd"}, "teon.nesterov": {"k": 2, "nesterov": True},
         "teon.you": {"k": 2, "ortho": "you"}, "teon.jordan": {"k": 2, "ortho": "jordan"},
         "teon.rms": {"k": 2, "rms_match": True},
         "teon.normalize": {"k": 3, "normalize_slices": True},
         **{f"teon.mode{mode}.k{k}": {"k": k, "mode": mode} for mode in (1, 2, 3) for k in (2, 3)}}


def train(golden, role, transposed=False, joined=1, **options):
    """Returns the weights of a role's layers after steps with the golden gradients. `joined` is the number of copies of
    each matrix below each other; a joined QKV has three."""
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


@needs("torch", "safetensors")
class TeonTorchTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.golden = load_file(ROOT / "test/golden/optim.safetensors")

    def assert_weights(self, found, name, role, bound):
        """Compares weights; `bound` is relative to the distance that the weights moved."""
        for layer, w in enumerate(found):
            wanted, start = self.golden[f"{name}.{role}.{layer}"], self.golden[f"{role}.{layer}"]
            error = ((w - wanted).norm() / (wanted - start).norm()).item()
            self.assertTrue(error <= bound,
                            f"{name}, {role} of layer {layer}: {error:.2g} of the distance, allowed {bound:.2g}")

    def test_ten_steps_equal_the_engines(self):
        # The bound of the engine's test: ten float updates, each at most 6e-5 from float64.
        for name, options in CASES.items():
            for role in ("q", "up", "down"):
                self.assert_weights(train(self.golden, role, **options), name, role, 1e-4)

    def test_muon_equals_torchs(self):
        # Both use bfloat16 and differ by as much as each differs from float64, .02 on such gradients
        # (docs/optimizers.md), plus one more rounding.
        for name, nesterov in (("torch.plain", False), ("torch.nesterov", True)):
            for role in ("q", "up", "down"):
                found = train(self.golden, role, ortho="jordan", nesterov=nesterov, ns_dtype=torch.bfloat16)
                self.assert_weights(found, name, role, .03)

    def test_forms_of_the_momentum(self):
        # The formulas of the pages' tables, written with averages, in float64; exact polar factors show directions.
        warm, start, mu = 3, .5, .9
        grads = [torch.randn(8, 6, dtype=torch.double, generator=torch.Generator().manual_seed(i)) for i in range(5)]
        rules = {"usual": lambda m, g, b, t: (1 - b) * g + b * m, "ema": lambda m, g, b, t: g + m,
                 "bias-corrected": lambda m, g, b, t: b * m / (1 - b**(t + 1)) + (1 - b) * g / (1 - b**t),
                 None: lambda m, g, b, t: m}
        for form, rule in rules.items():
            for warmup in (0, warm) if form != "bias-corrected" else (0,):
                p = torch.nn.Parameter(torch.zeros(8, 6, dtype=torch.double))
                optimizer = teon_torch.Teon([p], lr=1, weight_decay=0, momentum=mu, ortho="svd", nesterov=bool(form),
                                            nesterov_form=form or "usual", momentum_warmup=warmup,
                                            momentum_start=start, update_scale="none")
                m, wanted = 0, torch.zeros_like(p)
                for t, g in enumerate(grads, 1):
                    b = start + (mu - start) * (t - 1) / warm if t <= warmup else mu
                    m = b * m + (1 - b) * g
                    u, _, v = torch.linalg.svd(rule(m, g, b, t), full_matrices=False)
                    wanted -= u @ v
                    p.grad = g.clone()
                    optimizer.step()
                with self.subTest(form=form, warmup=warmup):
                    torch.testing.assert_close(p.detach(), wanted, atol=1e-12, rtol=0)

    def test_a_loaded_state_goes_on_with_its_count_of_updates(self):
        for options in ({"momentum_warmup": 6}, {"nesterov": True, "nesterov_form": "bias-corrected"}):
            whole, first = matrix(), matrix()
            optimizers = [teon_torch.Teon([p], **options) for p in (whole, first)]
            for optimizer in (optimizers[0], *optimizers):
                for _ in range(2):
                    optimizer.step()
            second = teon_torch.Teon([first], **options)
            second.load_state_dict(copy.deepcopy(optimizers[1].state_dict()))
            second.step()
            second.step()
            self.assertTrue(torch.equal(whole, first), options)

    def test_scales_and_decay(self):
        # A zero gradient leaves the decay alone.
        factors = {"spectral": lambda m, n: (m / n)**.5, "original": lambda m, n: max(1, m / n)**.5,
                   "rms": lambda m, n: .2 * max(m, n)**.5, "none": lambda m, n: 1}
        for scale, factor in factors.items():
            for m, n in ((6, 6), (8, 6), (6, 8)):
                for transposed in (False, True):
                    shape = (n, m) if transposed else (m, n)
                    p = torch.nn.Parameter(torch.ones(shape))
                    p.grad = torch.zeros(shape)
                    options = {"transposed": transposed, "update_scale": scale}
                    teon_torch.Teon([p], lr=.1, weight_decay=.5, decay_at="adjusted", **options).step()
                    self.assertAlmostEqual(p.mean().item(), 1 - .05 * factor(m, n), places=6)
                    p.grad = matrix(*shape).grad
                    before = p.detach().clone()
                    teon_torch.Teon([p], lr=1, weight_decay=0, ortho="svd", **options).step()
                    self.assertAlmostEqual((p - before).norm().item(), min(m, n)**.5 * factor(m, n), places=5)

    def test_nanochats_forms_are_those_of_its_formulas(self):
        # In float64, two steps: rows of one norm, the exact polar factor, its norm, NorMuon over the longer side.
        for m, n in ((4, 4), (8, 4), (4, 8)):
            for transposed in (False, True):
                p = torch.nn.Parameter(torch.zeros((n, m) if transposed else (m, n), dtype=torch.double))
                optimizer = teon_torch.Teon([p], lr=1, weight_decay=0, momentum=0, ortho="svd", neuron_norm=True,
                                            neuron_beta2=.9, neuron_axis="long", renormalize=True, equalize_rows=True,
                                            update_scale="none", transposed=transposed)
                dim, v, wanted = -1 if m >= n else -2, 0, torch.zeros(m, n, dtype=torch.double)
                for seed in (1, 2):
                    g = torch.randn(m, n, dtype=torch.double, generator=torch.Generator().manual_seed(seed))
                    u, _, vt = torch.linalg.svd(g * (g.norm() / m**.5 / g.norm(dim=1, keepdim=True)), False)
                    o = (u @ vt) * min(m, n)**.5 / (u @ vt).norm()
                    v = .9 * v + .1 * o.square().mean(dim, keepdim=True)
                    wanted -= o / v.sqrt() * o.norm() / (o / v.sqrt()).norm()
                    p.grad = (g.mT if transposed else g).clone()
                    optimizer.step()
                found = p.detach().mT if transposed else p.detach()
                self.assertLess((found - wanted).abs().max().item(), 1e-6, (m, n, transposed))  # + 1e-8 in the root

    def test_like(self):
        for name, (_, options) in teon_torch.LIKE.items():
            group, = teon_torch.Teon.like(name, [matrix()], weight_decay=.125).param_groups
            self.assertEqual({key: group[key] for key in options}, options | {"weight_decay": .125})
        with self.assertRaisesRegex(ValueError, "^like is 'kellar'; expected torch, torch-rms, keller, "):
            teon_torch.Teon.like("kellar", [matrix()])

    def test_ten_steps_of_likes_equal_the_golden_ones(self):
        # make_likes.py writes each rule as its package does; the bound is the engine's (test/options/test_likes.cu).
        golden = load_file(ROOT / "test/golden/likes.safetensors")
        for key, wanted in golden.items():
            name, matrix_name = key.split(".", 1)
            p = torch.nn.Parameter(self.golden[matrix_name].clone())
            optimizer = teon_torch.Teon.like(name, [p], lr=LR)
            for grad in self.golden[f"{matrix_name}.grads"]:
                p.grad = grad.clone()
                optimizer.step()
            error = ((p.detach() - wanted).norm() / (wanted - self.golden[matrix_name]).norm()).item()
            self.assertLess(error, 1e-4, key)

    def test_options_that_exclude_one_another(self):
        for options, message in (
                ({"update_rms": .2, "update_scale": "original"}, "update_rms is of update_scale='rms'"),
                ({"capturable": True, "momentum_warmup": 3}, "a captured step does not count updates"),
                ({"capturable": True, "nesterov_form": "bias-corrected"}, "a captured step does not count updates"),
                ({"decay_at": "adjusted", "parts": (4, 2)}, "parts of .4, 2. rows have different rates"),
                ({"neuron_axis": "long", "parts": 2}, "neuron_axis='long' is of whole matrices"),
                ({"renormalize": True}, "renormalize is of neuron_norm=True"),
                ({"nesterov_form": "other"}, "expected usual, bias-corrected, ema"),
                ({"momentum_warmup": -1}, "expected an integer, at least 0")):
            with self.assertRaisesRegex(ValueError, message):
                teon_torch.Teon([matrix()], **options)

    def test_a_last_stack_of_one_keeps_its_size(self):
        # In mode 3 with one slice, Ortho of a row has norm 1; Muon's update has norm sqrt(min(m, n)). k = 1 is Muon.
        m, n = self.golden["up.0"].shape
        for k, rms_match, size in ((2, False, 1), (2, True, min(m, n) ** .5), (1, False, min(m, n) ** .5)):
            p = torch.nn.Parameter(torch.zeros(m, n))
            p.grad = self.golden["up.0.grads"][0]
            teon_torch.Teon([p], lr=1, weight_decay=0, k=k, mode=3, ortho="svd", rms_match=rms_match).step()
            self.assertAlmostEqual(p.norm().item(), size * (m / n) ** .5, delta=1e-5 * size)

    def test_heads_do_not_change_the_size_of_an_update(self):
        # 8 heads of 6 rows, more rows than columns (as Qwen3's q), and fewer.
        for m, n in ((48, 20), (48, 64), (48, 4)):
            grads = [torch.randn(m, n, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2)]
            for options in ({}, {"k": 2}, {"k": 2, "mode": 2}, {"k": 2, "mode": 3}, {"k": 2, "rms_match": True},
                            {"update_rms": .2}, {"k": 2, "rms_match": True, "update_rms": .2, "neuron_norm": True}):
                sizes = []
                for head_size in (None, 6):
                    params = [torch.nn.Parameter(torch.zeros(m, n)) for _ in grads]
                    for p, grad in zip(params, grads):
                        p.grad = grad.clone()
                    teon_torch.Teon(params, lr=1, weight_decay=0, ortho="svd", head_size=head_size, **options).step()
                    sizes.append(torch.stack([p.detach() for p in params]).norm().item())
                with self.subTest(m=m, n=n, options=options):
                    self.assertAlmostEqual(sizes[0], sizes[1], delta=1e-4 * sizes[0])
                    if "neuron_norm" in options:
                        self.assertAlmostEqual(sizes[0] / (2 * m * n) ** .5, .2, delta=1e-4)

    def test_joined_and_transposed_matrices(self):
        plain = train(self.golden, "up", k=2, mode=2)
        for found in (train(self.golden, "up", transposed=True, k=2, mode=2),
                      [w[:28] for w in train(self.golden, "up", joined=3, k=2, mode=2)],
                      [w[56:] for w in train(self.golden, "up", joined=3, transposed=True, k=2, mode=2)]):
            for a, b in zip(found, plain):
                self.assertTrue(((a - b).norm() / b.norm()).item() < 1e-5)  # the same sums in another order

    def test_parts_of_different_rows(self):
        # Two parts are updated like two groups of matrices.
        def moved(rows, **options):
            def stored(x):
                return (x[rows].mT if options.get("transposed") else x[rows]).clone()

            params = [torch.nn.Parameter(stored(self.golden[f"up.{layer}"])) for layer in range(LAYERS)]
            for layer, p in enumerate(params):
                p.grad = stored(self.golden[f"up.{layer}.grads"][0])
            teon_torch.Teon(params, lr=LR, k=2, **options).step()
            return [(p.mT if options.get("transposed") else p).detach() for p in params]

        rows = self.golden["up.0"].shape[0]
        first, last = slice(0, rows - rows // 3), slice(rows - rows // 3, rows)
        for options in ({}, {"mode": 2}, {"mode": 3, "rms_match": True}, {"transposed": True}, {"update_rms": .2}):
            whole = moved(slice(0, rows), parts=(rows - rows // 3, rows // 3), **options)
            for w, *parts in zip(whole, moved(first, **options), moved(last, **options)):
                wanted = torch.cat(parts)
                self.assertTrue((w - wanted).norm().item() < 1e-5 * wanted.norm().item(), options)

    def test_batches_of_any_size_give_the_same(self):
        whole = train(self.golden, "up", k=2)
        with unittest.mock.patch("teon_torch.buckets.CPU_BATCH_BYTES", 1):
            for a, b in zip(train(self.golden, "up", k=2), whole):
                self.assertTrue(((a - b).norm() / b.norm()).item() < 1e-5)


@needs("torch", "safetensors")
class TorchOptimizerTest(unittest.TestCase):
    """The requirements of torch/test/optim for torch.optim's own optimizers."""

    def assert_equal(self, a, b):
        self.assertEqual(a.dtype, b.dtype)
        self.assertTrue(torch.equal(a, b), f"{(a - b).abs().max()} apart")

    def run_steps(self, move=lambda optimizer, p: (optimizer, p), dtype=None, steps=8, **options):
        """Returns a matrix after the steps, and its optimizer. `move` replaces both between two of the steps."""
        p = matrix(dtype=dtype)
        optimizer = teon_torch.Teon([p], **({"lr": .1} | options))
        for step in range(steps):
            if step == steps // 2:
                optimizer, p = move(optimizer, p)
            p.grad = matrix(dtype=dtype, seed=step).grad
            optimizer.step()
        return p.detach(), optimizer

    def test_saved_state_continues_exactly(self):
        def saved(optimizer, p):
            file = io.BytesIO()
            torch.save(optimizer.state_dict(), file)
            file.seek(0)
            fresh = teon_torch.Teon([p], lr=1, momentum=0, k=3)
            fresh.load_state_dict(torch.load(file, weights_only=True))
            return fresh, p

        def copied(optimizer, p):
            optimizer = copy.deepcopy(optimizer)
            return optimizer, optimizer.param_groups[0]["params"][0]

        def pickled(optimizer, p):
            optimizer = pickle.loads(pickle.dumps(optimizer))
            return optimizer, optimizer.param_groups[0]["params"][0]

        def twice(optimizer, p):
            return saved(*copied(optimizer, p))

        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
            unbroken, _ = self.run_steps(dtype=dtype)
            for move in (saved, copied, pickled, twice):
                with self.subTest(dtype=dtype, move=move.__name__):
                    moved, optimizer = self.run_steps(move, dtype=dtype)
                    self.assert_equal(moved, unbroken)
                    wanted = torch.float64 if dtype == torch.float64 else torch.float32
                    self.assertEqual([state["momentum"].dtype for state in optimizer.state.values()], [wanted])

    def test_load_state_dict_obeys_hooks_and_older_versions(self):
        _, optimizer = self.run_steps(dtype=torch.bfloat16)
        state = copy.deepcopy(optimizer.state_dict())
        for name in ("maximize", "capturable", "parts"):
            del state["param_groups"][0][name]
        fresh = teon_torch.Teon([matrix(dtype=torch.bfloat16)])

        def doubled(_, given):
            return given | {"state": {0: {"momentum": 2 * given["state"][0]["momentum"]}}}
        fresh.register_load_state_dict_pre_hook(doubled)
        fresh.load_state_dict(state)
        self.assert_equal(*(2 * state["state"][0]["momentum"], next(iter(fresh.state.values()))["momentum"]))
        fresh.step()
        self.assertEqual(fresh.param_groups[0]["parts"], 1)
        with self.assertRaisesRegex(ValueError, "size of optimizer's group"):
            teon_torch.Teon([matrix(), matrix()]).load_state_dict(state)

    def test_a_state_with_an_option_that_was_removed_is_refused_unless_it_was_off(self):
        _, optimizer = self.run_steps()
        for name, value, message in (("ns_aol", False, None), ("ns_aol", True, "ns_aol, which was removed after"),
                                     ("ortho", "you6", "ortho is 'you6'; expected svd, jordan, you, polar-express")):
            state = copy.deepcopy(optimizer.state_dict())
            state["param_groups"][0][name] = value
            fresh = teon_torch.Teon([matrix()])
            if message:
                with self.assertRaisesRegex(ValueError, message):
                    fresh.load_state_dict(state)
            else:
                fresh.load_state_dict(state)
                self.assertNotIn(name, fresh.param_groups[0])

    def test_closure(self):
        p = matrix()
        optimizer = teon_torch.Teon([p], lr=.1)

        def closure():
            optimizer.zero_grad()
            loss = (p ** 2).sum()
            loss.backward()
            return loss
        losses = [optimizer.step(closure).item() for _ in range(20)]
        self.assertTrue(losses[-1] < .5 * losses[0], losses)

    def test_rate_as_a_tensor(self):
        wanted, _ = self.run_steps(dtype=torch.float32)
        for lr in (torch.tensor(.1), torch.tensor([.1]), torch.tensor(.1, dtype=torch.float64)):
            found, optimizer = self.run_steps(lr=lr)
            self.assertTrue((found - wanted).norm().item() <= 1e-6 * wanted.norm().item(), lr)
            self.assertIs(optimizer.param_groups[0]["lr"], lr)

    def test_a_scheduler_sets_the_rate(self):
        for lr in (1.0, torch.tensor(1.0)):
            p = matrix()
            optimizer = teon_torch.Teon([p], lr=lr, ortho="svd", weight_decay=0)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=.1)
            sizes = []
            for _ in range(3):
                before = p.detach().clone()
                optimizer.step()
                schedule.step()
                sizes.append((p - before).norm().item())
            for a, b in itertools.pairwise(sizes):
                self.assertAlmostEqual(b / a, .1, delta=1e-4)

    def test_maximize_equals_minimize_of_the_negative(self):
        p, q = matrix(), matrix()
        q.grad = -q.grad
        teon_torch.Teon([p], maximize=True).step()
        teon_torch.Teon([q]).step()
        self.assert_equal(p, q)

    def test_groups_have_options_of_their_own(self):
        p, q, r = matrix(), matrix(seed=1), matrix(seed=2)
        optimizer = teon_torch.Teon([{"params": [p], "lr": .2}, {"params": q}], lr=.1, weight_decay=0, ortho="svd")
        optimizer.add_param_group({"params": (x for x in [r]), "update_rms": .2})
        before = [x.detach().clone() for x in (p, q, r)]
        optimizer.step()
        moved = [(x - y).norm().item() for x, y in zip((p, q, r), before)]
        size = math.sqrt(6 / 4) * math.sqrt(4)
        for found, wanted in zip(moved, (.2 * size, .1 * size, .1 * .2 * math.sqrt(6) * math.sqrt(4))):
            self.assertAlmostEqual(found, wanted, delta=1e-5)
        self.assertIn("update_rms: 0.2", repr(optimizer))

    @needs_torch("2.6")
    def test_named_parameters(self):
        p = matrix()
        optimizer = teon_torch.Teon([("name", p)])
        optimizer.step()
        self.assertEqual(optimizer.state_dict()["param_groups"][0]["param_names"], ["name"])

    def test_hooks(self):
        calls = []
        optimizer = teon_torch.Teon([matrix()])
        optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
        optimizer.register_step_post_hook(lambda *_: calls.append("after"))
        optimizer.step()
        self.assertEqual(calls, ["before", "after"])

    def test_a_matrix_without_gradient_does_not_change(self):
        frozen, alone, (a, b, c) = matrix(), matrix(seed=9), (matrix(seed=i) for i in range(3))
        frozen.grad, alone.grad = None, None
        frozen.requires_grad_(False)
        optimizer = teon_torch.Teon([{"params": [frozen, a, b, c], "k": 2}, {"params": [alone]}])
        state, before = optimizer.state_dict(), [frozen.clone(), alone.detach().clone()]
        optimizer.step()
        self.assert_equal(frozen, before[0])
        self.assert_equal(alone.detach(), before[1])
        self.assertEqual(set(optimizer.state), {a, b, c, alone})  # alone may get a gradient, frozen does not
        self.assertFalse(optimizer.state[alone]["momentum"].any())
        # a is alone in the first stack; b and c form the second stack regardless of the first.
        wanted = [matrix(seed=i) for i in range(3)]
        teon_torch.Teon(wanted[:1]).step()
        teon_torch.Teon(wanted[1:], k=2).step()
        for found, expected in zip((a, b, c), wanted):
            self.assertTrue((found - expected).norm().item() < 1e-5 * expected.norm().item())
        self.assertEqual(state["state"], {})

    def test_a_matrix_without_a_gradient_so_far_is_saved_and_loaded(self):
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

        def fresh():
            torch.manual_seed(0)
            model = torch.nn.ModuleDict({name: torch.nn.Linear(4, 6, bias=False) for name in ("used", "unused")})
            return model, teon_torch.Teon(model.parameters(), k=2, neuron_norm=True)

        model, optimizer = fresh()
        model["used"](torch.ones(1, 4)).sum().backward()
        optimizer.step()
        again, other = fresh()
        with one_rank(), tempfile.TemporaryDirectory() as folder:
            dcp.save(get_optimizer_state_dict(model, optimizer), checkpoint_id=folder)
            states = get_optimizer_state_dict(again, other)
            dcp.load(states, checkpoint_id=folder)
            set_optimizer_state_dict(again, other, states)
        for p, q in zip(model.parameters(), again.parameters()):
            self.assertEqual(set(other.state[q]), {"momentum", "neurons"})
            for name, value in optimizer.state[p].items():
                self.assertTrue(torch.equal(other.state[q][name], value))
        self.assertEqual([bool(optimizer.state[p]["momentum"].any()) for p in model.parameters()], [True, False])

    def test_zero_gradients_change_nothing(self):
        for ortho in ("polar-express", "svd"):
            p = matrix()
            p.grad.zero_()
            before = p.detach().clone()
            teon_torch.Teon([p], weight_decay=0, ortho=ortho).step()
            self.assert_equal(p.detach(), before)

    def test_gradient_scaler(self):
        p, q = matrix(), matrix()
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        optimizer = teon_torch.Teon([p], lr=.1)
        scaler.scale((p * q.grad).sum())  # a scaler unscales only after it has scaled
        p.grad = 4 * q.grad
        scaler.step(optimizer)
        teon_torch.Teon([q], lr=.1).step()
        self.assert_equal(p, q)
        scaler.update()
        p.grad = torch.full_like(p, math.inf)
        scaler.step(optimizer)
        self.assert_equal(p, q)

    def test_an_error_changes_nothing(self):
        p, sparse = matrix(), matrix(seed=1)
        sparse.grad = sparse.grad.to_sparse()
        before = p.detach().clone()
        optimizer = teon_torch.Teon([{"params": [p]}, {"params": [sparse]}])
        with self.assertRaisesRegex(RuntimeError, "sparse"):
            optimizer.step()
        self.assert_equal(p.detach(), before)
        self.assertEqual(len(optimizer.state), 0)

    def test_wrong_settings_are_refused(self):
        nan, inf = math.nan, math.inf
        wrong = {"lr": (nan, -1, inf, torch.tensor(nan), torch.tensor([1., 2.])), "momentum": (nan, -.1, 1, 2),
                 "weight_decay": (nan, -1, inf), "k": (0, 1.5, nan), "mode": (0, 4, 7, nan), "ns_steps": (0, 2.5),
                 "parts": (0, 2.5, (6, 0)), "ortho": ("polar", None), "update_rms": (nan, -1, 0),
                 "ns_dtype": (torch.int8, "f")}
        cases = [({name: value}, name) for name, values in wrong.items() for value in values]
        for options, words in [*cases, ({"parts": 5}, "6 outputs cannot be cut into 5"),
                               ({"parts": 3, "transposed": True}, "4 outputs cannot be cut into 3"),
                               ({"parts": (4, 1)}, r"6 outputs cannot be cut into \(4, 1\)"),
                               ({"capturable": True, "ortho": "svd"}, "cannot be captured")]:
            with self.subTest(options):
                with self.assertRaisesRegex(ValueError, words):
                    teon_torch.Teon([matrix()], **options)
                optimizer = teon_torch.Teon([matrix()])
                with self.assertRaisesRegex(ValueError, f"wk: .*{words}"):
                    optimizer.add_param_group({"params": [matrix(seed=1)], "role": "wk", **options})
                self.assertEqual(len(optimizer.param_groups), 1)

    def test_wrong_matrices_are_refused(self):
        for params, options in (([torch.nn.Parameter(torch.zeros(4))], {}), ([torch.zeros(0, 4)], {}),
                                ([torch.nn.Parameter(torch.zeros(4, 4, 4))], {"k": 2}),
                                ([torch.nn.Parameter(torch.zeros(2, 2, 2, 2))], {}),
                                ([matrix()], {"head_size": 4}), ([matrix()], {"shard": "optimizer"}),
                                ([torch.zeros(4, 4, dtype=torch.complex64)], {}),
                                ([torch.zeros(4, 4, dtype=torch.int32)], {}), ([matrix(6, 4), matrix(4, 6)], {"k": 2}),
                                ([matrix(), matrix(dtype=torch.bfloat16)], {"k": 2})):
            with self.assertRaises(ValueError):
                teon_torch.Teon(params, **options)
        teon_torch.Teon([matrix(6, 4), matrix(4, 6), matrix(dtype=torch.bfloat16)]).step()  # with k = 1 they may differ

    def test_errors_equal_torchs(self):
        p = matrix()
        for params, error, words in (([], ValueError, "empty parameter list"), (p, TypeError, "iterable"),
                                     ([p * 2], ValueError, "non-leaf"), (["a"], TypeError, "optimize Tensors"),
                                     ([{"params": [p]}, {"params": [p]}], ValueError, "more than one parameter group")):
            with self.assertRaisesRegex(error, words):
                teon_torch.Teon(params)
        with self.assertRaisesRegex(ValueError, "Tensor lr must be 1-element"):
            teon_torch.Teon(None, lr=torch.tensor([.1, .2]))  # options are checked before parameters

    def test_a_step_can_be_captured(self):
        # A captured step must not read the GPU's memory, because later rates would have no effect, and must write in
        # place.
        p = matrix()
        lr = torch.tensor(.1)
        optimizer = teon_torch.Teon([p], lr=lr, capturable=True)
        optimizer.step()
        places = [p.data_ptr(), *(x["momentum"].data_ptr() for x in optimizer.state.values())]
        with Operations() as operations:
            optimizer.step()
        self.assertNotIn("aten._local_scalar_dense.default", operations.names())
        self.assertEqual([p.data_ptr(), *(x["momentum"].data_ptr() for x in optimizer.state.values())], places)
        with unittest.mock.patch("torch.cuda.is_available", lambda: True), \
             unittest.mock.patch("torch.cuda.is_current_stream_capturing", lambda: True):
            optimizer.step()
            for unprepared in (teon_torch.Teon([matrix()]), teon_torch.Teon([matrix()], capturable=True)):
                with self.assertRaisesRegex(RuntimeError, "capturable=True and take one step"):
                    unprepared.step()

    def test_a_step_allocates_no_state(self):
        optimizer = teon_torch.Teon([matrix(), matrix(seed=1)], k=2)
        optimizer.step()
        with Operations() as operations:
            optimizer.step()
        self.assertFalse([name for name in operations.names() if "zeros" in name])

    def test_polar_express_in_bfloat16_is_near_float64_on_short_sides(self):
        """The column .62 of docs/optimizers.md, "Rounding"; expected is U f(S) V^T with the steps of single values."""
        for side, limit in ((12, .026), (20, .020), (32, .019), (64, .015), (128, .027)):
            for rows, columns in ((side, (5 * side + 2) // 3), (3 * side, side)):
                generator = torch.Generator().manual_seed(side)
                u, v = (torch.linalg.qr(torch.randn(n, side, generator=generator, dtype=torch.float64))[0]
                        for n in (rows, columns))
                s = torch.linspace(.62, .02, side, dtype=torch.float64)
                z, x = (u * s) @ v.T, s / (1.01 * s.norm())
                for a, b, c in teon_torch.NEWTON_SCHULZ["polar-express"][:5]:
                    x = a * x + b * x ** 3 + c * x ** 5
                expected = (u * x) @ v.T
                for form in ("auto", "gram"):
                    with self.subTest(rows=rows, columns=columns, form=form):
                        found = teon_torch.orthogonalize(z.float(), dtype=torch.bfloat16, form=form)
                        # Other vectors round otherwise, by up to half more in small matrices.
                        self.assertLess((found - expected).norm() / expected.norm(), 1.6 * limit)

    def test_orthogonalize_compiles_whole(self):
        # fullgraph=True raises where a graph would break; aot_eager traces as the default backend does, without its
        # compiler.
        z = torch.randn(3, 12, 30, generator=torch.Generator().manual_seed(0))
        for options in ({}, {"form": "standard"},
                        {"dtype": torch.bfloat16, "form": "gram", "steps": 4, "method": "you"}):
            torch._dynamo.reset()  # its limit of recompilations counts all options
            compiled = torch.compile(teon_torch.orthogonalize, fullgraph=True, backend="aot_eager")
            for x in (z, z.mT, z[0]):
                wanted = teon_torch.orthogonalize(x, **options)
                error = ((compiled(x, **options) - wanted).norm() / wanted.norm()).item()
                # Operations in another order; a bfloat16 has 8 bits.
                self.assertTrue(error <= (.02 if "dtype" in options else 1e-5), f"{options}: {error:.2g}")

    def test_a_chain_is_one_optimizer(self):
        def chained():
            p, q = matrix(), matrix(3, 2, seed=1)
            return (p, q), teon_torch.ChainedOptimizer(teon_torch.Teon([p], lr=.1), torch.optim.AdamW([q], lr=.1))

        def steps(params, optimizer, seeds):
            for seed in seeds:
                for p in params:
                    p.grad = matrix(*p.shape, seed=seed).grad
                optimizer.step()

        (p, q), chain = chained()
        alone = matrix(), matrix(3, 2, seed=1)
        parts = [teon_torch.Teon(alone[:1], lr=.1), torch.optim.AdamW(alone[1:], lr=.1)]
        schedules = [torch.optim.lr_scheduler.StepLR(x, 1, .5) for x in (chain, *parts)]
        for seed in range(4):
            steps((p, q), chain, [seed])
            for x, optimizer in zip(alone, parts):
                steps([x], optimizer, [seed])
            for schedule in schedules:
                schedule.step()
        for x, wanted in zip((p, q), alone):
            self.assert_equal(x, wanted)

        (p2, q2), fresh = chained()
        with torch.no_grad():
            p2.copy_(p)
            q2.copy_(q)
        fresh.load_state_dict(pickle.loads(pickle.dumps(chain.state_dict())))
        self.assertEqual([group["lr"] for group in fresh.param_groups], [.1 / 16] * 2)
        self.assertEqual(len(fresh.state), 2)
        for optimizer, params in ((chain, (p, q)), (fresh, (p2, q2))):
            optimizer.param_groups[0]["lr"] = .3
            steps(params, optimizer, range(5, 8))
        self.assert_equal(p2, p)
        self.assert_equal(q2, q)
        with self.assertRaisesRegex(ValueError, "has 1 parameter groups, these optimizers 2"):
            fresh.load_state_dict(parts[0].state_dict())
