"""Other packages' Muons: the options with which Teon makes their steps, as the engine's --like.

Each with the version at which it was compared: test/torch_tests.sh muons makes the same steps beside the package.
docs/optimizers.md, "Muon elsewhere", says what to mind.
"""
import collections

Like = collections.namedtuple("Like", "version options")


def _like(version, lr, weight_decay, ortho, update_scale, momentum=0.95, **options):
    """lr None: the package has no default, and ours stays."""
    rate = {} if lr is None else {"lr": lr}
    return Like(version, {**rate, "weight_decay": weight_decay, "momentum": momentum, "ortho": ortho,
                          "update_scale": update_scale, **options})


LIKE = {
    "torch": _like("torch 2.15.0", 1e-3, 0.1, "jordan", "original", nesterov=True),
    "torch-rms": _like("torch 2.15.0, match_rms_adamw", 1e-3, 0.1, "jordan", "rms", nesterov=True),
    "keller": _like("KellerJordan/Muon 857d1ad", 0.02, 0.0, "jordan", "original", nesterov=True),
    "moonlight": _like("Moonlight's in LLaMA-Factory 0.9.5", 1e-3, 0.1, "jordan", "rms", nesterov=True),
    "pytorch-optimizer": _like("pytorch-optimizer 4.1.0", 0.02, 0.0, "jordan", "original", nesterov=True),
    "timm": _like("timm 1.0.31", 0.02, 0.0, "you", "rms"),
    "dion": _like("microsoft/dion 0a059a4", 0.01, 0.01, "polar-express-dion", "spectral"),
    "dion-you": _like("microsoft/dion 0a059a4, use_polar_express=False", 0.01, 0.01, "you", "spectral"),
    "nvidia": _like("emerging-optimizers 0.3.0", 3e-4, 0.01, "you", "rms", update_rms=1.0),
    "deepspeed": _like("DeepSpeed 0.19.8", 0.02, 0.0, "jordan", "original", nesterov=True),
    "optax": _like("optax 0.2.8", None, 0.0, "jordan", "original", nesterov=True, nesterov_form="bias-corrected"),
    "keras": _like("Keras 3.15.1", 1e-3, 0.004, "jordan", "rms", nesterov=True),
    "heavyball": _like("heavyball 3.2.1", 0.0025, 0.0, "you", "original", 0.9, nesterov=True, nesterov_form="ema"),
    "gram-newton-schulz": _like("gram-newton-schulz 0.1.6", 1e-3, 0.1, "polar-express-dao", "rms", nesterov=True),
    "optimuon": _like("optimuon 0.1.1", 0.02, 0.0, "polar-express-dion", "original", nesterov=True, neuron_norm=True,
                      neuron_axis="long", cautious_weight_decay=True),
    "nanochat": _like("nanochat 92d63d4", 0.02, 0.28, "polar-express-nanochat", "original", 0.97, nesterov=True,
                      neuron_norm=True, neuron_beta2=0.9, cautious_weight_decay=True, decay_at="adjusted",
                      momentum_warmup=400, neuron_axis="long", renormalize=True, equalize_rows=True),
    # Decay there is 1.2 times the square of the rate.
    "modded-nanogpt": _like("modded-nanogpt f411b3d", 0.023, 0.0276, "polar-express-dion", "original", nesterov=True,
                            neuron_norm=True, neuron_beta2=0.9, cautious_weight_decay=True, decay_at="adjusted",
                            momentum_warmup=300, neuron_axis="long"),
}
