"""teon_torch's stacks_of() on the models that people train, wrapped as they wrap them:
dev/run_tests.py test/scripts/test_teon_torch_models.py"""
import copy
import math
import warnings

from testing import Case, needs
from torch_models import Operations, gpt2, one_rank, torch, transformers

if torch:
    import teon_torch

SIZES = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             vocab_size=64, bos_token_id=0, eos_token_id=0, pad_token_id=0)


def mixtures():
    """Returns the mixtures of experts of transformers: 4 experts of 24 x 32."""
    chosen = {"num_experts_per_tok": 2}
    deepseek = dict(n_routed_experts=4, n_shared_experts=1, moe_intermediate_size=24, first_k_dense_replace=1,
                    num_key_value_heads=4, kv_lora_rank=16, q_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=4,
                    v_head_dim=8, n_group=1, topk_group=1)
    return {
        "qwen3": transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(
            **SIZES | chosen, head_dim=8, num_experts=4, moe_intermediate_size=24)),
        "olmoe": transformers.OlmoeForCausalLM(transformers.OlmoeConfig(
            **SIZES | chosen | {"intermediate_size": 24}, num_experts=4)),
        "mixtral": transformers.MixtralForCausalLM(transformers.MixtralConfig(
            **SIZES | chosen | {"intermediate_size": 24}, num_local_experts=4)),
        "deepseek": transformers.DeepseekV2ForCausalLM(transformers.DeepseekV2Config(**SIZES | chosen | deepseek))}


