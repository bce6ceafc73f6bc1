#!/bin/bash
# Guess: Cast with saturate=0 to a float8 type gives one result for all values beyond its range, as the standard's table
#        says: NaN for E4M3FN, infinity for E5M2.
# Seen:  onnxruntime has a gap behind the largest value: from 480 to just below 496 E4M3FN gives 448 again, and from
#        61440 to just below 65536 E5M2 gives NaN, and then infinity. ONNX's own reference has no gap.
# Known: onnxruntime 1.32.0, CPU (2026-11); earlier ones not run. Found by comparing casts of eleven libraries.
. "$(dirname "$0")/lib.sh"
packages numpy==2.4.6 ml_dtypes==0.6.0 onnx==1.23.2 onnxruntime==1.32.0
prints "FLOAT8E4M3FN of 448, 470, 480, 495, 496, 1000
  reference   448, nan, nan, nan, nan, nan
  onnxruntime 448, nan, 448, 448, nan, nan
FLOAT8E5M2 of 57344, 61440, 65535, 65536, 1e+06
  reference   57344, inf, inf, inf, inf
  onnxruntime 57344, nan, nan, inf, inf" python - <<'END'
import numpy as np, onnxruntime
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator


def text(values):
    return ", ".join(f"{value:g}" if value != 65535 else "65535" for value in values)


for name, values in (("FLOAT8E4M3FN", [448, 470, 480, 495, 496, 1000]),
                     ("FLOAT8E5M2", [57344, 61440, 65535, 65536, 1e6])):
    x = np.array(values, np.float32)
    nodes = [helper.make_node("Cast", ["x"], ["q"], to=getattr(TensorProto, name), saturate=0),
             helper.make_node("Cast", ["q"], ["y"], to=TensorProto.FLOAT)]
    ends = [[helper.make_tensor_value_info(end, TensorProto.FLOAT, [None])] for end in "xy"]
    model = helper.make_model(helper.make_graph(nodes, "pair", *ends), opset_imports=[helper.make_opsetid("", 21)],
                              ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    print(name, "of", text(values))
    print("  reference  ", text(ReferenceEvaluator(model).run(None, {"x": x})[0]))
    print("  onnxruntime", text(session.run(None, {"x": x})[0]))
END
