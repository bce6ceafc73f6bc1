// The activation functions of the MLP: one row each. Their formulas are in kernels/activation.cu.
#pragma once

#include "base/enum_rows.h"

namespace teon {

enum class ActivationKind { gelu, gelu_erf, relu2, swiglu, geglu, geglu_erf, count };

struct ActivationFunction {
    ActivationKind kind;
    std::string_view name;     // the value of --mlp
    std::string_view meaning;  // for --help
    // out = f(gate) * up, where the MLP's first product computes both (Shazeer, arXiv 2002.05202); else out = f(x).
    bool gated;
    std::string_view hf_name, other_hf_name = {};  // f in transformers; the first is written, both are read

    constexpr int inputs() const { return gated ? 2 : 1; }  // per output
    // Elements that both passes move per output: forward reads the inputs and writes out, backward reads the inputs and
    // dout and writes the inputs' gradients.
    constexpr int elements_moved() const { return (inputs() + 1) + (inputs() + 1 + inputs()); }
};

inline constexpr ActivationFunction kActivations[] = {
    {ActivationKind::gelu, "gelu", "GELU in its tanh form", false, "gelu_new", "gelu_pytorch_tanh"},
    {ActivationKind::gelu_erf, "gelu-erf", "exact GELU", false, "gelu"},
    {ActivationKind::relu2, "relu2", "squared ReLU", false, "relu2"},
    {ActivationKind::swiglu, "swiglu", "SiLU of a gate", true, "silu", "swish"},
    {ActivationKind::geglu, "geglu", "GELU of a gate, in its tanh form", true, "gelu_pytorch_tanh", "gelu_new"},
    {ActivationKind::geglu_erf, "geglu-erf", "exact GELU of a gate", true, "gelu"},
};
template <>
inline constexpr auto kEnumNames<ActivationKind> = names_of_rows(kActivations);

constexpr const ActivationFunction& row_of(ActivationKind kind) { return kActivations[static_cast<size_t>(kind)]; }

}  // namespace teon
