#include "optim/diagnostics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "optim/unfold.h"

namespace teon {

namespace {

struct Spectrum {
    std::vector<float> top_left;  // singular vector, of unit length; empty if not requested
    std::vector<float> top_right;
    double nuclear = 0;  // sum of the singular values
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

// Returns the spectrum of m x n slices, unfolded into one float matrix, from the eigenvectors of the short side's Gram
// matrix G: the top eigenvector is u or v, and one product gives the other.
Spectrum spectrum_of(std::span<const float* const> slices, int m, int n, int mode, bool vectors, Context& context) {
    const Stream& stream = context.stream;
    const int K = static_cast<int>(slices.size());
    const Unfolding u(mode, m, n, K, 1);
    const int s = std::min(u.rows(), u.cols());
    const int l = std::max(u.rows(), u.cols());
    const bool wide = u.rows() <= u.cols();
    Buffer<float> Z(u.size());
    Buffer<float> G(int64_t{s} * s);
    Buffer<float> w(s);
    Buffer<float> other(l);
    Buffer<Slice> table(K);
    std::vector<Slice> infos;
    for (const float* slice : slices)
        infos.push_back({.grad = 0, .master = 0, .work = 0, .state = slice - slices[0], .rate = {}});
    upload(table.data(), infos.data(), K, stream);
    unfold(Z.data(), slices[0], nullptr, nullptr, nullptr, {table.data(), K, u.m, u.n, false}, u.layout(), {}, stream);
    const Mat z = mat(Z.data(), u.ld);
    context.linalg.gemm({.M = s,
                         .N = s,
                         .K = l,
                         .trans_a = !wide,
                         .trans_b = wide,
                         .A = z,
                         .B = z,
                         .C = mat(G.data(), s),
                         .symmetric = true});
    context.linalg.eigh(G.data(), s, w.data());
    Spectrum result;
    for (float eigenvalue : download_all(w.data(), s, stream)) result.nuclear += std::sqrt(std::max(eigenvalue, 0.0f));
    if (!vectors) return result;

    const float* top = G.data() + int64_t{s - 1} * s;
    context.linalg.gemm({.M = l, .N = 1, .K = s, .trans_a = wide, .A = z, .B = mat(top, 1), .C = mat(other.data(), 1)});
    std::vector<float> near = download_all(top, s, stream);
    std::vector<float> far = download_all(other.data(), l, stream);
    const double length = std::sqrt(dot(far, far));
    for (float& x : far) x = length > 0 ? static_cast<float>(x / length) : 0.0f;
    result.top_left = wide ? near : far;
    result.top_right = wide ? far : near;
    return result;
}

}  // namespace

std::vector<Alignment> measure_alignment(const std::vector<MomentumSlice>& slices,
                                         const std::function<const float*(size_t)>& data_of, int mode,
                                         Context& context) {
    std::vector<Alignment> result;
    Spectrum before;                        // of slice i - 1
    std::array<const float*, 2> data = {};  // of slices i - 1 and i
    for (size_t i = 0; i < slices.size(); ++i) {
        const MomentumSlice& slice = slices[i];
        data = {data[1], data_of(i)};
        Spectrum spectrum = spectrum_of({&data[1], 1}, slice.m, slice.n, 1, true, context);
        const bool pair =
            i > 0 && slices[i - 1].role == slice.role && slices[i - 1].m == slice.m && slices[i - 1].n == slice.n;
        if (pair && spectrum.nuclear > 0 && before.nuclear > 0) {
            const double joint = spectrum_of(data, slice.m, slice.n, mode, false, context).nuclear;
            result.push_back({slice.role, slices[i - 1].layer, slice.layer,
                              static_cast<float>(std::abs(dot(before.top_left, spectrum.top_left))),
                              static_cast<float>(std::abs(dot(before.top_right, spectrum.top_right))),
                              static_cast<float>((before.nuclear + spectrum.nuclear) / joint)});
        }
        before = std::move(spectrum);
    }
    return result;
}

int64_t diagnostics_bytes(const ParamTable& params, int ranks) {
    int64_t size = 0;
    int64_t side = 0;
    for (const ParamRow& row : params.rows())
        if (is_hidden_matrix(row.role)) {
            size = std::max(size, row.size());
            side = std::max<int64_t>(side, std::min(row.rows, row.cols));
        }
    const int64_t gram = 4 * side * side;  // a pair's unfolding has up to twice a slice's short side; eigh() doubles it
    return 4 * ((ranks > 1 ? 4 : 2) * size + 2 * gram);
}

}  // namespace teon
