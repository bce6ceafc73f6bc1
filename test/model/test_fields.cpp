#include "model/fields.h"

#include "model/gpt2.h"
#include "model/hf_config.h"
#include "model/llama.h"
#include "plan/description.h"

#include "options/parse_options.h"
#include "test/support/catch.h"
#include "test/support/json.h"

using namespace teon;
using namespace teon::test;

namespace {

// LLaMA with a field that no other table has: smaller initial residual weights.
ModelFamily with_new_field() {
    ModelFamily family = llama_family();
    family.fields.push_back({.key = "small_residuals",
                             .member = &DecoderConfig::scaled_residual_init,
                             .help = "start the residual projections smaller",
                             .default_text = "preset's",
                             .in_preset = false});
    return family;
}

ModelFamily with_new_key() {
    ModelFamily family = with_new_field();
    family.hf_keys.push_back({"small_residuals_hf", "small_residuals", always(false)});
    return family;
}

Options parse(const ModelFamily& family, std::vector<const char*> flags) {
    flags.insert(flags.begin(), {"train_llama", "--plan-only", "--model", "tiny", "--steps", "10"});
    return *parse_options(family, static_cast<int>(flags.size()), flags.data());
}

RunPlan plan(const ModelFamily& family, const Options& options) { return plan_run(family, options, true, 1); }

constexpr auto message_of = [](auto f) { return error_of<UsageError>(f); };

}  // namespace

TEST_CASE("model/fields: a new row has a flag and is part of a run's description") {
    const ModelFamily family = with_new_key();
    const RunPlan changed = plan(family, parse(family, {"--small-residuals"}));
    const RunPlan unchanged = plan(family, parse(family, {}));
    REQUIRE(changed.config.scaled_residual_init);
    REQUIRE(!unchanged.config.scaled_residual_init);
    REQUIRE(run_json(changed)["model"]["small_residuals"] == true);
    REQUIRE(run_json(changed)["options"]["small-residuals"] == true);
    REQUIRE(run_json(unchanged)["model"]["small_residuals"] == false);
    REQUIRE(run_json(unchanged)["options"]["small-residuals"] == Json());
    REQUIRE(deciding_options(family, changed.options).contains("small-residuals") == false);  // it is part of the model
}

TEST_CASE("model/fields: a run resumes only with the same value; a checkpoint without it has the preset's") {
    const ModelFamily family = with_new_key();
    const RunPlan setup = plan(family, parse(family, {"--small-residuals"}));
    TrainingState saved;
    saved.run = run_json(setup);
    check_unchanged(setup, saved);
    saved.run["model"].erase("small_residuals");
    saved.run["options"].erase("small-residuals");
    REQUIRE(message_of([&] { check_unchanged(setup, saved); }).find("small_residuals true (was false)") !=
            std::string::npos);
    const RunPlan unchanged = plan(family, parse(family, {}));
    check_unchanged(unchanged, saved);
}

TEST_CASE("model/fields: a new flag that contradicts the model of --init-from is refused by name") {
    const ModelFamily family = with_new_key();
    Options options = parse(family, {"--small-residuals", "on"});
    options.adopted = PublishedModel{"folder", family.config("tiny"), {}, {}, {}, "", 0};
    REQUIRE(message_of([&] { plan(family, options); }).starts_with("--small-residuals true: the model of --init-from"));
    options.adopted->config.scaled_residual_init = true;
    REQUIRE(plan(family, options).config.scaled_residual_init);
}

TEST_CASE("model/fields: the model of --init-from does not decide the dropout of a run") {
    const ModelFamily family = llama_family();
    for (const char* p : {"0", "0.2"}) {
        Options options = parse(family, {"--dropout", p});
        options.adopted = PublishedModel{"folder", family.config("tiny"), {}, {}, {}, "", 0.1f};
        REQUIRE(plan(family, options).config.dropout == std::stof(p));
        REQUIRE(run_json(plan(family, options))["model"]["dropout"] == std::stod(p));
    }
    Options options = parse(family, {});
    options.adopted = PublishedModel{"folder", family.config("tiny"), {}, {}, {}, "", 0.1f};
    REQUIRE(plan(family, options).config.dropout == 0);
}

TEST_CASE("model/fields: without a Hugging Face key, a new field can only be exported with its default") {
    DecoderConfig c = llama_family().config("tiny");
    REQUIRE(hf_config(with_new_field(), c) == hf_config(llama_family(), c));
    c.scaled_residual_init = true;
    REQUIRE(message_of([&] { hf_config(with_new_field(), c); }).starts_with("--small-residuals true: cannot be saved"));
    REQUIRE(message_of([&] {
                plan(with_new_field(), parse(with_new_field(), {"--small-residuals"}));
            }).starts_with("--small-residuals true: cannot be saved"));
    const Json written = hf_config(with_new_key(), c);
    REQUIRE(written["small_residuals_hf"] == true);
    REQUIRE(decoder_config(written, {with_new_key()}, "config.json").scaled_residual_init);
    c = gpt2_family().config("tiny");
    c.mlp_biases = false;
    REQUIRE(message_of([&] { hf_config(gpt2_family(), c); }).starts_with("mlp_biases false: cannot be saved"));
}

TEST_CASE("model/fields: every row returns the value it is set to, and refuses other types by name") {
    for (const ModelField& f : model_fields()) {
        INFO(f.key);
        DecoderConfig c = llama_family().config("tiny");
        const Json value = f.get(c);
        f.set(c, value, f.key);
        REQUIRE(f.get(c) == value);
        for (const Json& bad : {value.is_text() ? Json(1) : Json("many"), Json(), Json(-1)})
            REQUIRE(message_of([&] { f.set(c, bad, "x.json: " + f.key); }).starts_with("x.json: " + f.key));
        REQUIRE(model_json(model_fields(), c).contains(f.key) == f.logged);
    }
}
