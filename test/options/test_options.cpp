#include <fmt/ranges.h>
#include "options/parse_options.h"

#include <fstream>
#include <sstream>

#include "optim/methods.h"
#include "optim/stacks.h"
#include "options/option_table.h"
#include "test/support/catch.h"
#include "test/support/json.h"
#include "test/support/parse.h"
#include "test/support/temp_dir.h"

using namespace teon;
using namespace teon::test;

namespace {

std::vector<std::string> commands(const std::string& text) {
    std::vector<std::string> parts;
    std::istringstream in(text);
    for (std::string part; std::getline(in, part, ';');) parts.push_back(part);
    return parts;
}

// Adds --plan-only. A plan needs no data, so any error is about the other flags.
std::vector<std::string> with_plan(std::vector<std::string> flags) {
    flags.push_back("--plan-only");
    return flags;
}

struct BadFlags {
    std::vector<std::string> flags;
    std::vector<std::string> message_parts;
};
const std::vector<BadFlags> kBadFlags = {
    {{"--attention", "flash", "--dtype", "float"}, {"--attention flash", "--dtype bf16", "--attention gemm"}},
    {{"--attention", "flash", "--dtype", "bf16", "--heads", "24"}, {"--attention flash", "head size", "32"}},
    {{"--matmul-dtype", "fp8", "--dtype", "float"}, {"--matmul-dtype fp8", "--dtype bf16", "float"}},
    {{"--matmul-dtype", "fp8-e4m3", "--dtype", "bf16", "--seq-len", "1000", "--batch-tokens", "1000"},
     {"--matmul-dtype fp8-e4m3", "--seq-len 1000", "16"}},
    {{"--matmul-dtype", "fp8", "--dtype", "bf16", "--ffn", "1000"}, {"--matmul-dtype fp8", "--ffn 1000", "16"}},
    {{"--matmul-dtype", "e4m3"}, {"--matmul-dtype e4m3", "fp8-e4m3"}},
    {{"--fast-accumulation"}, {"--fast-accumulation has no meaning without --matmul-dtype fp8 or fp8-e4m3"}},
    {{"--layers", ""}, {"--layers"}},
    {{"--layers"}, {"--layers"}},
    {{"--layers", "2", "--layers", "3"}, {"--layers: given 2 times (2, 3)"}},
    {{"--channels", "100", "--heads", "12"}, {"--channels 100", "--heads 12"}},
    {{"--micro-batch", "7", "--batch-tokens", "524288"}, {"--micro-batch 7", "512 sequences"}},
    {{"--steps", "10", "--tokens", "1e9"}, {"--steps and --tokens", "give one"}},
    {{"--steps", "10", "--epochs", "1"}, {"--steps and --epochs"}},
    {{"--profile-steps", "9:11", "--steps", "10"}, {"--profile-steps 9:11", "10 steps"}},
    {{"--momentum", "0.9"}, {"--momentum", "--optimizer muon, normuon or teon"}},
    {{"--optimizer", "muon", "--teon-k", "2"}, {"--teon-k", "--optimizer teon"}},
    {{"--optimizer", "teon", "--teon-roles", "q,z"}, {"--teon-roles z", "mlp-up"}},
    {{"--optimizer", "teon", "--teon-roles", "mlp-gate"}, {"mlp-gate"}},
    {{"--optimizer", "teon", "--ortho", "svd", "--ns-steps", "5"}, {"--ns-steps", "without --ortho jordan, you"}},
    {{"--optimizer", "muon", "--lr-scale", "bias=1"}, {"--lr-scale bias"}},
    {{"--constant-ratio", "0.4"}, {"--constant-ratio", "constant-linear or constant-sqrt"}},
    {{"--keep-every", "100"},
     {"--keep-every has no meaning without --keep-last N; give that, or leave out --keep-every"}},
    {{"--neuron-beta2", "0.9", "--optimizer", "muon"}, {"--neuron-beta2", "--neuron-norm or --optimizer normuon"}},
    {{"--offload-blocks", "3", "--offload", "optimizer"}, {"--offload-blocks", "--offload activations or all"}},
    {{"--resume"}, {"--resume", "--out"}},
    {{"--prompt", "x"}, {"--prompt", "--sample-every"}},
    {{"--top-p", "0.9"}, {"--top-p", "--sample-every"}},
    {{"--sample-every", "5", "--prompt-tokens", "1,x"}, {"--prompt-tokens x", "15496,995"}},
    {{"--hellaswag", "x"}, {"--hellaswag", "--eval-only"}},
    {{"--eval-only"}, {"--eval-only", "--init-from"}},
    {{"--eval-only", "--init-from", "x"}, {"--eval-only", "--val-data", "--hellaswag"}},
    {{"--leyers", "3"}, {"--leyers", "did you mean --layers"}},
    {{"-l", "3"}, {"-l: no such flag; did you mean --lr"}},
    {{"--setps", "3"}, {"--setps: no such flag; did you mean --steps?"}},
    {{"--learning-rate", "3"}, {"--learning-rate: no such flag; write --lr X"}},
    {{"--learning_rate=3"}, {"--learning_rate: no such flag; write --lr X"}},
    {{"--bf16"}, {"--bf16: no such flag; write --dtype bf16"}},
    {{"--wandb"}, {"--wandb: no such flag; ", "scripts/follow.py"}},
    {{"--warmup-iters", "8"}, {"--warmup-iters: no such flag", "--warmup-steps"}},
    {words("--warmup-steps 8 --warmup-ratio 0.1"), {"--warmup-steps and --warmup-ratio: give one of them"}},
    {{"--max_iters=8"}, {"--max_iters: no such flag; write --steps N"}},
    {{"--num-epochs", "8"}, {"--num-epochs: no such flag; write --epochs X"}},
    {{"--min-lr", "8"}, {"--min-lr: no such flag; write --min-lr-ratio X"}},
    {{"--out_dir", "8"}, {"--out_dir: no such flag; write --out FOLDER"}},
    {{"--max-tokens", "8"}, {"--max-tokens: no such flag; write --tokens N"}},
    {{"--resume-from-checkpoint", "8"}, {"no such flag; write --resume --out FOLDER"}},
    {{"--resume", "no/such/run"}, {"no/such/run", "no such folder"}},
    {{"--gpus", "8"}, {"--gpus: no such flag; start one process per GPU with python3 scripts/launch/local.py -n N"}},
    {{"stray"}, {"stray"}},
    {{"--out", "a", "resume"}, {"\"resume\"", "not expected here"}},
    {{"--out", "a", "--out", "b"}, {"--out: given 2 times (a, b)"}},
    {{"--lr", "1e-3", "--lr", "2e-3"}, {"--lr: given 2 times (1e-3, 2e-3)"}},
    {{"--rope-base", "1e4"}, {"--rope-base", "no such flag"}},
    {{"--schedule", "constant", "--min-lr-ratio", "0.5"},
     {"--min-lr-ratio has no meaning", "--schedule cosine, linear"}},
    {{"--config", "/no/such/file.toml"}, {"/no/such/file.toml", "cannot be opened"}},
    {{"--config", "/dev/zero"}, {"/dev/zero", "not a regular file"}},
    {{"--config", "/"}, {"/: is a directory"}},
    {{"--config"}, {"--config: needs a value"}},
    {{"--config", ""}, {"--config: needs a value"}},
    {{"--config=x", "--config=y"}, {"--config: given 2 times (x, y)"}},
    {{"resume"}, {"\"resume\"", "not expected here", "--resume"}},
    {{"--layers", "3", "resume"}, {"\"resume\"", "--resume"}},
    {{"--out", "runs/a\xff"}, {"--out \"runs/a\\ufffd\"", "not a text in UTF-8"}},
    {{"--ou\xff", "x"}, {"no such flag", "--out"}},
    {{"\xff\n"}, {"\\ufffd\\n", "not expected here"}},
    {{"--layers", "--heads", "3"}, {"--layers: needs a value"}},
    {{"--"}, {"--: no such flag"}},
    {{"--=3"}, {"--: no such flag"}},
    {{""}, {"not expected here"}},
    {{"--" + std::string(100000, 'x')}, {"no such flag"}},
    {{"--lr-scale", "head=2", "--optimizer", "muon"}, {"--lr-scale", "no head", "token embedding"}},
    {{"--lr-scale", "q=0", "--optimizer", "muon"}, {"--lr-scale q=0", "above 0"}},
    {{"--update-rms", "0.2"}, {"--update-rms", "--optimizer muon, normuon or teon"}},
    {words("--optimizer muon --update-scale original --update-rms 0.2"),
     {"--update-scale original", "--update-rms 0.2"}},
    {words("--optimizer muon --update-rms 0.2 --update-scale spectral"), {"--update-scale spectral", "leave out one"}},
    {words("--optimizer muon --update-scale rms --update-rms 0"), {"--update-scale rms", "--update-rms 0.2"}},
    {words("--optimizer muon --nesterov-form ema"), {"--nesterov-form has no meaning without --nesterov"}},
    {words("--optimizer muon --momentum-start 0.5"), {"has no meaning without --momentum-warmup N"}},
    {{"--adamw-weight-decay", "0.2"}, {"--adamw-weight-decay", "--optimizer muon, normuon or teon"}},
};

// The last flag with its value, and another part of the message.
const std::pair<const char*, const char*> kBadValues[] = {
    {"--layers 0", "between 1 and"},
    {"--attention fast", "auto, gemm, flash"},
    {"--layers -3", "between"},
    {"--layers two", "not a whole number"},
    {"--layers 2.5", "not a whole number"},
    {"--layers 1e99", "between"},
    {"--kv-heads 6", "GPT-2"},
    {"--dtype fp16", "float, bf16"},
    {"--recompute all", "none, cheap, block, auto"},
    {"--model medium", "tiny, small, base, large"},
    {"--batch-tokens 1000", "1024"},
    {"--tokens 5", "less than one step"},
    {"--optimizer sgd", "adamw, lion, muon, normuon, teon"},
    {"--profile-steps 3", "10:12"},
    {"--profile-steps 3:2", "10:12"},
    {"--profile-steps 0:2", "10:12"},
    {"--profile-steps 1:2.5", "10:12"},
    {"--lr fast", "not a number"},
    {"--optimizer teon --teon-mode 4", "1 and 3"},
    {"--optimizer teon --ortho qr", "polar-express"},
    {"--optimizer muon --lr-scale q", "role=factor"},
    {"--optimizer muon --nesterov maybe", "on or off"},
    {"--schedule sawtooth", "cosine"},
    {"--on-save-error ignore", "continue, stop"},
    {"--time-limit soon", "23h50m"},
    {"--completion zsh", "bash"},
};

}  // namespace