@needs("torch", "safetensors")
class ModelsTest(Case):
    """stacks_of() on common models."""

    def assert_split(self, model, hidden, rest, matrices_of_biases=0):
        """Checks that every parameter is in exactly one group and that vectors do not decay."""
        taken = [p for group in hidden + rest for p in group["params"]]
        self.assertEqual(sorted(map(id, taken)), sorted(map(id, model.parameters())))
        self.assertEqual([group.get("weight_decay") for group in rest], [None, 0])
        self.assertFalse([p for p in rest[0]["params"] if p.ndim < 2])
        self.assertEqual(len([p for p in rest[1]["params"] if p.ndim > 1]), matrices_of_biases)

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
        sizes = SIZES | {"num_hidden_layers": 3, "pad_token_id": None}
        for model in (transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)),
                      transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**sizes, head_dim=8)),
                      transformers.Olmo2ForCausalLM(transformers.Olmo2Config(**sizes))):
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
        with self.assertRaisesRegex(ValueError, "FullyShardedDataParallel flattens and shards"):
            teon_torch.stacks_of(torch.nn.ModuleDict({"layers": sharded}))

    @needs("torch", "safetensors", "transformers")
    def test_experts(self):
        shapes = {"gate_up_proj": ((4, 48, 32), 2), "down_proj": ((4, 32, 24), 1)}
        for name, model in mixtures().items():
            with self.subTest(name):
                hidden, rest = teon_torch.stacks_of(model)
                self.assert_split(model, hidden, rest)
                groups = {group["role"].split(".")[-1]: group for group in hidden if "experts" in group}
                self.assertEqual({role: (tuple(group["params"][0].shape), group["parts"]) for role, group in
                                  groups.items()}, shapes)
                for group in groups.values():
                    self.assertEqual((group["experts"], group["k"], group["transposed"]), ("each", 1, False))
                decayed = {id(p) for p in rest[0]["params"]}
                routers = [p for module in model.modules() if type(module).__name__.lower().endswith("router")
                           for p in module.parameters()]
                self.assertEqual(len(routers), 1 + (name != "deepseek"))  # DeepSeek's first layer is dense
                for p in [*routers, model.get_input_embeddings().weight, model.lm_head.weight]:
                    self.assertIn(id(p), decayed)
                self.assertEqual({g["role"].split(".")[-2] for g in hidden if g["k"] == 2},
                                 {"q_b_proj", "kv_b_proj"} if name == "deepseek" else {"q_proj", "k_proj", "v_proj"})
                stacked, _ = teon_torch.stacks_of(model, experts="stack", k=3)
                self.assertEqual({g["k"] for g in stacked if "experts" in g}, {3})
                optimizer = teon_torch.Teon(hidden, lr=.1)
                for p in model.parameters():
                    p.grad = torch.randn_like(p)
                wanted = {}  # each expert's gate, up and down alone
                for role, group in groups.items():
                    for p in group["params"]:
                        alone = []
                        for expert in range(4):
                            for rows in (slice(0, 24), slice(24, 48)) if group["parts"] == 2 else [slice(None)]:
                                q = torch.nn.Parameter(p[expert, rows].detach().clone())
                                q.grad = p.grad[expert, rows].clone()
                                alone.append(q)
                        teon_torch.Teon(alone, lr=.1).step()
                        wanted[p] = torch.cat([q.detach() for q in alone])
                optimizer.step()
                for p, expected in wanted.items():
                    self.assertTrue((p.flatten(0, 1) - expected).norm().item() < 1e-5 * expected.norm().item())

    @needs("torch", "safetensors", "transformers")
    def test_experts_stored_in_other_ways(self):
        # gpt-oss stores inputs x outputs and interleaves gate and up; its experts have biases.
        oss = transformers.GptOssForCausalLM(transformers.GptOssConfig(**SIZES, head_dim=8, num_local_experts=4))
        hidden, rest = teon_torch.stacks_of(oss)
        self.assert_split(oss, hidden, rest, matrices_of_biases=4)
        self.assertEqual([(g["parts"], g["transposed"]) for g in hidden if "experts" in g], [(1, True)] * 2)

        class Mixture(torch.nn.Module):  # as transformers before 5: modules
            def __init__(self):
                super().__init__()
                layer = torch.nn.Linear
                self.gate = layer(8, 3, bias=False)
                self.experts = torch.nn.ModuleList([torch.nn.ModuleDict({"up": layer(8, 16), "down": layer(16, 8)})
                                                    for _ in range(3)])
        model = torch.nn.ModuleDict({"layers": torch.nn.ModuleList([Mixture() for _ in range(2)])})
        hidden, rest = teon_torch.stacks_of(model, k=1)
        self.assert_split(model, hidden, rest)
        self.assertEqual([(g["role"], g["k"], len(g["params"])) for g in hidden],
                         [("layers.*.experts.*.up.weight", 1, 6), ("layers.*.experts.*.down.weight", 1, 6)])
        self.assertEqual([tuple(p.shape) for p in rest[0]["params"]], [(3, 8)] * 2)
        hidden, rest = teon_torch.stacks_of(model, experts="stack")
        self.assert_split(model, hidden, rest)
        self.assertEqual([(g["role"], g["k"], len(g["params"])) for g in hidden],
                         [(f"layers.{layer}.experts.*.{word}.weight", 2, 3) for layer in (0, 1)
                          for word in ("up", "down")])
        with self.assertRaisesRegex(ValueError, "experts is 'all'; expected each or stack"):
            teon_torch.stacks_of(model, experts="all")

    @needs("torch", "safetensors", "transformers")
    def test_heads_are_the_models(self):
        llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))
        encoder = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(16, 2, 32), 2,
                                              enable_nested_tensor=False)
        models = {"llama": (llama, {"q_proj": 8, "k_proj": 8, "v_proj": 8}), "gpt2": (gpt2(), {"c_attn": 16}),
                  "encoder": (encoder, {"self_attn": 8}), "compiled": (torch.compile(gpt2()), {"c_attn": 16}),
                  "deepseek": (mixtures()["deepseek"], {"q_b_proj": 12, "kv_b_proj": 16})}
        for name, (model, wanted) in models.items():
            with self.subTest(name):
                hidden, _ = teon_torch.stacks_of(model, ortho_per_head=True)
                self.assertEqual({g["role"].split(".")[-2]: g["head_size"] for g in hidden if "head_size" in g}, wanted)
                self.assertFalse([g for g in teon_torch.stacks_of(model)[0] if "head_size" in g])
                teon_torch.Teon(hidden)  # the rows of every matrix consist of heads
        unknown = torch.nn.ModuleList([torch.nn.ModuleDict({"q_proj": torch.nn.Linear(4, 4)})])
        with self.assertRaisesRegex(ValueError, "ModuleDict of 0.q_proj.weight has no head_dim; set head_size"):
            teon_torch.stacks_of(unknown, ortho_per_head=True)

    @needs("torch", "safetensors", "transformers")
    def test_wrapped_layers(self):
        # Wrappers inside the model, also around some of its layers, change neither roles nor stacks.
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

        def divided(model):
            hidden, rest = teon_torch.stacks_of(model, ortho_per_head=True)
            return [{**group, "params": [id(p) for p in group["params"]]} for group in hidden + rest]

        def each_layer(wrap):
            def wrapped(model):
                layers = model.transformer.h if hasattr(model, "transformer") else model.model.layers
                for i in range(len(layers)):
                    layers[i] = wrap(i, layers[i])
                return model
            return wrapped

        ways = {"compiled": each_layer(lambda i, layer: torch.compile(layer)),
                "checkpointed": each_layer(lambda i, layer: checkpoint_wrapper(layer)),
                "every second": each_layer(lambda i, layer: checkpoint_wrapper(layer) if i % 2 else layer),
                "both": each_layer(lambda i, layer: torch.compile(checkpoint_wrapper(layer))),
                "whole": lambda model: torch.compile(checkpoint_wrapper(model))}
        if torch.distributed.is_available():
            ways["sharded"] = self.sharded
        for name, wrap in ways.items():
            for build in (gpt2, lambda: mixtures()["qwen3"]):
                with self.subTest(name), one_rank():
                    model = build()
                    wanted = divided(model)
                    wrapped = wrap(model)
                    if name == "sharded":  # its parameters are new
                        ids = dict(zip((id(p) for p in build().parameters()), wrapped.parameters()))
                        self.assertEqual(len(ids), len(list(wrapped.parameters())))
                        wanted, found = ([{**group, "params": len(group["params"])} for group in groups]
                                         for groups in (wanted, divided(wrapped)))
                        self.assertEqual(found, wanted)
                    else:
                        self.assertEqual(divided(wrapped), wanted)

    @staticmethod
    def sharded(model):
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor import init_device_mesh
        mesh = init_device_mesh("cpu", (1,))
        layers = model.transformer.h if hasattr(model, "transformer") else model.model.layers
        for i in range(len(layers)):
            layers[i] = torch.compile(checkpoint_wrapper(layers[i]))
            fully_shard(layers[i], mesh=mesh)
        return fully_shard(model, mesh=mesh)

    @needs("torch", "safetensors", "transformers", "peft")
    def test_lora_goes_to_adamw_and_frozen_matrices_stay(self):
        import peft
        model = peft.get_peft_model(gpt2(), peft.LoraConfig(target_modules=["c_attn"], r=2, fan_in_fan_out=True))
        for options in ({}, {"adamw": ["lora_A"]}, {"adamw": ["lora_B"]}):
            hidden, rest = teon_torch.stacks_of(model, **options)
            self.assert_split(model, hidden, rest)
            self.assertEqual([(g["role"], g["k"], g["parts"], g["transposed"]) for g in hidden][0],
                             ("base_model.model.transformer.h.*.attn.c_attn.base_layer.weight", 2, 3, True))
            self.assertEqual(len(hidden), 4)
            self.assertEqual(len(rest[0]["params"]), 2 + 2 * 4)  # embeddings and each layer's factors
        batch = torch.arange(32).view(2, 16)
        model(input_ids=batch, labels=batch).loss.backward()
        optimizer = teon_torch.Teon(hidden)
        optimizer.step()
        self.assertFalse(optimizer.state)

    @needs("torch", "safetensors", "transformers")
    def test_joined_row_blocks(self):
        torch.manual_seed(1)
        sizes = {key: value for key, value in SIZES.items() if key != "num_key_value_heads"}

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
        bigcode = dict(n_embd=32, n_layer=2, n_head=4, vocab_size=64, bos_token_id=0, eos_token_id=0)
        for word, model in (
                ("query_key_value", transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**SIZES))),
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

    def second_step(self, build, **division):
        """Returns the operations of the second step of a model that `build` makes without memory."""
        with torch.device("meta"):
            model = build()
        for p in model.parameters():
            p.grad = torch.empty_like(p)
        optimizer = teon_torch.Teon(teon_torch.stacks_of(model, **division)[0])
        optimizer.step()
        with Operations() as operations:
            optimizer.step()
        return operations

    @needs("torch", "safetensors", "transformers")
    def test_gpt2_124m_needs_no_launch_per_matrix(self):
        launches = []
        for layers in (12, 24):
            operations = self.second_step(lambda: gpt2(layers, n_embd=768, n_head=12))
            launches.append(operations.names())
            # torch copies lists of tensors of one kind in one launch, other lists tensor by tensor.
            for name, arguments in operations.calls:
                self.assertTrue("foreach" in name or not name.startswith("aten.copy_"), name)
                if "foreach" in name:
                    lists = [xs for xs in arguments if isinstance(xs, (list, tuple))]
                    self.assertEqual(len({(x.dtype, x.shape, x.is_contiguous()) for xs in lists for x in xs}), 1)
        self.assertEqual(launches[0], launches[1])
        products = sum("mm" in name for name in launches[0])
        # 768 x 768 in the standard form: three in each of five steps. The other three shapes in the Gram form: 11 in
        # the three steps before the restart, and 7 in the two after it.
        self.assertEqual(products, 3 * 5 + 3 * (11 + 7))

    @needs("torch", "safetensors", "transformers")
    def test_experts_need_no_launch_per_matrix(self):
        for experts in ("each", "stack"):
            launches = [self.second_step(lambda: transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(
                **SIZES | {"num_hidden_layers": layers}, num_experts_per_tok=2, head_dim=8, num_experts=count,
                moe_intermediate_size=24)), experts=experts, k=2 if experts == "stack" else 1).names()
                for layers, count in ((2, 4), (3, 4), (2, 8))]
            self.assertEqual(launches[0], launches[2])  # of another number of experts
            if experts == "each":  # else the third layer is a shorter stack of Q, K and V
                self.assertEqual(launches[0], launches[1])
