// Newton-Schulz in 16 bits against float64: the tables of docs/optimizers.md, "Rounding".
#include <map>

#include "test/model/small_decoder.h"
#include "test/optim/rounding.h"
#include "test/support/device_batch.h"

using namespace teon;
using namespace teon::test;

TEST_CASE("optim/orthogonalize: 16-bit Newton-Schulz is near float64 on every spectrum, for every set") {
    // The largest distances of docs/optimizers.md, "Rounding", by spectrum.
    const struct {
        Ortho ortho;
        double bf16[4], f16[4];
    } table[] = {{Ortho::jordan, {.016, .021, .065, .118}, {.0017, .0049, .0193, .0213}},
                 {Ortho::you, {.006, .017, .059, .110}, {.0008, .0029, .0156, .0176}},
                 {Ortho::polar_express, {.020, .026, .096, .202}, {.0035, .0046, .0511, .0580}}};
    Context context;
    for (auto [rows, cols] : {std::pair(128, 384), std::pair(384, 128)})
        for (Spectrum spectrum : kSpectra) {
            const Matrix x = input(spectrum, rows, cols, 5);
            for (const auto& row : table) {
                const Matrix expected = newton_schulz(x, ns_set(row.ortho), 5);
                for (NsForm form : {NsForm::standard, NsForm::gram})
                    for (DType dtype : {DType::bf16, DType::f16}) {
                        const OrthoMethod method{row.ortho, 5, form, dtype};
                        const double distance = check_method(context, x, expected, method);
                        INFO(name_of(row.ortho) << ", spectrum " << int(spectrum) << ": " << distance);
                        const double figure = (dtype == DType::bf16 ? row.bf16 : row.f16)[int(spectrum)];
                        // Another order of sums rounds other elements the other way.
                        REQUIRE(distance <= 1.25 * figure);
                    }
            }
        }
}

namespace {

// The momenta of the long matrices of a short run, as Muon and Teon orthogonalize them: those of the MLP, and those of
// Q, K and V of both layers side by side. The targets follow from the tokens, so that the model learns.
std::vector<Matrix> momenta_of_a_run(int channels, uint64_t seed) {
    DecoderConfig c = small_config("gpt2");
    c.L = 2;
    c.C = channels;
    c.F = 4 * channels;
    c.NH = c.NKV = 2;
    c.init_std = 0.05f;
    ModelRunner run(c, small_run(DType::f32));
    const ParamTable& table = run.model->table();
    std::vector<float> momentum(static_cast<size_t>(table.size()));
    for (uint64_t step = 0; step < 8; ++step) {
        const std::vector<int> tokens = random_ints(int64_t{B} * T, 50 * seed + step, c.V);
        std::vector<int> targets;
        for (const int token : tokens) targets.push_back((3 * token + 1) % c.V);
        const DeviceBatch batch(tokens, targets, B, T, run.context.stream);
        run.loss(batch, true);
        const std::vector<float> gradients = run.gradients();
        std::vector<float> weights = run.masters();
        for (size_t i = 0; i < weights.size(); ++i) {
            momentum[i] = 0.95f * momentum[i] + gradients[i];
            weights[i] -= 0.05f * momentum[i];
        }
        run.set_masters(weights);
    }
    std::map<Role, std::vector<Matrix>> of_role;
    for (const ParamRow& row : table.rows())
        if (is_hidden_matrix(row.role))
            of_role[row.role].push_back(to_matrix(
                {momentum.begin() + row.offset, momentum.begin() + row.offset + row.size()}, row.rows, row.cols));
    std::vector<Matrix> momenta;
    for (const auto& [role, layers] : of_role) {
        if (role == Role::mlp_up || role == Role::mlp_down) momenta.insert(momenta.end(), layers.begin(), layers.end());
        if (role == Role::q || role == Role::k || role == Role::v) momenta.push_back(matricize(layers, 1));
    }
    return momenta;
}

std::vector<double> falling(int r, double first, double last) {
    std::vector<double> sigma;
    for (int i = 0; i < r; ++i) sigma.push_back(first + (last - first) * i / (r - 1));
    return sigma;
}

}  // namespace

// Small matrices average few roundings: two steps on R, as on long sides, would lose half of a momentum of 32 rows.
TEST_CASE("optim/orthogonalize: polar-express in bf16 is near float64 on short sides, also of a run's momenta") {
    // The table of docs/optimizers.md, "Rounding": Gaussian, .62 to .02, 1/i, 1e-3, 1e-6, a run's momenta.
    const struct {
        int side;
        double distance[6];
    } table[] = {{12, {.045, .026, .036, .169, .412, .179}},
                 {20, {.023, .020, .017, .118, .358, .098}},
                 {32, {.021, .019, .017, .113, .295, .065}},
                 {64, {.019, .015, .014, .099, .224, .035}},
                 {128, {.024, .027, .026, .101, .202, .064}}};
    Context context;
    for (const auto& row : table) {
        const int side = row.side;
        std::vector<std::vector<Matrix>> kinds(6);
        for (uint64_t seed = 1; seed <= 128U / side; ++seed) {
            for (const auto& [rows, cols] : {std::pair(side, (5 * side + 2) / 3), std::pair(3 * side, side)}) {
                kinds[0].push_back(input(Spectrum::gaussian, rows, cols, seed));
                kinds[1].push_back(rounded(with_spectrum(rows, cols, falling(side, .62, .02), seed)));
                kinds[2].push_back(input(Spectrum::harmonic, rows, cols, seed));
                kinds[3].push_back(input(Spectrum::log3, rows, cols, seed));
                kinds[4].push_back(input(Spectrum::log6, rows, cols, seed));
            }
            for (Matrix& momentum : momenta_of_a_run(side, seed)) kinds[5].push_back(std::move(momentum));
        }
        for (size_t kind = 0; kind < kinds.size(); ++kind) {
            INFO("side " << side << ", kind " << kind);
            for (const Matrix& x : kinds[kind]) {
                const Matrix expected = newton_schulz(x, ns_set(Ortho::polar_express), 5);
                for (NsForm form : {NsForm::standard, NsForm::gram})
                    // Another order of sums rounds other elements the other way.
                    REQUIRE(check_method(context, x, expected, {Ortho::polar_express, 5, form, DType::bf16}) <=
                            1.25 * row.distance[kind]);
            }
        }
    }
}
