// The polynomials of Newton-Schulz orthogonalization, each set with its source. Step t maps every singular value sigma
// to a sigma + b sigma^3 + c sigma^5 with the t-th triple; beyond the end of a set its last triple is repeated.
#pragma once

#include <algorithm>
#include <span>

#include "base/check.h"
#include "optim/optimizer_options.h"

namespace teon {

struct NsTriple {
    double a, b, c;
};

struct NsSet {
    Ortho ortho;
    std::span<const NsTriple> triples;
    double margin;  // the set expects ||X||_F <= 1 / margin
    NsTriple at(int t) const { return triples[std::min<size_t>(static_cast<size_t>(t), triples.size() - 1)]; }
};

// Keller Jordan, "Muon: An optimizer for hidden layers in neural networks" (https://kellerjordan.github.io/posts/muon).
// Steepest at zero for its five steps; does not converge, singular values end up within about 0.7 and 1.2.
inline constexpr NsTriple kJordan[] = {{3.4445, -4.7750, 2.0315}};

// Jiacheng You, five steps fitted one after the other (https://x.com/YouJiacheng/status/1905861218138804534).
inline constexpr NsTriple kYou[] = {{4.0848, -6.8946, 2.9270},
                                    {3.9505, -6.3029, 2.6377},
                                    {3.7418, -5.5913, 2.3037},
                                    {2.8769, -3.1427, 1.2046},
                                    {2.8366, -3.0525, 1.2012}};

// Amsel, Persson, Musco, Gower, "The Polar Express" (https://arxiv.org/abs/2505.16932): minimax-optimal composition for
// singular values in [1e-3, 1], made safe against rounding by p(x / 1.01), which divides (a, b, c) by 1.01, 1.01^3 and
// 1.01^5. The last of its eight triples is the Newton-Schulz iteration of order five, which converges from there.
constexpr NsTriple with_safety(double a, double b, double c) {
    constexpr double s = 1.01;
    constexpr double s3 = s * s * s;
    return {a / s, b / s3, c / (s3 * s * s)};
}
inline constexpr NsTriple kPolarExpress[] = {with_safety(8.28721201814563, -23.595886519098837, 17.300387312530933),
                                             with_safety(4.107059111542203, -2.9478499167379106, 0.5448431082926601),
                                             with_safety(3.9486908534822946, -2.908902115962949, 0.5518191394370137),
                                             with_safety(3.3184196573706015, -2.488488024314874, 0.51004894012372),
                                             with_safety(2.300652019954817, -1.6689039845747493, 0.4188073119525673),
                                             with_safety(1.891301407787398, -1.2679958271945868, 0.37680408948524835),
                                             with_safety(1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
                                             {1.875, -1.25, 0.375}};

inline constexpr NsSet kNsSets[] = {
    {Ortho::jordan, kJordan, 1.0}, {Ortho::you, kYou, 1.0}, {Ortho::polar_express, kPolarExpress, 1.01}};

// Throws Error for Ortho::svd, which has no coefficients.
inline NsSet ns_set(Ortho ortho) {
    for (const NsSet& set : kNsSets)
        if (set.ortho == ortho) return set;
    throw Error(fmt::format("{} has no Newton-Schulz coefficients", name_of(ortho)));
}

}  // namespace teon
