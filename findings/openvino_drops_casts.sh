#!/bin/bash
# Guess: a model that casts float32 to bfloat16 and back rounds its values, as the ONNX standard says of Cast.
# Seen:  OpenVINO's CPU plugin compiles the pair to nothing. Every value comes back unrounded, also with the hint for
#        accuracy, so a model that imitates 16-bit storage is exact there. A pair with float16 goes the same way; one
#        with FLOAT8E4M3FN stays. onnxruntime and ONNX's reference round.
# Known: openvino 2026.4.1 (2026-11); earlier ones not run. Found by comparing casts of eleven libraries.
. "$(dirname "$0")/lib.sh"
packages numpy==2.4.6 ml_dtypes==0.6.0 onnx==1.23.2 onnxruntime==1.32.0 openvino==2026.4.1
prints "BFLOAT16: onnxruntime rounds 3 of 3, openvino 0 of 3; between input and output it runs 0 nodes
FLOAT16: onnxruntime rounds 3 of 3, openvino 0 of 3; between input and output it runs 0 nodes
FLOAT8E4M3FN: onnxruntime rounds 3 of 3, openvino 3 of 3; between input and output it runs 2 nodes" \
    python - <<'END'
import numpy as np, onnxruntime, openvino
from onnx import TensorProto, helper

x = np.array([3.14159, 0.1, 1.001], np.float32)
for name in ("BFLOAT16", "FLOAT16", "FLOAT8E4M3FN"):
    nodes = [helper.make_node("Cast", ["x"], ["q"], to=getattr(TensorProto, name)),
             helper.make_node("Cast", ["q"], ["y"], to=TensorProto.FLOAT)]
    ends = [[helper.make_tensor_value_info(end, TensorProto.FLOAT, [None])] for end in "xy"]
    model = helper.make_model(helper.make_graph(nodes, "pair", *ends), opset_imports=[helper.make_opsetid("", 21)],
                              ir_version=10).SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(model), "CPU", {"EXECUTION_MODE_HINT": "ACCURACY"})
    rounded = [int((y != x).sum()) for y in (session.run(None, {"x": x})[0], compiled([x])[0])]
    between = len(compiled.get_runtime_model().get_ops()) - 2
    print(f"{name}: onnxruntime rounds {rounded[0]} of 3, openvino {rounded[1]} of 3; between input and output it runs "
          f"{between} nodes")
END
