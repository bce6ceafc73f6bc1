"""Compares scripts/teon_torch with the golden steps of the engine's tests (test/golden/optim.safetensors, used by
optim/teon) and with torch.optim.Muon, and checks what torch's own tests require of an optimizer:
scripts/run_tests.py test/scripts/test_teon_torch.py

Tests are skipped if torch or transformers (scripts/requirements-dev.txt) or the tools to build a wheel are missing.
"""
import contextlib
import copy
import io
import itertools
import math
import pickle
import re
import sys
import unittest
import unittest.mock
import warnings
import zipfile

from testing import BUILD, ROOT, Case, needs, write_shards

try:
    import teon_torch
    import torch
    from safetensors.torch import load_file
    from torch.utils._python_dispatch import TorchDispatchMode
except ImportError:
    torch, TorchDispatchMode = None, object
try:
    import transformers
    transformers.logging.set_verbosity_error()
except ImportError:
    transformers = None

STEPS, LR, DECAY, LAYERS = 10, 0.05, 0.1, 3  # of test/golden/make_optim.py
CASES = {"teon.muon": {}, "teon.muon-svd": {"ortho": "svd"}, "teon.nesterov": {"k": 2, "nesterov": True},
         "teon.you": {"k": 2, "ortho": "you"}, "teon.you6": {"k": 2, "ortho": "you6", "ns_steps": 6},
         "teon.jordan": {"k": 2, "ortho": "jordan"}, "teon.rms": {"k": 2, "rms_match": True},
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


def matrix(rows=6, columns=4, dtype=None, seed=0):
    """Returns a parameter with a gradient."""
    generator = torch.Generator().manual_seed(seed)
    p = torch.nn.Parameter(torch.randn(rows, columns, generator=generator).to(dtype or torch.float32))
    p.grad = torch.randn(rows, columns, generator=generator).to(p.dtype)
    return p


def gpt2(layers=4, **options):
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_layer=layers, **(options or dict(n_embd=32, n_head=2, vocab_size=64, n_positions=16)), bos_token_id=0,
        eos_token_id=0))


@contextlib.contextmanager
def one_rank():
    """Initializes torch.distributed with this process as the only rank."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


class Operations(TorchDispatchMode):
    """Records the operations that run inside it, except views."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, operation, types, arguments=(), options=None):
        if not operation.is_view and not operation.namespace == "profiler":
            self.calls.append((str(operation), arguments))
        return operation(*arguments, **(options or {}))

    def names(self):
        return [name for name, _ in self.calls]


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
        # Both use bfloat16 and differ by as much as each differs from float64, .02 on such gradients (docs/teon.md),
        # plus one more rounding.
        for name, nesterov in (("torch.plain", False), ("torch.nesterov", True)):
            for role in ("q", "up", "down"):
                found = train(self.golden, role, ortho="jordan", nesterov=nesterov, ns_dtype=torch.bfloat16)
                self.assert_weights(found, name, role, .03)

    def test_a_last_stack_of_one_keeps_its_size(self):
        # In mode 3 with one slice, Ortho of a row has norm 1; Muon's update has norm sqrt(min(m, n)). k = 1 is Muon.
        m, n = self.golden["up.0"].shape
        for k, rms_match, size in ((2, False, 1), (2, True, min(m, n) ** .5), (1, False, min(m, n) ** .5)):
            p = torch.nn.Parameter(torch.zeros(m, n))
            p.grad = self.golden["up.0.grads"][0]
            teon_torch.Teon([p], lr=1, weight_decay=0, k=k, mode=3, ortho="svd", rms_match=rms_match).step()
            self.assertAlmostEqual(p.norm().item(), size * (m / n) ** .5, delta=1e-5 * size)

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
        with unittest.mock.patch("teon_torch.buckets.BATCH_BYTES", 1):
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
        self.assertEqual(set(optimizer.state), {a, b, c})  # only updated matrices have state
        # a is alone in the first stack; b and c form the second stack regardless of the first.
        wanted = [matrix(seed=i) for i in range(3)]
        teon_torch.Teon(wanted[:1]).step()
        teon_torch.Teon(wanted[1:], k=2).step()
        for found, expected in zip((a, b, c), wanted):
            self.assertTrue((found - expected).norm().item() < 1e-5 * expected.norm().item())
        self.assertEqual(state["state"], {})

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


