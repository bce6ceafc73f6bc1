#include "optim/diagnostics.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "optim/unfold.h"

namespace teon {

namespace {

struct Spectrum {
    std::vector<float> left, right;  // top singular vectors, of unit length; empty if not requested
    double nuclear = 0;              // sum of the singular values
};

std::vector<float> download_all(const float* data, int n, const Stream& stream) {
    std::vector<float> values(n);
    download(values.data(), data, n, stream);
    stream.synchronize();
    return values;
}

double dot(std::span<const float> a, std::span<const float> b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += double{a[i]} * b[i];
    return sum;
}

// Measures spectra in memory that is allocated once, for the largest unfolding.
class Spectra {
public:
    // For single slices, with vectors, and pairs in this mode, without.
    Spectra(const std::vector<MomentumSlice>& slices, int mode, Context& context) : ctx_(context) {
        int64_t Z = 0, shortest = 0, longest = 0;
        for (const MomentumSlice& slice : slices) {
            for (const Unfolding& u : {Unfolding(1, slice.m, slice.n, 1, 1), Unfolding(mode, slice.m, slice.n, 2, 1)}) {
                Z = std::max(Z, u.size());
                shortest = std::max<int64_t>(shortest, std::min(u.rows(), u.cols()));
            }
            longest = std::max<int64_t>(longest, std::max(slice.m, slice.n));
        }
        Z_ = Buffer<float>(Z);
        G_ = Buffer<float>(shortest * shortest);
        w_ = Buffer<float>(shortest);
        other_ = Buffer<float>(longest);
    }

    // The slices (of one shape) unfolded into one float matrix.
    Spectrum of(std::span<const MomentumSlice> slices, int mode, bool vectors) {
        const int K = static_cast<int>(slices.size());
        const Unfolding u(mode, slices[0].m, slices[0].n, K, 1);
        std::vector<Slice> infos;
        for (const MomentumSlice& s : slices) infos.push_back({0, s.data - slices[0].data, 0, 0});
        upload(slices_.data(), infos.data(), K, ctx_.stream);
        unfold(Z_.data(), slices[0].data, nullptr, nullptr, nullptr, {slices_.data(), K, u.m, u.n, false}, u.layout(),
               0, ctx_.stream);
        return measure(u, vectors);
    }

private:
    // From the eigenvectors of the short side's Gram matrix G: the top one is u or v, and one product gives the other.
    Spectrum measure(const Unfolding& u, bool vectors) {
        const int rows = u.rows(), cols = u.cols(), s = std::min(rows, cols), l = std::max(rows, cols);
        const bool wide = rows <= cols;
        const Mat z = mat(Z_.data(), u.ld);
        ctx_.linalg.gemm({.M = s,
                          .N = s,
                          .K = l,
                          .trans_a = !wide,
                          .trans_b = wide,
                          .A = z,
                          .B = z,
                          .C = mat(G_.data(), s),
                          .symmetric = true});
        ctx_.linalg.eigh(G_.data(), s, w_.data());
        Spectrum result;
        for (float eigenvalue : download_all(w_.data(), s, ctx_.stream))
            result.nuclear += std::sqrt(std::max(eigenvalue, 0.0f));
        if (!vectors) return result;

        const float* top = G_.data() + int64_t{s - 1} * s;
        ctx_.linalg.gemm(
            {.M = l, .N = 1, .K = s, .trans_a = wide, .A = z, .B = mat(top, 1), .C = mat(other_.data(), 1)});
        std::vector<float> near = download_all(top, s, ctx_.stream), far = download_all(other_.data(), l, ctx_.stream);
        const double length = std::sqrt(dot(far, far));
        for (float& x : far) x = length > 0 ? static_cast<float>(x / length) : 0.0f;
        result.left = wide ? near : far;
        result.right = wide ? far : near;
        return result;
    }

    Context& ctx_;
    Buffer<Slice> slices_{2};
    Buffer<float> Z_, G_, w_, other_;
};

}  // namespace

std::vector<Alignment> measure_alignment(const std::vector<MomentumSlice>& slices, int mode, Context& context) {
    std::vector<Alignment> result;
    if (slices.empty()) return result;
    Spectra spectra(slices, mode, context);
    Spectrum before;  // of slice i - 1
    for (size_t i = 0; i < slices.size(); ++i) {
        const MomentumSlice& slice = slices[i];
        Spectrum own = spectra.of({&slice, 1}, 1, true);
        const bool pair =
            i > 0 && slices[i - 1].role == slice.role && slices[i - 1].m == slice.m && slices[i - 1].n == slice.n;
        if (pair && own.nuclear > 0 && before.nuclear > 0) {
            const double joint = spectra.of({&slices[i - 1], 2}, mode, false).nuclear;
            result.push_back({slice.role, slices[i - 1].layer, slice.layer,
                              static_cast<float>(std::abs(dot(before.left, own.left))),
                              static_cast<float>(std::abs(dot(before.right, own.right))),
                              static_cast<float>((before.nuclear + own.nuclear) / joint)});
        }
        before = std::move(own);
    }
    return result;
}

}  // namespace teon