TEST_CASE("options/options: bad flags are rejected in one line that names flag, value and fix") {
    auto check = [](const std::vector<std::string>& flags, const std::vector<std::string>& says) {
        const std::string said = complaint(with_plan(flags));
        INFO(fmt::format("{}: {}", fmt::join(flags, " "), said));
        for (const std::string& part : says) REQUIRE(contains(said, part));
        REQUIRE(!contains(said, "\n"));
    };
    for (const BadFlags& bad : kBadFlags) check(bad.flags, bad.message_parts);
    auto check_value = [&](const std::string& flags, const char* says) {
        const size_t last = flags.rfind("--");
        check(words(flags), {flags.substr(last), says});
    };
    for (const auto& [flags, says] : kBadValues) check_value(flags, says);
    for (const std::string& flags : commands(
             "--layers 2x;--layers nan;--layers inf;--heads 7;--kv-heads 5;--ffn 0;--vocab-size 1;--seq-len 0;"
             "--batch-tokens -1;--micro-batch 0;--steps 0;--epochs -1;--lr -1;--lr nan;--lr 1e-3,1e-4;--beta1 1;"
             "--beta2 1.5;--eps -1e-8;--weight-decay -0.1;--grad-clip -1;--momentum 1;--optimizer teon --teon-k 0;"
             "--optimizer teon --teon-roles norm;--optimizer teon --ns-steps 0;--optimizer teon --ns-form fast;"
             "--optimizer muon --lr-scale q=x;--warmup-ratio 1.1;--min-lr-ratio -0.1;--seed -1;--eval-every -1;"
             "--log-every 0;--checkpoint-every -1;--time-limit 5m1h;--time-limit 0;--max-skipped -1;--skip-spikes -2;"
             "--warn-spikes many;--sample-every 5 --temperature -1;--sample-every 5 --top-k -1"))
        check_value(flags, "");
    REQUIRE(contains(complaint({}), "--data: missing"));
    REQUIRE(contains(complaint({"--data", "/no/such/folder"}), "/no/such/folder"));
}