@needs("torch", "safetensors")
class ModelsTest(Case):
    """stacks_of() on common models."""

    def assert_split(self, model, hidden, rest):
        """Checks that every parameter is in exactly one group and that vectors do not decay."""
        taken = [p for group in hidden + rest for p in group["params"]]
        self.assertEqual(sorted(map(id, taken)), sorted(map(id, model.parameters())))
        for group in rest:
            for p in group["params"]:
                self.assertEqual(group.get("weight_decay"), 0 if p.ndim < 2 else None)

    def sizes(self, model, hidden, **options):
        """Returns, by role, the size of one update of a layer's whole matrix, and of the first part of a joined one."""
        for i, p in enumerate(model.parameters()):
            p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(i))
        before = {id(p): p.detach().clone() for p in model.parameters()}
        teon_torch.Teon(hidden, lr=1, weight_decay=0, ortho="svd", **options).step()
        return {group["role"]: (group["params"][0] - before[id(group["params"][0])]).norm().item() for group in hidden}

    @needs("torch", "safetensors", "transformers")
    def test_gpt2_is_updated_as_in_the_engine(self):
        model = gpt2(layers=3)
        hidden, rest = teon_torch.stacks_of(model)
        self.assert_split(model, hidden, rest)
        self.assertEqual([(g["role"], g["k"], g["parts"], g["transposed"], len(g["params"])) for g in hidden],
                         [("transformer.h.*.attn.c_attn.weight", 2, 3, True, 3),
                          ("transformer.h.*.attn.c_proj.weight", 1, 1, True, 3),
                          ("transformer.h.*.mlp.c_fc.weight", 1, 1, True, 3),
                          ("transformer.h.*.mlp.c_proj.weight", 1, 1, True, 3)])
        sizes = self.sizes(model, hidden)
        for name, m, n in (("attn.c_proj", 32, 32), ("mlp.c_fc", 128, 32), ("mlp.c_proj", 32, 128)):
            found = sizes[f"transformer.h.*.{name}.weight"]
            self.assertAlmostEqual(found, math.sqrt(m / n) * math.sqrt(min(m, n)), delta=1e-4, msg=name)

        # Q, K and V of layers 0 and 1 are pairs and layer 2 is alone, as in the engine.
        joined = [layer.attn.c_attn.weight for layer in model.transformer.h]
        grads = [p.grad for p in joined]
        model = gpt2(layers=3)
        joined = [layer.attn.c_attn.weight for layer in model.transformer.h]
        roles = [[torch.nn.Parameter(p.detach().mT[32 * i:32 * i + 32].clone()) for p in joined] for i in range(3)]
        for p, grad, *slices in zip(joined, grads, *roles):
            p.grad = grad
            for i, w in enumerate(slices):
                w.grad = grad.mT[32 * i:32 * i + 32].clone()
        teon_torch.Teon(teon_torch.stacks_of(model)[0], lr=.1).step()
        teon_torch.Teon([{"params": params, "k": 2} for params in roles], lr=.1).step()
        for p, *slices in zip(joined, *roles):
            wanted = torch.cat(slices)
            self.assertTrue((p.mT - wanted).norm().item() < 1e-5 * wanted.norm().item())

    @needs("torch", "safetensors", "transformers")
    def test_llama_qwen3_and_olmo2(self):
        sizes = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
                     num_key_value_heads=2, vocab_size=64, bos_token_id=0, eos_token_id=0)
        for model in (transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)),
                      transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**sizes, head_dim=8)),
                      transformers.Olmo2ForCausalLM(transformers.Olmo2Config(**sizes, pad_token_id=None))):
            hidden, rest = teon_torch.stacks_of(model, k=3)
            self.assert_split(model, hidden, rest)
            self.assertEqual({g["role"].split(".")[-2]: g["k"] for g in hidden},
                             dict(q_proj=3, k_proj=3, v_proj=3, o_proj=1, gate_proj=1, up_proj=1, down_proj=1))
            self.assertEqual({(g["parts"], g["transposed"]) for g in hidden}, {(1, False)})
            self.assertEqual(len(rest[0]["params"]), 2)  # embeddings and head
            update = self.sizes(model, hidden)
            self.assertAlmostEqual(update["model.layers.*.mlp.up_proj.weight"], math.sqrt(48), delta=1e-4)
            hidden, rest = teon_torch.stacks_of(model, stacked=["o_proj"], adamw=["down_proj"])
            self.assert_split(model, hidden, rest)
            self.assertEqual([g["role"].split(".")[-2] for g in hidden if g["k"] == 2], ["o_proj"])
            self.assertEqual(len(rest[0]["params"]), 2 + 3)

    @needs("torch", "safetensors", "transformers")
    def test_models_train_as_in_the_engine(self):
        # Compares losses and every matrix over four steps of the whole model, both in float. (The gradient of K's bias
        # is only rounding.) Measured: 7e-5 of the distance. A wrong size factor, stack or orientation gives over 0.1.
        torch.manual_seed(1)
        sizes = dict(vocab_size=64, bos_token_id=0, eos_token_id=0)
        decoder = sizes | dict(hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
                               num_key_value_heads=2, max_position_embeddings=16)
        tokens = [(7 * i * i + i // 5) % 64 for i in range(2000)]
        for name, model in (("gpt2", gpt2(layers=3, n_embd=32, n_head=2, vocab_size=64, n_positions=16)),
                ("llama", transformers.LlamaForCausalLM(transformers.LlamaConfig(**decoder))),
                ("qwen3", transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**decoder, head_dim=8))),
                ("olmo2", transformers.Olmo2ForCausalLM(transformers.Olmo2Config(**decoder, pad_token_id=None)))):
            program = BUILD / f"train_{name}"
            if not program.exists():
                self.skipTest(f"{program.name} is not built in {BUILD}")
            with self.subTest(name):
                model.eval().save_pretrained(self.folder / name)  # no dropout
                write_shards(self.folder, tokens, tokens)
                flags = (f"--init-from {name} --data . --shuffle off --seq-len 16 --batch-tokens 128 --micro-batch 8 "
                         "--steps 4 --optimizer teon --lr .02 --adamw-lr 1e-3 --schedule constant --warmup-ratio 0 "
                         "--dtype float --grad-clip 0 --eval-tokens 128 --vocab-size 64 "
                         f"--out {name}-run")
                done = self.call(program, *flags.split())
                wanted = type(model).from_pretrained(self.folder / f"{name}-run/step_00000004").state_dict()
                losses = [float(x) for x in re.findall(r"step \S+ \| loss (\S+)", done.stdout)]

            start = {key: p.detach().clone() for key, p in model.named_parameters()}
            hidden, others = teon_torch.stacks_of(model)
            optimizers = [teon_torch.Teon(hidden, lr=.02),
                          torch.optim.AdamW(others, lr=1e-3, betas=(.9, .95), weight_decay=.1)]
            self.assertEqual(len(losses), 4)
            for step, loss in enumerate(losses):
                windows = torch.tensor(tokens)[128 * step + 16 * torch.arange(8)[:, None] + torch.arange(17)]
                logits = model(windows[:, :-1]).logits
                found = torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
                self.assertAlmostEqual(found.item(), loss, delta=2e-4, msg=f"{name}, step {step}")
                model.zero_grad()
                found.backward()
                for optimizer in optimizers:
                    optimizer.step()
            for key, p in model.named_parameters():
                if p.ndim == 2:
                    error = ((p - wanted[key]).norm() / (p - start[key]).norm()).item()
                    self.assertTrue(error <= 3e-4, f"{name}: {key}: {error:.2g} of the distance")

    def test_plain_sequential(self):
        layer = torch.nn.Linear
        model = torch.nn.Sequential(layer(8, 16), torch.nn.ReLU(), layer(16, 16), torch.nn.LayerNorm(16), layer(16, 16),
                                    layer(16, 4), torch.nn.LogSoftmax(-1))
        with self.assertWarnsRegex(UserWarning, "nothing is stacked"):
            hidden, rest = teon_torch.stacks_of(model)
        self.assert_split(model, hidden, rest)
        self.assertEqual([(g["role"], g["k"], [tuple(p.shape) for p in g["params"]]) for g in hidden],
                         [("*.weight", 1, [(16, 8)]), ("*.weight", 1, [(16, 16), (16, 16)])])
        self.assertEqual([tuple(p.shape) for p in rest[0]["params"]], [(4, 16)])
        stacked, _ = teon_torch.stacks_of(model, stacked=["weight"])
        self.assertEqual([g["k"] for g in stacked], [2, 2])

        embedding, head = torch.nn.Embedding(8, 16), layer(16, 8, bias=False)
        head.weight = embedding.weight
        block = torch.nn.Sequential(layer(16, 16, bias=False), torch.nn.ReLU())
        tied = torch.nn.Sequential(embedding, block, copy.deepcopy(block), head)
        hidden, rest = teon_torch.stacks_of(tied, k=1)
        self.assert_split(tied, hidden, rest)
        self.assertEqual([(g["role"], len(g["params"])) for g in hidden], [("*.0.weight", 2)])

    def test_torchs_own_attention(self):
        model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(16, 2, 32), 2, enable_nested_tensor=False)
        hidden, rest = teon_torch.stacks_of(model)
        self.assert_split(model, hidden, rest)
        self.assertEqual([(g["k"], g["parts"]) for g in hidden], [(2, 3), (1, 1), (1, 1), (1, 1)])

    def test_wrapped_models(self):
        layer = torch.nn.Linear
        model = torch.nn.Sequential(layer(8, 16), layer(16, 16), layer(16, 16), layer(16, 4))

        def divided(model):
            hidden, rest = teon_torch.stacks_of(model, stacked=["weight"])
            return [(g["role"], [id(p) for p in g["params"]]) for g in hidden], [id(p) for p in rest[0]["params"]]

        wanted = divided(model)
        self.assertEqual(wanted[1], [id(model[3].weight)])
        wrapped = [torch.compile(model), torch.nn.DataParallel(model), torch.nn.DataParallel(torch.compile(model))]
        if torch.distributed.is_available():
            with one_rank():
                wrapped += [torch.compile(torch.nn.parallel.DistributedDataParallel(model))]
        for outer in wrapped:
            self.assertEqual(divided(outer), wanted)

        class Tagger(torch.nn.Module):  # a user's own model
            def __init__(self):
                super().__init__()
                self.module, self.tags = model, layer(16, 3)
        self.assertEqual({role for role, _ in divided(Tagger())[0]}, {"module.*.weight"})

        sharded = type("FullyShardedDataParallel", (torch.nn.Sequential,), {})(model)
        with self.assertRaisesRegex(ValueError, "FSDP flattens and shards"):
            teon_torch.stacks_of(torch.nn.ModuleDict({"layers": sharded}))

    @needs("torch", "safetensors", "transformers")
    def test_lora_goes_to_adamw(self):
        class Adapted(torch.nn.Module):  # as peft does
            def __init__(self, base_layer, m, n, rank=8):
                super().__init__()
                self.base_layer = base_layer
                self.lora_A = torch.nn.ModuleDict({"default": torch.nn.Linear(n, rank, bias=False)})
                self.lora_B = torch.nn.ModuleDict({"default": torch.nn.Linear(rank, m, bias=False)})

        model = gpt2()
        for block in model.transformer.h:
            block.attn.c_attn = Adapted(block.attn.c_attn, 96, 32)
        for options in ({}, {"adamw": ["lora_A"]}, {"adamw": ["lora_B"]}):
            hidden, rest = teon_torch.stacks_of(model, **options)
            self.assert_split(model, hidden, rest)
            self.assertEqual([(g["role"], g["k"], g["parts"], g["transposed"]) for g in hidden][0],
                             ("transformer.h.*.attn.c_attn.base_layer.weight", 2, 3, True))
            self.assertEqual(len(hidden), 4)
            self.assertEqual(len(rest[0]["params"]), 2 + 2 * 4)  # embeddings and each layer's factors

    @needs("torch", "safetensors", "transformers")
    def test_joined_row_blocks(self):
        torch.manual_seed(1)
        sizes = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, vocab_size=64,
                     bos_token_id=0, eos_token_id=0, pad_token_id=0)
        def phi3(**options):
            return transformers.Phi3ForCausalLM(transformers.Phi3Config(**sizes, **options))

        other = dict(d_model=32, n_heads=4, n_layers=2, vocab_size=64)
        models = {
            "phi3": (phi3(), 3), "phi3, grouped": (phi3(num_key_value_heads=2), (32, 16, 16)),
            "modernbert": (transformers.ModernBertForMaskedLM(transformers.ModernBertConfig(
                **sizes, cls_token_id=0, sep_token_id=0)), 3),
            "mpt": (transformers.MptForCausalLM(transformers.MptConfig(**other)), 3),
            "dbrx": (transformers.DbrxForCausalLM(transformers.DbrxConfig(
                **other, pad_token_id=0, attn_config={"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 1e4},
                ffn_config={"ffn_hidden_size": 48, "moe_num_experts": 2, "moe_top_k": 1})), (32, 16, 16))}
        tokens = torch.arange(2, 12)[None]
        for name, (model, parts) in models.items():
            with self.subTest(name), torch.no_grad():
                hidden, rest = teon_torch.stacks_of(model.eval())
                self.assert_split(model, hidden, rest)
                joined, = (g for g in hidden if g["k"] == 2)
                self.assertEqual(joined["parts"], parts)

                # The blocks are Q, K and V: with Q = 0 the output depends on V but not on K.
                found = []
                for changed in (0, 1, 2):
                    for p in joined["params"]:
                        rows = [p.shape[0] // parts] * parts if isinstance(parts, int) else parts
                        block = p.split(rows)[changed]
                        block.zero_() if changed == 0 else block.normal_()
                    found.append(model(input_ids=tokens).logits)
                self.assertTrue(torch.allclose(found[0], found[1], atol=1e-6))
                self.assertFalse(torch.allclose(found[0], found[2], atol=1e-3))

    @needs("torch", "safetensors", "transformers")
    def test_qkv_interleaved_by_head_is_not_split(self):
        sizes = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, vocab_size=64,
                     bos_token_id=0, eos_token_id=0)
        bigcode = dict(n_embd=32, n_layer=2, n_head=4, vocab_size=64, bos_token_id=0, eos_token_id=0)
        for word, model in (
                ("query_key_value", transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**sizes))),
                ("c_attn", transformers.GPTBigCodeForCausalLM(transformers.GPTBigCodeConfig(
                    **bigcode, multi_query=False))),
                ("c_attn", transformers.GPTBigCodeForCausalLM(transformers.GPTBigCodeConfig(**bigcode))),
                ("qkv_proj", transformers.CodeGenForCausalLM(transformers.CodeGenConfig(**bigcode, rotary_dim=4)))):
            with self.subTest(type(model).__name__):
                with self.assertWarnsRegex(UserWarning, rf"Teon is Muon: .* in \S*{word}\.weight; stack whole matrices "
                                                        rf"with stacked=\['{word}'\]"):
                    hidden, rest = teon_torch.stacks_of(model)
                self.assert_split(model, hidden, rest)
                self.assertEqual({(g["k"], g["parts"]) for g in hidden}, {(1, 1)})
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    teon_torch.stacks_of(model, k=1)
                    hidden, _ = teon_torch.stacks_of(model, stacked=[word])
                self.assertEqual([(g["parts"], g["role"].split(".")[-2]) for g in hidden if g["k"] == 2], [(1, word)])

    def test_names_that_match_nothing_are_refused(self):
        layer = torch.nn.Linear
        model = torch.nn.ModuleDict({"layers": torch.nn.ModuleList([torch.nn.ModuleDict({"q_proj": layer(4, 4)})] * 2)})
        for options in ({"stacked": ["query"]}, {"stacked": ["q_proj", "proj"]}, {"adamw": ["head"]}):
            with self.assertRaisesRegex(ValueError, r"matches no matrix; the matrices are layers\.\*\.q_proj\.weight"):
                teon_torch.stacks_of(model, **options)
        with self.assertRaisesRegex(ValueError, "numbered layers"):
            teon_torch.stacks_of(torch.nn.ModuleDict({"up": layer(4, 4)}))
        odd = torch.nn.ModuleDict({"h": torch.nn.ModuleList([torch.nn.ModuleDict({"c_attn": layer(4, 6)})])})
        with self.assertRaisesRegex(ValueError, "c_attn.weight: 6 x 4 does not consist of 2 or 3 matrices of 4 x 4"):
            teon_torch.stacks_of(odd)
        for outputs in (4, 48):
            with self.assertRaisesRegex(ValueError, f"{outputs} x 4 does not consist of 2 or 3 matrices"):
                teon_torch.stacks_of(torch.nn.ModuleList([torch.nn.ModuleDict({"c_attn": layer(4, outputs)})]))

    @needs("torch", "safetensors", "transformers")
    def test_gpt2_124m_needs_no_launch_per_matrix(self):
        launches = []
        for layers, size in ((12, dict(n_embd=768, n_head=12)), (24, dict(n_embd=768, n_head=12))):
            with torch.device("meta"):
                model = gpt2(layers, **size)
            for p in model.parameters():
                p.grad = torch.empty_like(p)
            optimizer = teon_torch.Teon(teon_torch.stacks_of(model)[0])
            optimizer.step()
            with Operations() as operations:
                optimizer.step()
            launches.append(operations.names())
            # torch copies lists of tensors of one kind in one launch, other lists tensor by tensor.
            for name, arguments in operations.calls:
                self.assertTrue("foreach" in name or not name.startswith("aten.copy_"), name)
                if "foreach" in name:
                    self.assertEqual(len({(x.dtype, x.shape, x.is_contiguous()) for xs in arguments for x in xs}), 1)
        self.assertEqual(launches[0], launches[1])
        products = sum("mm" in name for name in launches[0])
        # 768 x 768 in the standard form: three in each of five steps. The other three shapes in the Gram form: 11 in
        # the three steps before the restart, and 7 in the two after it.
        self.assertEqual(products, 3 * 5 + 3 * (11 + 7))


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
