// --like: the updates of other programs, and what it says.
#include "options/likes.h"

#include <cmath>
#include <fstream>

#include "checkpoint/safetensors.h"
#include "options/parse_options.h"
#include "test/optim/optimizer_run.h"
#include "test/optim/param_tables.h"
#include "test/support/catch.h"
#include "test/support/json.h"
#include "test/support/parse.h"
#include "test/support/temp_dir.h"

using namespace teon;
using namespace teon::test;

namespace {

Options like(const std::string& name, const std::string& flags = "") {
    return *parse(words("--plan-only --like " + name + " " + flags));
}

}  // namespace

TEST_CASE("options/likes: ten steps with --like are those that make_likes.py writes as each program does") {
    const SafetensorsFile inputs("test/golden/optim.safetensors");
    const SafetensorsFile golden("test/golden/likes.safetensors");
    const std::pair<std::string, Role> matrices[] = {
        {"q.0", Role::q}, {"up.0", Role::mlp_up}, {"down.0", Role::mlp_down}};
    ParamTable table;
    for (const auto& [name, role] : matrices) {
        const TensorInfo& t = inputs.at(name);
        ParamRow row = matrix_row(name, role, 0, static_cast<int>(t.shape[0]), static_cast<int>(t.shape[1]));
        row.decay = true;
        table.add(row);
    }
    for (const Like& program : likes()) {
        OptimizerOptions options = like(std::string(program.name), "--lr 0.05").optimizer;
        options.ns_dtype = DType::f32;
        Run run(table, options);
        for (int row = 0; row < table.count(); ++row)
            run.set(run.params.master(row), inputs.read_float(inputs.at(table[row].name)));
        for (int t = 0; t < 10; ++t) {
            for (int row = 0; row < table.count(); ++row) {
                const auto grads = inputs.read_float(inputs.at(table[row].name + ".grads"));
                const int64_t n = table[row].size();
                run.set(run.params.grad(row), std::vector<float>(grads.begin() + t * n, grads.begin() + (t + 1) * n));
            }
            run.step();
        }
        for (int row = 0; row < table.count(); ++row) {
            const auto before = inputs.read_float(inputs.at(table[row].name));
            const auto expected = golden.read_float(golden.at(fmt::format("{}.{}", program.name, table[row].name)));
            const auto after = run.weights(row);
            double difference = 0;
            double moved = 0;
            for (size_t i = 0; i < after.size(); ++i) {
                difference += std::pow(after[i] - expected[i], 2);
                moved += std::pow(expected[i] - before[i], 2);
            }
            // As test/optim/test_teon.cu: float differs from float64 by at most ten updates of 6e-5.
            INFO(program.name << ", " << table[row].name << ": " << std::sqrt(difference / moved));
            REQUIRE(std::sqrt(difference / moved) <= 1e-4);
        }
    }
}

TEST_CASE("options/likes: a flag given beside --like wins, wherever it stands, and is named") {
    const Options o = like("heavyball");
    REQUIRE(o.optimizer.method == Method::muon);
    REQUIRE(o.optimizer.nesterov_form == NesterovForm::ema);
    REQUIRE(o.optimizer.lr == 0.0025f);
    REQUIRE(contains(o.like_text, "heavyball 3.2.1: --optimizer muon --ortho you --nesterov on --nesterov-form ema"));
    REQUIRE(contains(o.like_text, "not repeated: stochastic rounding"));
    REQUIRE(!contains(o.like_text, "other than there"));
    const Options given = *parse(words("--plan-only --lr 0.1 --like heavyball --optimizer teon --nesterov off"));
    REQUIRE(given.optimizer.method == Method::teon);
    REQUIRE(!given.optimizer.nesterov);
    REQUIRE(given.optimizer.lr == 0.1f);
    REQUIRE(given.optimizer.momentum == 0.9f);
    REQUIRE(contains(given.like_text,
                     "other than there: --optimizer teon (there muon), --nesterov off (there on), --lr 0.1 (there "
                     "0.0025)"));
    // The scale and its short form replace one another.
    REQUIRE(scale_of(like("torch", "--update-rms 0.3").optimizer) == UpdateScale::rms);
    REQUIRE(contains(like("torch", "--update-rms 0.3").like_text, "--update-scale rms (there original)"));
    REQUIRE(scale_of(like("torch-rms", "--update-scale none").optimizer) == UpdateScale::none);
    REQUIRE(contains(like("torch-rms", "--update-scale none").like_text, "--update-rms 0 (there 0.2)"));
    REQUIRE_THROWS_AS(like("keller", "--optimizer adamw"), UsageError);
    REQUIRE_THROWS_AS(like("kellar"), UsageError);
}

TEST_CASE("options/likes: a run's config.json has the flags one by one, and a run that goes on keeps them") {
    TempDir folder;
    const Options o = *parse(words("--data x --like moonlight --lr 0.5"));
    const Json options = options_json(kGpt2, o);
    REQUIRE(options["like"] == "moonlight");
    REQUIRE(options["ortho"] == "jordan");
    REQUIRE(options["update-scale"] == "rms");
    const std::string file = folder / "config.json";
    std::ofstream(file) << json_text(
        {{"program", "train_gpt2"}, {"options", options}, {"given", given_json(kGpt2, o)}});
    for (const std::string& flags : {"--resume --out " + folder.path(), "--data x --config " + file}) {
        const Options later = *parse(words(flags));
        REQUIRE(changed_options(kGpt2, options, later).empty());
        REQUIRE(contains(later.like_text, "--lr 0.5 (there 1e-3)"));
    }
    // Another one changes the run.
    const Options other = *parse(words("--data x --like torch --config " + file));
    REQUIRE(other.optimizer.update_scale == UpdateScale::original);
    REQUIRE(!changed_options(kGpt2, options, other).empty());
}