TEST_CASE("options/options: quantities, lists and switches are read as people write them") {
    const auto o = *parse({"--plan-only", "--batch-tokens=512Ki", "--tokens", "1e9", "--optimizer", "teon",
                           "--nesterov", "--teon-roles", "q,mlp-up", "--lr-scale", "q=0.5,o=2", "--shuffle", "off"});
    REQUIRE(o.batch_tokens == 524288);
    REQUIRE(o.tokens == 1000000000);
    REQUIRE(o.optimizer.nesterov);
    REQUIRE(!o.shuffle);
    REQUIRE(o.optimizer.teon_roles == std::set<Role>{Role::q, Role::mlp_up});
    REQUIRE(o.optimizer.lr_scale == std::map<Role, float>{{Role::q, 0.5f}, {Role::o, 2.0f}});
    REQUIRE(!o.adamw_lr);  // follows the model's width, not --lr
    const auto words = *parse({"--plan-only", "--data", "a", "b", "--out", "c", "--optimizer", "teon", "--teon-roles",
                               "q", "k", "--teon-roles", "v"});
    REQUIRE(words.data == "a,b");
    REQUIRE(words.out == "c");
    REQUIRE(words.optimizer.teon_roles == std::set<Role>{Role::q, Role::k, Role::v});
}

TEST_CASE("options/options: --update-rms alone is --update-scale rms, whose size is 0.2 unless given") {
    const auto scale = [](const std::string& flags) {
        const Json j = options_json(kGpt2, *parse(words("--plan-only --optimizer muon " + flags)));
        return fmt::format("{} {}", j["update-scale"].get<std::string>(), j["update-rms"].number());
    };
    REQUIRE(scale("") == "spectral 0");
    REQUIRE(scale("--update-rms 0.3") == "rms 0.3");
    REQUIRE(scale("--update-rms 0") == "spectral 0");
    REQUIRE(scale("--update-scale rms") == "rms 0.2");
    REQUIRE(scale("--update-scale rms --update-rms 0.3") == "rms 0.3");
    REQUIRE(scale("--update-scale original") == "original 0");
    // A run of a version without --update-scale continues.
    TempDir folder;
    Json old = options_json(kGpt2, *parse(words("--data x --optimizer muon --update-rms 0.3")));
    old.erase("update-scale");
    std::ofstream(folder / "config.json") << json_text({{"program", "train_gpt2"}, {"options", old}});
    const Options o = *parse({"--resume", folder.path()});
    REQUIRE(scale_of(o.optimizer) == UpdateScale::rms);
    REQUIRE(o.optimizer.update_rms == 0.3f);
}

