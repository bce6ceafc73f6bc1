"""Models with weights of 8 bits, as compressed-tensors and transformers write and read them:
dev/run_tests.py test/programs/test_quantized.py"""

import sys

import testing
from testing import BUILD, Case, change_json, needs, read_json, write_shards

SCHEMES = {
    "tensor": ({"num_bits": 8, "type": "float", "strategy": "tensor"}, False),
    "channel": ({"num_bits": 8, "type": "float", "strategy": "channel"}, False),
    "block": ({"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}, False),
    "integers": ({"num_bits": 8, "type": "int", "strategy": "channel"}, True),
    "packed": ({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}, False),
}


@needs("torch", "transformers", "compressed_tensors", "safetensors")
class QuantizedTest(Case):
    @classmethod
    def setUpClass(cls):
        import torch
        import transformers
        cls.folder = testing.temporary_folder(cls.addClassCleanup)
        torch.manual_seed(1)
        # Neither width is a multiple of 128.
        transformers.LlamaForCausalLM(transformers.LlamaConfig(
            vocab_size=96, hidden_size=160, intermediate_size=288, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=32, initializer_range=0.1)).bfloat16().save_pretrained(
                cls.folder / "dense")
        write_shards(cls.folder / "data", [i % 96 for i in range(300)], [i % 96 for i in range(100)])

    def quantized(self, name):
        """Saves the dense model with the weights of its layers as compressed-tensors quantizes them."""
        import torch
        from compressed_tensors import ModelCompressor, quantization
        from transformers import LlamaForCausalLM
        weights, with_activations = SCHEMES[name]
        model = LlamaForCausalLM.from_pretrained(self.folder / "dense", dtype=torch.bfloat16)
        activations = {**weights, "strategy": "token", "dynamic": True} if with_activations else None
        quantization.apply_quantization_config(model, quantization.QuantizationConfig(
            config_groups={"all": quantization.QuantizationScheme(targets=["Linear"], weights=weights,
                                                                  input_activations=activations)}, ignore=["lm_head"]))
        largest = 448 if weights["type"] == "float" else 2 ** (weights["num_bits"] - 1) - 1
        for module in model.modules():
            if not hasattr(module, "weight_scale"):
                continue
            rows, columns = weights.get("block_structure", (1, weights.get("group_size")))
            rows, columns = (10**9, 10**9) if weights["strategy"] == "tensor" else (rows, columns or 10**9)
            scale = torch.stack([torch.stack([block.abs().max() for block in part.split(columns, 1)])
                                 for part in module.weight.data.float().split(rows)]) / largest
            module.weight_scale.data = scale.reshape(module.weight_scale.shape).to(module.weight_scale.dtype)
        ModelCompressor.from_pretrained_model(model).compress_model(model)
        model.save_pretrained(self.folder / name)
        ModelCompressor.from_pretrained_model(model).update_config(self.folder / name)
        return self.folder / name

    def read(self, folder):
        """Returns the weights that a run begins with, in float32."""
        from safetensors.torch import load_file
        out = self.folder / f"{folder.name}-read"
        self.run_program("--init-from", folder, "--data", self.folder / "data", "--seq-len", 16, "--batch-tokens", 64,
                         "--steps", 1, "--lr", 0, "--dtype", "float", "--out", out, program="train_llama")
        return load_file(out / "step_00000001" / "model.safetensors")

    def test_weights_are_those_that_compressed_tensors_decompresses(self):
        import torch
        from transformers import AutoModelForCausalLM, CompressedTensorsConfig
        for name in ("tensor", "channel", "block", "integers"):
            with self.subTest(name):
                folder = self.quantized(name)
                types = {dtype for dtype, _, _ in testing.read_tensors(folder / "model.safetensors").values()}
                self.assertIn("I8" if name == "integers" else "F8_E4M3", types)
                theirs = AutoModelForCausalLM.from_pretrained(
                    folder, dtype=torch.float32, quantization_config=CompressedTensorsConfig(dequantize=True))
                ours = self.read(folder)
                for key, value in theirs.state_dict().items():
                    if key in ours:  # theirs is rounded to bf16, the type of the scales
                        self.assertTrue(torch.equal(ours[key].bfloat16(), value.bfloat16()), key)
                self.assertGreater(len(ours), 10)

    def test_blocks_of_128_as_deepseek_writes_them(self):
        """Against float64. transformers 5.23 reads 288 rows with three scales as blocks of 96 (findings/)."""
        import torch
        from safetensors.torch import load_file, save_file
        dense = load_file(self.folder / "dense" / "model.safetensors")
        stored, expected = dict(dense), {}
        for name, weight in dense.items():
            if not name.endswith("proj.weight"):
                continue
            blocks = [part.split(128, 1) for part in weight.float().split(128)]
            scales = torch.tensor([[block.abs().max() / 448 for block in row] for row in blocks])
            codes = [[(block / scale).to(torch.float8_e4m3fn) for block, scale in zip(*pair)]
                     for pair in zip(blocks, scales)]
            stored[name] = torch.cat([torch.cat([code.view(torch.uint8) for code in row], 1) for row in codes]).view(
                torch.float8_e4m3fn)
            stored[name + "_scale_inv"] = scales
            expected[name] = torch.cat([torch.cat([code.double() * scale.double() for code, scale in zip(*pair)], 1)
                                        for pair in zip(codes, scales)])
        folder = self.folder / "deepseek"
        folder.mkdir()
        # Tensors of types that no weight needs do not matter.
        save_file(stored | {"exponents": torch.zeros(4, dtype=torch.uint8).view(torch.float8_e8m0fnu)},
                  folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text((self.folder / "dense" / "config.json").read_text())
        change_json(folder / "config.json", quantization_config={
            "quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128]})
        ours = self.read(folder)
        for name, value in expected.items():
            self.assertTrue(torch.equal(ours[name], value.float()), name)  # one rounding
        evaluated = self.run_program("--eval-only", "--init-from", folder, "--val-data", self.folder / "data",
                                     program="train_llama").stderr
        self.assertIn("not used: exponents\n", evaluated)
        # Final numbers beside scales.
        change_json(folder / "config.json", quantization_config=None)
        save_file(dense | {"model.layers.0.mlp.up_proj.weight_scale": torch.ones(1)}, folder / "model.safetensors")
        self.assertIn("is BF16, but has scales, 'model.layers.0.mlp.up_proj.weight_scale'",
                      self.error_of(BUILD / "generate", "--checkpoint", folder))

    def test_the_command_of_the_message_makes_a_folder_in_bf16(self):
        folder = self.quantized("packed")
        error = self.error_of(BUILD / "generate", "--checkpoint", folder, "--prompt-tokens", 1)
        self.assertIn("quantization_config is compressed-tensors in the format pack-quantized", error)
        code = error[error.index('-c "') + 4:error.rindex('"')]
        out = self.folder / "unpacked"
        self.call(sys.executable, "-c", code.replace("FOLDER", str(folder)).replace("OUT", str(out)))
        self.assertIsNone(read_json(out / "config.json").get("quantization_config"))
        self.run_program("--checkpoint", out, "--prompt-tokens", 1, "--sample-tokens", 2, "--as-tokens",
                         program="generate")
