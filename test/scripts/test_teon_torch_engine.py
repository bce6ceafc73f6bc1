"""teon_torch against the engine: the same updates from the same gradients in random settings.
dev/run_tests.py test/scripts/test_teon_torch_engine.py"""
import random
import re

from testing import BUILD, Case, needs, write_shards
from torch_models import gpt2, torch, transformers

if torch:
    import teon_torch
    from safetensors.torch import load_file

TOKENS = [(7 * i * i + i // 5) % 64 for i in range(2000)]
RUN = ("--data . --shuffle off --seq-len 16 --batch-tokens 128 --micro-batch 8 --vocab-size 64 --optimizer teon "
       "--lr .02 --schedule constant --warmup-ratio 0 --grad-clip 0 --dtype float --eval-tokens 128")
# The engine's names of a layer's matrices, by the words of transformers' names.
ROLES = {"c_attn": ["attn.q", "attn.k", "attn.v"], "attn.c_proj": ["attn.o"], "c_fc": ["mlp.up"],
         "mlp.c_proj": ["mlp.down"], "q_proj": ["attn.q"], "k_proj": ["attn.k"], "v_proj": ["attn.v"],
         "o_proj": ["attn.o"], "gate_proj": ["mlp.gate"], "up_proj": ["mlp.up"], "down_proj": ["mlp.down"]}
LAYERS, STEPS = 3, 3
BOUND = 2e-4  # of the distance that a matrix has moved


def build(name):
    if name == "gpt2":
        return gpt2(layers=LAYERS)
    # 45 rows are padded to 48 by the engine.
    sizes = dict(vocab_size=64, bos_token_id=0, eos_token_id=0, pad_token_id=None, hidden_size=32, intermediate_size=45,
                 num_hidden_layers=LAYERS, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=16)
    model = {"llama": "Llama", "olmo2": "Olmo2", "qwen3": "Qwen3"}[name]
    config = getattr(transformers, f"{model}Config")(**sizes, **{"head_dim": 8} if name == "qwen3" else {})
    return getattr(transformers, f"{model}ForCausalLM")(config)


def random_setting(rng):
    """Returns (options of Teon, options of stacks_of, the engine's flags)."""
    ortho = rng.choice(["polar-express", "polar-express", "you", "jordan", "svd"])
    options = {"ortho": ortho, "mode": rng.choice([1, 2, 3]), "nesterov": rng.random() < .5,
               "momentum": rng.choice([.8, .95]), "weight_decay": rng.choice([0, .1]),
               "rms_match": rng.random() < .3, "normalize_slices": rng.random() < .3,
               "update_rms": rng.choice([None, None, .2]), "neuron_norm": rng.random() < .4,
               "cautious_weight_decay": rng.random() < .3}
    if ortho != "svd":
        options["ns_form"] = rng.choice(["auto", "standard", "gram"])
        if rng.random() < .5:
            options["ns_steps"] = rng.choice([3, 4, 6])
    if options["neuron_norm"]:
        options["neuron_beta2"] = rng.choice([.9, .95])
    division = {"k": rng.choice([1, 2, 3]), "ortho_per_head": rng.random() < .4}
    names = {"k": "teon_k", "mode": "teon_mode", "rms_match": "teon_rms_match",
             "normalize_slices": "teon_normalize_slices"}
    flags = []
    for name, value in (options | division).items():
        if value is not None:
            word = {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
            flags += [f"--{names.get(name, name).replace('_', '-')}", word]
    return options, division, flags


@needs("torch")
class LikeTest(Case):
    def test_both_have_the_same_table(self):
        program = BUILD / "train_gpt2"
        if not program.exists():
            self.skipTest(f"{program.name} is not built in {BUILD}")
        names = {"optimizer": None, "momentum_start": .85, "neuron_beta2": .95, "nesterov": False, "neuron_norm": False,
                 "neuron_axis": "rows", "renormalize": False, "equalize_rows": False}
        shown = self.call(program, "--help-all").stdout
        known = {flag.replace("-", "_") for flag in re.findall(r"--([a-z0-9-]+)", shown)}
        for name, (_, options) in teon_torch.LIKE.items():
            line = next(line for line in self.call(program, "--like", name, "--plan-only").stdout.splitlines()
                        if "--ortho" in line)
            flags = {flag.replace("-", "_"): {"on": True, "off": False}.get(value, value)
                     for flag, value in re.findall(r"--([a-z0-9-]+) ([^ ;,]+)", line.split("; ")[0])}
            wanted = dict(options)
            if flags.pop("optimizer") == "normuon":
                flags["neuron_norm"] = True
            if wanted["update_scale"] == "rms":
                wanted["update_rms"] = wanted.get("update_rms", .2)
                flags.setdefault("update_scale", "rms")
            for option in {*flags, *wanted} & known:
                theirs, mine = flags.get(option, names.get(option)), wanted.get(option, names.get(option))
                if isinstance(mine, float):
                    theirs = float(theirs)
                elif isinstance(mine, int) and not isinstance(mine, bool):
                    theirs = int(theirs)
                self.assertEqual(theirs, mine, f"{name}: {option} in the engine and in teon_torch")


@needs("torch", "safetensors", "transformers")
class EngineTest(Case):
    def engine_run(self, name, model, out, *flags):
        program = BUILD / f"train_{name}"
        if not program.exists():
            self.skipTest(f"{program.name} is not built in {BUILD}")
        if not (self.folder / name).exists():
            model.eval().save_pretrained(self.folder / name)  # no dropout
            write_shards(self.folder, TOKENS, TOKENS)
        return self.call(program, "--init-from", name, *RUN.split(), "--out", out, *flags)

    def momenta(self, model, out, step):
        """Returns {a matrix's name: the engine's momentum after a step}."""
        state = load_file(self.folder / out / f"step_{step:08}/optimizer/state.safetensors")
        momenta = {}
        for name, p in model.named_parameters():
            layer = re.search(r"\.(\d+)\.", name)
            word = next((word for word in ROLES if f"{word}." in name), None)
            if layer and word and p.ndim == 2:
                prefix = "h" if f"h.{layer[1]}.attn.q.weight.momentum" in state else "layers"
                parts = [state[f"{prefix}.{layer[1]}.{role}.weight.momentum"] for role in ROLES[word]]
                whole = torch.cat(parts)
                whole = whole.mT if "c_" in word else whole
                momenta[name] = whole[:p.shape[0], :p.shape[1]].double()  # without the engine's padding
        return momenta

    def weights(self, out, step):
        return load_file(self.folder / out / f"step_{step:08}/model.safetensors")

    def test_forty_random_settings_from_the_same_gradients(self):
        # The engine's momenta give its gradients: G = M - mu M of the step before. Float sums in another order differ
        # by 2^-24 each; Newton-Schulz multiplies small singular values, and their rounding, by up to 440, and gradients
        # of later steps come from weights that differ by as much. Measured: 9e-5 for svd, 5e-5 for the others.
        torch.manual_seed(1)
        models = {name: build(name) for name in ("gpt2", "llama", "qwen3", "olmo2")}
        start = {name: {key: p.detach().clone() for key, p in model.named_parameters()}
                 for name, model in models.items()}
        for seed in range(40):
            rng = random.Random(seed)
            name = rng.choice(sorted(models))
            self.compare_setting(name, models[name], start[name], f"run-{seed}", *random_setting(rng))

    def compare_setting(self, name, model, start, out, options, division, flags):
        self.engine_run(name, model, out, "--steps", STEPS, "--checkpoint-every", 1, *flags)
        with torch.no_grad():
            for key, p in model.named_parameters():
                p.copy_(start[key])
                p.grad = None
        hidden, _ = teon_torch.stacks_of(model, **division)
        optimizer = teon_torch.Teon(hidden, lr=.02, **options)
        matrices = dict(model.named_parameters())
        before = {}
        weights = start
        for step in range(1, STEPS + 1):
            momenta = self.momenta(model, out, step)
            self.assertEqual(len(momenta), sum(len(group["params"]) for group in hidden))
            for key, momentum in momenta.items():
                grad = momentum - options["momentum"] * before.get(key, 0)
                matrices[key].grad = grad.float().contiguous()
            before = momenta
            optimizer.step()
            expected = self.weights(out, step)
            for key in momenta:
                step_of_engine = expected[key] - weights[key]
                difference = (matrices[key] - expected[key]).detach()
                # Cautious decay asks for the sign of an update, which is only rounding where the update is all but 0.
                decay = .02 * options.get("weight_decay", 0) * weights[key].abs()
                undecided = ((difference.abs() - decay).abs() < .01 * decay) & (
                    torch.minimum(step_of_engine.abs(), (matrices[key] - weights[key]).abs())
                    < 1e-3 * step_of_engine.norm() / step_of_engine.numel() ** .5)
                if options.get("cautious_weight_decay", False):
                    self.assertLessEqual(undecided.sum().item(), 2)
                    difference[undecided] = 0
                error = (difference.norm() / step_of_engine.norm()).item()
                self.assertTrue(error <= BOUND, f"{key}, step {step}: {error:.2g} of the distance; {out} of {name}: "
                                                f"{' '.join(flags)}")
                with torch.no_grad():
                    matrices[key].copy_(expected[key])
            weights = expected