TEST_CASE("options/options: wsd is constant-linear, and a ratio of warmup steps replaces a number of them") {
    const Options o = *parse(words("--plan-only --schedule wsd --constant-ratio 0.8 --warmup-steps 7"));
    REQUIRE(o.schedule.kind == ScheduleKind::constant_linear);
    REQUIRE(options_json(kGpt2, o)["schedule"] == "constant-linear");
    TempDir folder;
    std::ofstream(folder / "config.json")
        << json_text({{"program", "train_gpt2"}, {"options", options_json(kGpt2, o)}, {"given", given_json(kGpt2, o)}});
    const std::string again = "--plan-only --config " + (folder / "config.json");
    REQUIRE(parse(words(again))->warmup_steps == 7);
    REQUIRE(parse(words(again + " --warmup-ratio 0.5"))->warmup_steps == -1);
}

TEST_CASE("options/options: names and switches are read in upper and lower case") {
    const auto o = *parse({"--plan-only", "--optimizer", "AdamW", "--dtype", "BF16", "--model", "Small", "--shuffle",
                           "Off", "--plan-for", "H100"});
    REQUIRE(o.optimizer.method == Method::adamw);
    REQUIRE(o.dtype == DType::bf16);
    REQUIRE(o.model == "small");
    REQUIRE(!o.shuffle);
    REQUIRE(o.plan_for == "h100");
    REQUIRE(parse({"--plan-only", "--optimizer", "TEON", "--teon-roles", "Q,MLP-up"})->optimizer.teon_roles ==
            std::set<Role>{Role::q, Role::mlp_up});
}

TEST_CASE("options/options: --resume takes the run's folder as its value, and a stray folder is told how to continue") {
    TempDir folder;
    std::ofstream(folder / "config.json")
        << json_text({{"program", "train_gpt2"}, {"options", options_json(kGpt2, *parse({"--data", "x"}))}});
    const Options o = *parse({"--resume", folder.path()});
    REQUIRE(o.resume);
    REQUIRE(o.out == folder.path());
    REQUIRE(o.data == "x");
    REQUIRE(parse({"--resume", folder.path(), "--out", folder.path()})->out == folder.path());
    REQUIRE(contains(complaint({"--resume", folder.path(), "--out", "other"}), "--out is other"));
    REQUIRE(contains(complaint({folder.path()}), "write --resume --out " + folder.path()));
}

