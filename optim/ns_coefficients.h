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
    bool steep;     // about 8 at zero: restarts_after() (orthogonalize.h)
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
inline constexpr NsTriple kPolarExpressUnsafe[] = {{8.28721201814563, -23.595886519098837, 17.300387312530933},
                                                   {4.107059111542203, -2.9478499167379106, 0.5448431082926601},
                                                   {3.9486908534822946, -2.908902115962949, 0.5518191394370137},
                                                   {3.3184196573706015, -2.488488024314874, 0.51004894012372},
                                                   {2.300652019954817, -1.6689039845747493, 0.4188073119525673},
                                                   {1.891301407787398, -1.2679958271945868, 0.37680408948524835},
                                                   {1.8750014808534479, -1.2500016453999487, 0.3750001645474248}};
// The triple t of these divided by s.
constexpr NsTriple with_safety(int t, double s) {
    const auto [a, b, c] = kPolarExpressUnsafe[t];
    const double s3 = s * s * s;
    return {a / s, b / s3, c / (s3 * s * s)};
}
inline constexpr NsTriple kPolarExpress[] = {with_safety(0, 1.01), with_safety(1, 1.01), with_safety(2, 1.01),
                                             with_safety(3, 1.01), with_safety(4, 1.01), with_safety(5, 1.01),
                                             with_safety(6, 1.01), {1.875, -1.25, 0.375}};

// The same under a larger divisor and without a margin of the norm: Dao-AILab's gram-newton-schulz 0.1.6.
inline constexpr NsTriple kPolarExpressDao[] = {with_safety(0, 1.05), with_safety(1, 1.05), with_safety(2, 1.05),
                                                with_safety(3, 1.05), with_safety(4, 1.05)};

// Computed for five steps with a safety of 2e-2 and a cushion of 2 by a later form of the paper's algorithm: modded-
// nanogpt, microsoft/dion (0a059a4) and optimuon with 1.02 times the norm, nanochat (92d63d4) with 1.01 times.
inline constexpr NsTriple kPolarExpress2e2[] = {{8.156554524902461, -22.48329292557795, 15.878769915207462},
                                                {4.042929935166739, -2.808917465908714, 0.5000178451051316},
                                                {3.8916678022926607, -2.772484153217685, 0.5060648178503393},
                                                {3.285753657755655, -2.3681294933425376, 0.46449024233003106},
                                                {2.3465413258596377, -1.7097828382687081, 0.42323551169305323}};

// Eight steps by the authors' program of today (cushion 0.02, safety 1e-2), without a margin: timm 1.0.31.
inline constexpr NsTriple kPolarExpressTimm[] = {{8.237312490495555, -23.157747414558198, 16.680568411445915},
                                                 {4.082441999064835, -2.893047735332586, 0.5252849256975648},
                                                 {3.9263479922546582, -2.8547468034765298, 0.5318022422894988},
                                                 {3.2982187133085143, -2.424541981026706, 0.48632008358844075},
                                                 {2.2970369434552573, -1.63662558125903, 0.4002628455953627},
                                                 {1.8763805351440397, -1.2347896577722228, 0.35891887501668385},
                                                 {1.8564423485617974, -1.2132449880935525, 0.3568003487825883},
                                                 {1.8749994008682747, -1.2499988017229169, 0.3749994008546422}};

inline constexpr NsSet kNsSets[] = {{Ortho::jordan, kJordan, 1.0, false},
                                    {Ortho::you, kYou, 1.0, false},
                                    {Ortho::polar_express, kPolarExpress, 1.01, true},
                                    {Ortho::polar_express_dion, kPolarExpress2e2, 1.02, true},
                                    {Ortho::polar_express_nanochat, kPolarExpress2e2, 1.01, true},
                                    {Ortho::polar_express_dao, kPolarExpressDao, 1.0, true},
                                    {Ortho::polar_express_timm, kPolarExpressTimm, 1.0, true}};

// Throws Error for Ortho::svd, which has no coefficients.
inline NsSet ns_set(Ortho ortho) {
    for (const NsSet& set : kNsSets)
        if (set.ortho == ortho) return set;
    throw Error(fmt::format("{} has no Newton-Schulz coefficients", name_of(ortho)));
}

}  // namespace teon