TEST_CASE("options/options: counts and bytes take the suffixes of prepare.py") {
    const std::pair<const char*, int64_t> cases[] = {
        {"100M", 100'000'000}, {"0.5M", 500'000}, {"4.1M", 4'100'000}, {"40G", 40'000'000'000},
        {"1B", 1'000'000'000}, {"2k", 2000},      {"2K", 2000},        {"1.5Ki", 1536}};
    for (const auto& [text, count] : cases) {
        INFO(text);
        REQUIRE(parse({"--plan-only", "--tokens", text})->tokens == count);
        REQUIRE(parse({"--plan-only", "--memory", text})->memory == count);
    }
    for (const char* text : {"M", "1MM", "1e3e3M", "1kM", "0x1B", "0.0005k", "1Mii", "1 M"}) {
        INFO(text);
        REQUIRE(contains(complaint({"--plan-only", "--tokens", text}), "not a whole number"));
    }
    TempDir folder;
    std::ofstream(folder / "run.toml") << "tokens = \"100M\"\n";
    REQUIRE(parse({"--plan-only", "--config", folder / "run.toml"})->tokens == 100'000'000);
}

TEST_CASE("options/options: a config file sets what the command line does not") {
    TempDir folder;
    const std::string path = folder / "run.toml";
    std::ofstream(path)
        << "optimizer = \"teon\"\nlr = 0.02\nlayers = 3\nteon-roles = [\"q\", \"k\"]\nnesterov = true\n";
    const auto o = *parse({"--plan-only", "--config", path, "--layers", "5"});
    REQUIRE(o.optimizer.method == Method::teon);
    REQUIRE(o.optimizer.lr == 0.02f);
    REQUIRE(o.fields == Json{{"layers", 5}});
    REQUIRE(o.optimizer.nesterov);
    REQUIRE(o.optimizer.teon_roles == std::set<Role>{Role::q, Role::k});
    std::ofstream(path) << "batch-tokens = \"512Ki\"\ntime-limit = \"1h\"\nshuffle = \"off\"\n";
    REQUIRE(parse({"--plan-only", "--config", path})->batch_tokens == 524288);
    const std::pair<const char*, const char*> bad[] = {
        {"lr = [0.02, 0.03]\n", "line 1: lr takes one value, not a list"},
        {"layers = \"5\"\n", "line 1: layers takes a number, not \"5\""},
        {"layers = true\n", "line 1: layers takes a number, not true"},
        {"data = true\n", "line 1: data takes a text, a number or a list, not true"},
        {"out = 5\n", "line 1: out takes a text in quotes, not 5"},
        {"out = \"a\\u0000b\"\n", "line 1: out holds the character NUL"},
        {"nesterov = 1\n", "line 1: nesterov takes true or false, not 1"},
        {"time-limit = true\n", "line 1: time-limit takes seconds"},
        {"leyers = 3\n", "line 1: there is no flag 'leyers'; did you mean --layers?"},
        {"\n# comment\nlayers = 0\n", "line 3: --layers 0: must be"},
        {"config = \"other.toml\"\n", "line 1: there is no flag 'config'"},
        {"out = \"\xff\"\n", "is not a text in UTF-8"},
        {"", "is empty"}};
    for (const auto& [text, says] : bad) {
        std::ofstream(path) << text;
        INFO(text);
        REQUIRE(complaint({"--plan-only", "--config", path}).starts_with(path + ": " + says));
    }
}

TEST_CASE(
    "options/options: with a damaged config.json a run resumes by its flags; without them the damage is reported") {
    TempDir folder;
    const std::string path = folder / "config.json";
    for (const char* text :
         {"{\"program\": \"train_g", R"({"program": "train_gpt2", "options": {"lr": 0.5, "seed": "x"}})"}) {
        std::ofstream(path) << text;
        const Options o = *parse({"--resume", "--out", folder.path(), "--data", "x", "--steps", "3"});
        REQUIRE(o.config_fault.find(path) == 0);
        REQUIRE(o.optimizer.lr == 3e-4f);
        REQUIRE(o.steps == 3);
        REQUIRE(complaint({"--resume", "--out", folder.path()}) == o.config_fault);
        REQUIRE(complaint({"--resume", "--out", folder.path(), "--data", "x", "--plan-only"}) == o.config_fault);
    }
}

TEST_CASE("options/options: the config.json of a run on many shards can be used") {
    TempDir folder;
    Json shards = Json::array();
    for (int i = 0; i < 10'000; ++i)
        shards.push_back({{"file", fmt::format("/data/fineweb/{}_{:06}.bin", std::string(80, 'x'), i)}, {"tokens", i}});
    const Json j = {{"program", "train_gpt2"},
                    {"options", options_json(kGpt2, *parse({"--data", "x", "--lr", "0.02"}))},
                    {"data", {{"train", shards}}}};
    const std::string text = json_text(j);
    REQUIRE(text.size() > 1 << 20);
    std::ofstream(folder / "config.json") << text;
    REQUIRE(parse({"--resume", "--out", folder.path()})->optimizer.lr == 0.02f);
}

namespace {

// A run's folder with its config.json.
struct SavedRun {
    TempDir folder;
    const std::string path = folder / "config.json";

    void save(const std::vector<std::string>& flags, const char* program = "train_gpt2") const {
        const Options o = *parse(flags);
        write({{"program", program}, {"options", options_json(kGpt2, o)}, {"given", given_json(kGpt2, o)}});
    }
    // As today's main and version 0.2.0 wrote it: without the flags that were given.
    void save_as_before(const std::vector<std::string>& flags) const {
        write({{"program", "train_gpt2"}, {"options", options_json(kGpt2, *parse(flags))}});
    }
    void write(const Json& config) const { std::ofstream(path) << json_text(config, {.indent = 2}); }
};

}  // namespace

TEST_CASE("options/options: a run's config.json configures another run or a resumed one") {
    const SavedRun run;
    const std::string& path = run.path;
    run.save(
        words("--data x,y --out elsewhere --optimizer teon --lr 0.01 --lr-scale q=0.5,o=2 --teon-roles q o --nesterov "
              "--steps 70 --eval-every 9 --time-limit 1h --micro-batch 4 --batch-tokens 4096 --shuffle off "
              "--on-save-error stop --adamw-lr 0.003"));
    auto same = [&](const Options& o) {
        REQUIRE(o.data == "x,y");
        REQUIRE(o.optimizer.method == Method::teon);
        REQUIRE(o.optimizer.lr == 0.01f);
        REQUIRE(o.adamw_lr == 0.003f);
        REQUIRE(o.optimizer.lr_scale == std::map<Role, float>{{Role::q, 0.5f}, {Role::o, 2.0f}});
        REQUIRE(o.optimizer.teon_roles == std::set<Role>{Role::q, Role::o});
        REQUIRE(o.optimizer.nesterov);
        REQUIRE(o.batch_tokens == 4096);
        REQUIRE(!o.shuffle);
        REQUIRE(o.stop_on_save_error);
        REQUIRE(o.time_limit == 3600);
    };
    const Options another = *parse({"--config", path, "--eval-every", "5"});
    same(another);
    REQUIRE(another.micro_batch == 4);
    REQUIRE(another.out.empty());
    REQUIRE(!another.resume);
    REQUIRE(another.eval_every == 5);
    REQUIRE(another.steps == 70);
    const Options resumed = *parse({"--resume", "--out", run.folder.path()});
    same(resumed);
    REQUIRE(resumed.out == run.folder.path());
    REQUIRE(resumed.micro_batch == 0);  // the checkpoint's, if the number of ranks is the same
    REQUIRE(resumed.eval_every == 9);
    REQUIRE(changed_options(kGpt2, read_json(path)["options"], resumed).empty());
    const Options shorter = *parse({"--resume", "--out", run.folder.path(), "--tokens", "1e6"});
    REQUIRE(shorter.tokens == 1'000'000);
    REQUIRE(shorter.steps == 0);
}

TEST_CASE("options/options: a resumed run takes its own config.json, and nothing from another's") {
    const SavedRun run;
    const std::string& path = run.path;
    run.save({"--data", "x", "--steps", "500", "--keep-last", "3"});
    const std::string other = run.folder / "other.json";
    const Json began = options_json(kGpt2, *parse(words("--data x --tokens 1e9 --layers 2 --micro-batch 4")));
    std::ofstream(other) << json_text({{"program", "train_gpt2"}, {"options", began}});
    REQUIRE(parse({"--config", other})->fields == Json{{"layers", 2}});
    for (const auto& config : {std::vector<std::string>{"--config", other}, {"--config=" + other}}) {
        std::vector<std::string> flags = config;
        flags.insert(flags.end(), {"--resume", "--out", run.folder.path(), "--lr", "0.5"});
        const Options own_options = *parse(flags);
        REQUIRE(own_options.config_fault == "");
        REQUIRE(own_options.steps == 500);
        REQUIRE(own_options.tokens == 0);
        REQUIRE(own_options.fields.size() == 0);
        REQUIRE(own_options.keep_last == 3);
        REQUIRE(own_options.micro_batch == 0);
        REQUIRE(own_options.optimizer.lr == 0.5f);
    }
    // A prompt of one kind replaces the run's prompt of the other kind.
    run.save({"--data", "x", "--sample-every", "5", "--prompt-tokens", "1,2"});
    REQUIRE(parse({"--config", path})->sampling.prompt_tokens == std::vector<int>{1, 2});
    REQUIRE(parse({"--config", path, "--prompt", "text"})->sampling.prompt_tokens.empty());
    run.save({"--data", "x", "--sample-every", "5", "--prompt", "text"});
    REQUIRE(parse({"--config", path, "--prompt-tokens", "1,2"})->sampling.prompt.empty());
}

TEST_CASE("options/options: values in a run's config.json that followed another flag follow it again") {
    const SavedRun run;
    const std::string& path = run.path;
    run.save({"--data", "x", "--schedule", "cosine"});
    REQUIRE(parse({"--config", path, "--lr", "0.1"})->adamw_lr == 0.1f);  // AdamW has one rate
    REQUIRE(parse({"--config", path, "--weight-decay", "3"})->optimizer.adamw_weight_decay == 3.0f);
    REQUIRE(parse({"--config", path, "--schedule", "linear"})->schedule.min_lr_ratio == 0.0);
    REQUIRE(parse({"--config", path, "--optimizer", "muon"})->optimizer.lr == info_of(Method::muon).lr);
    REQUIRE(!parse({"--config", path, "--optimizer", "muon"})->adamw_lr);  // the default of the model's width
    REQUIRE(parse({"--config", path, "--optimizer", "muon", "--adamw-lr", "0.7"})->adamw_lr == 0.7f);
    REQUIRE(parse({"--config", path, "--optimizer", "lion"})->optimizer.beta2 == info_of(Method::lion).beta2);
    run.save({"--data", "x", "--beta2", "0.9", "--weight-decay", "1", "--schedule", "cosine", "--min-lr-ratio", "0.3"});
    REQUIRE(parse({"--config", path, "--optimizer", "lion"})->optimizer.beta2 == 0.9f);
    REQUIRE(parse({"--config", path, "--schedule", "linear"})->schedule.min_lr_ratio == 0.3);
    run.save({"--data", "x", "--optimizer", "muon", "--ns-steps", "7", "--adamw-weight-decay", "2"});
    REQUIRE(parse({"--config", path})->optimizer.ns_steps == 7);
    REQUIRE(parse({"--config", path, "--weight-decay", "3"})->optimizer.adamw_weight_decay == 2.0f);
    REQUIRE(parse({"--config", path, "--optimizer", "adamw"})->optimizer.adamw_weight_decay == 0.1f);
    run.save({"--data", "x", "--optimizer", "muon", "--adamw-lr", "0.004", "--lr", "0.02"});
    REQUIRE(parse({"--config", path, "--lr", "0.1"})->adamw_lr == 0.004f);
    REQUIRE(parse({"--config", path, "--optimizer", "teon"})->optimizer.lr == 0.02f);
    REQUIRE(parse({"--config", path, "--optimizer", "adamw"})->adamw_lr == 0.02f);
    // A learning rate that happens to be an optimizer's default is kept if it was given.
    run.save({"--data", "x", "--optimizer", "teon", "--lr", "3e-4"});
    REQUIRE(parse({"--config", path})->optimizer.lr == 3e-4f);
    run.save({"--data", "x", "--lr", "3e-4"});
    REQUIRE(parse({"--config", path, "--optimizer", "teon"})->optimizer.lr == 3e-4f);
}

TEST_CASE("options/options: config.json lists the flags that were given, also before a run was resumed") {
    const SavedRun run;
    const auto given = [](const Options& o) { return given_json(kGpt2, o); };
    run.save(words("--data x --lr 0.1 --eval-every 5 --out elsewhere --layers 3"));
    REQUIRE(read_json(run.path)["given"] == Json::array({"layers", "data", "lr", "eval-every"}));
    REQUIRE(given(*parse({"--resume", "--out", run.folder.path(), "--log-every", "2"})) ==
            Json::array({"layers", "data", "lr", "eval-every", "log-every"}));
    REQUIRE(given(*parse({"--config", run.path, "--seed", "2"})) ==
            Json::array({"layers", "data", "lr", "seed", "eval-every"}));
    const std::string toml = run.folder / "run.toml";
    std::ofstream(toml) << "data = \"x\"\nbeta1 = 0.5\n";
    REQUIRE(given(*parse({"--config", toml})) == Json::array({"data", "beta1"}));
}

TEST_CASE("options/options: all values of a config.json without that list count as given") {
    const SavedRun run;
    run.save_as_before({"--data", "x"});
    const Options muon = *parse({"--config", run.path, "--optimizer", "muon"});
    REQUIRE(muon.optimizer.lr == info_of(Method::adamw).lr);
    REQUIRE(muon.adamw_lr == info_of(Method::adamw).lr);
    REQUIRE(parse({"--config", run.path, "--schedule", "linear"})->schedule.min_lr_ratio == 0.1);
    REQUIRE(parse({"--config", run.path, "--lr", "0.1"})->adamw_lr == 0.1f);  // AdamW has one rate
}

TEST_CASE("options/options: a resumed run keeps its values, whatever their defaults have become") {
    const SavedRun run;
    for (const bool has_list : {true, false}) {
        INFO(has_list);
        run.save(words("--data x --optimizer muon --schedule cosine"));
        Json config = read_json(run.path);
        if (!has_list) config.erase("given");
        // None is the default of this version. Version 0.2.0 resolved --adamw-lr to --lr.
        Json& options = config["options"];
        for (const char* flag : {"lr", "adamw-lr", "beta1", "beta2", "adamw-weight-decay", "min-lr-ratio"})
            options[flag] = 0.25;
        options["ns-steps"] = 9;
        run.write(config);
        const Options o = *parse({"--resume", "--out", run.folder.path()});
        REQUIRE(o.config_fault == "");
        REQUIRE(changed_options(kGpt2, options, o).empty());
        REQUIRE(o.optimizer.lr == 0.25f);
        REQUIRE(o.adamw_lr == 0.25f);
        REQUIRE(o.optimizer.beta1 == 0.25f);
        REQUIRE(o.optimizer.beta2 == 0.25f);
        REQUIRE(o.optimizer.adamw_weight_decay == 0.25f);
        REQUIRE(o.schedule.min_lr_ratio == 0.25);
        REQUIRE(o.optimizer.ns_steps == 9);
    }
}

TEST_CASE("options/options: a run that used what was removed is refused with what to use; one that did not is read") {
    const SavedRun run;
    const Json options = options_json(kGpt2, *parse(words("--data x --optimizer muon --steps 70")));
    const auto read = [&](const Json& old, std::vector<std::string> flags) {
        Json all = options;
        all.update(old);
        std::ofstream(run.path) << json_text({{"program", "train_gpt2"}, {"options", all}});
        return error_of<UsageError>([&] { parse(flags); });
    };
    const std::vector<std::string> config = {"--config", run.path};
    const std::vector<std::string> resume = {"--resume", "--out", run.folder.path()};
    const Json unused = {{"soap-frequency", 10}, {"soap-max-dim", 10000}, {"ns-aol", false},
                         {"gelu-fusion", false}, {"autotune", false},     {"algorithms", "a.jsonl"}};
    const std::pair<Json, const char*> removed[] = {
        {{{"optimizer", "soap"}},
         "optimizer \"soap\" was removed after version 0.2.0; use --optimizer muon or normuon"},
        {{{"ortho", "you6"}}, "ortho \"you6\" was removed after version 0.2.0; use --ortho you or polar-express"},
        {{{"ns-aol", true}}, "ns-aol true was removed after version 0.2.0; leave it out"},
        {{{"gelu-fusion", true}}, "gelu-fusion true was removed after version 0.2.0; leave it out"},
        {{{"autotune", true}}, "autotune true was removed after version 0.2.0; leave it out"}};
    for (const auto& flags : {config, resume}) {
        REQUIRE(read(unused, flags) == "");
        for (const auto& [old, message] : removed) REQUIRE(contains(read(old, flags), message));
    }
    for (const auto& row : removed)  // without config.json, the checkpoint says so
        REQUIRE(contains(error_of<UsageError>([&] { changed_options(kGpt2, row.first, *parse(words("--data x"))); }),
                         row.second));
    REQUIRE(read({{"optimizer", "soap"}}, {"--config", run.path, "--optimizer", "normuon"}) == "");
}

TEST_CASE("options/options: a config.json of another program or with faults is refused") {
    const SavedRun run;
    const std::string& path = run.path;
    // The resolved values that an AdamW run stores for Muon's flags are accepted.
    run.save({"--data", "x"});
    REQUIRE(parse({"--config", path})->optimizer.method == Method::adamw);

    run.save({"--data", "x"}, "train_llama");
    REQUIRE(complaint({"--config", path}) == path + ": is of a run of train_llama, not of train_gpt2");
    std::ofstream(path) << R"({"model_type": "gpt2"})";
    REQUIRE(complaint({"--config", path}).find(path + ": is not the config.json of a run") == 0);
    const std::pair<const char*, const char*> bad[] = {
        {R"({"leyers": 3})", "options: there is no flag 'leyers'; did you mean --layers?"},
        {R"({"layers": "many"})", "layers takes a number, not \"many\""},
        {R"({"layers": "5"})", "layers takes a number, not \"5\""},
        {R"({"layers": [5]})", "layers takes one value, not a list"},
        {R"({"layers": true})", "layers takes a number, not true"},
        {R"({"layers": 2.5})", "--layers 2.5: not a whole number"},
        {R"({"optimizer": 3})", "optimizer takes a text in quotes, not 3"},
        {R"({"data": "a\u0000b"})", "data holds the character NUL"},
        {R"({"layers": [[1]]})", "layers is [[1]], expected a list of values"},
        {R"({"nesterov": 3})", "nesterov takes true or false, not 3"},
    };
    for (const auto& [options, says] : bad) {
        std::ofstream(path) << R"({"program": "train_gpt2", "options": )" << options << "}";
        REQUIRE(contains(complaint({"--config", path}), says));
        REQUIRE(complaint({"--resume", "--out", run.folder.path()}).find(path) == 0);
    }
    std::ofstream(path) << R"({"program": "train_gpt2", "options": )" + std::string(100000, '[');
    REQUIRE(contains(complaint({"--config", path}), "brackets"));
}

TEST_CASE("options/options: the resolved configuration names every flag and can be given back") {
    const auto o = *parse({"--plan-only", "--optimizer", "teon", "--lr", "0.01", "--teon-k", "3"});
    const Json j = options_json(kGpt2, plan_run(kGpt2, o, true, 1).options);
    REQUIRE(j["teon-k"] == 3);
    REQUIRE(j["optimizer"] == "teon");
    REQUIRE(j["ortho"] == "polar-express");
    REQUIRE(j["model"] == "small");
    REQUIRE(j["teon-roles"] == Json::array({"q", "k", "v"}));
    REQUIRE(j.contains("seed"));
    REQUIRE(json_text(j["beta1"]) == "0.9");
    REQUIRE(json_text(j["adamw-lr"]) == "0.0012");  // 3e-4 x 3072 / 768
    REQUIRE(json_text(j["adamw-weight-decay"]) == "0.1");
    REQUIRE(json_text(j["min-lr-ratio"]) == "0.1");
}

TEST_CASE("options/options: durations") {
    const std::pair<const char*, double> good[] = {{"3600", 3600},    {"90s", 90},       {"45m", 2700},
                                                   {"23h50m", 85800}, {"1d12h", 129600}, {"1d1h1m1s", 90061},
                                                   {"0", 0}};
    for (const auto& [text, seconds] : good) REQUIRE(parse_duration(text) == seconds);
    for (const char* text : {"", "h", "5x", "5m5m", "5s5m", "1h30", "-5", "1.5h", " 5", "5 m", "99999999999999999999"})
        REQUIRE(!parse_duration(text));
}

TEST_CASE("options/options: a run that resumes may change what does not change its numbers, and nothing else") {
    auto changed = [](std::vector<std::string> before, std::vector<std::string> after) {
        for (auto* flags : {&before, &after}) flags->insert(flags->end(), {"--data", "x", "--optimizer", "teon"});
        return changed_options(kGpt2, parse_json(json_text(options_json(kGpt2, *parse(before))), "before"),
                               *parse(after));
    };
    REQUIRE(changed({}, {}).empty());
    REQUIRE(changed({"--lr", "0.1"}, {"--lr", "0.1"}).empty());
    REQUIRE(changed({}, words("--out y --eval-every 3 --log-every 7 --checkpoint-every 5 --resume --time-limit 1h "
                              "--max-skipped 3 --warn-spikes 5 --recompute block --memory 1Gi --offload all "
                              "--offload-blocks 3"))
                .empty());
    for (const std::string& flag : commands(
             "--model tiny;--layers 3;--seq-len 512;--dtype bf16;--shuffle off;--batch-tokens 1024;"
             "--lr 1;--adamw-lr 1;--weight-decay 1;--grad-clip 2;--beta1 0.5;--momentum 0.5;--nesterov on;"
             "--momentum-warmup 5;--decay-at adjusted;--update-scale original;"
             "--lr-scale q=2;--ortho you;--ns-steps 3;--teon-k 3;--teon-roles q;--schedule linear;--warmup-ratio 0.5;"
             "--min-lr-ratio 0.5;--seed 1;--skip-spikes 8;--grad-comm-dtype bf16;--matmul-dtype "
             "fp8")) {
        const std::vector<std::string> flags = words(flag);
        const std::vector<std::string> changes = changed({}, flags);
        REQUIRE(changes.size() == (flags[0] == "--weight-decay" || flags[0] == "--schedule"
                                       ? 2
                                       : 1));  // the flag, and perhaps a value that follows from it
        REQUIRE(changes[0].find(flags[0] + " ") == 0);
        REQUIRE(contains(changes[0], "(was "));
    }
}
