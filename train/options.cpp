#include "train/options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include <CLI/CLI.hpp>

#include "train/version.h"

namespace teon {

namespace {

using nlohmann::json;

// ---- values ----------------------------------------------------------------------------------------------------------

// A finite decimal number: 5, 1e9, 0.02, or with a binary suffix: 512Ki, 2Mi, 1Gi.
std::optional<double> parse_number(std::string_view text) {
    double factor = 1;
    for (auto [suffix, value] : {std::pair{"Ki", 0x1p10}, {"Mi", 0x1p20}, {"Gi", 0x1p30}})
        if (text.ends_with(suffix)) {
            factor = value;
            text.remove_suffix(2);
        }
    double value = 0;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
    return value * factor;
}

std::vector<std::string> split(const std::string& text) {
    std::vector<std::string> parts;
    size_t begin = 0;
    for (size_t comma; (comma = text.find(',', begin)) != std::string::npos; begin = comma + 1)
        parts.push_back(text.substr(begin, comma - begin));
    parts.push_back(text.substr(begin));
    return parts;
}

size_t edit_distance(std::string_view a, std::string_view b) {
    std::vector<size_t> row(b.size() + 1);
    std::iota(row.begin(), row.end(), size_t{0});
    for (size_t i = 1; i <= a.size(); ++i) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b.size(); ++j) {
            size_t next = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])});
            diagonal = std::exchange(row[j], next);
        }
    }
    return row.back();
}

// ---- the table -------------------------------------------------------------------------------------------------------

struct Row {
    std::string group, flag, type, help, default_text;
    std::function<void(const std::string&)> set;   // throws UsageError
    std::function<json()> get;
    bool is_switch = false;
};

template <typename E> using Choices = std::vector<std::pair<std::string, E>>;

class Table {
public:
    std::vector<Row> rows;

    void group(std::string name) { group_ = std::move(name); }

    // An integer in [lo, hi].
    template <typename I>
    Row& integer(std::string flag, I& field, int64_t lo, int64_t hi, std::string help) {
        return add(flag, "N", help, fmt::format("{}", field),
                   [=, &field](const std::string& text) {
                       auto value = parse_number(text);
                       CHECK_USAGE(value && *value == std::floor(*value),
                                   "{} {}: not a whole number (write 524288, 5e5 or 512Ki)", flag, text);
                       CHECK_USAGE(*value >= static_cast<double>(lo) && *value <= static_cast<double>(hi),
                                   "{} {}: must be between {} and {}", flag, text, lo, hi);
                       field = static_cast<I>(*value);
                   },
                   [&field] { return json(field); });
    }
    // A number in [lo, hi]; the field may be optional.
    template <typename F>
    Row& number(std::string flag, F& field, double lo, double hi, std::string help) {
        std::string initial;
        if constexpr (std::is_arithmetic_v<F>) initial = fmt::format("{}", field);
        return add(flag, "X", help, initial,
                   [=, &field](const std::string& text) {
                       auto value = parse_number(text);
                       CHECK_USAGE(value, "{} {}: not a number", flag, text);
                       CHECK_USAGE(*value >= lo && *value <= hi, "{} {}: must be between {} and {}", flag, text, lo, hi);
                       if constexpr (std::is_arithmetic_v<F>) field = static_cast<F>(*value);
                       else field = static_cast<typename F::value_type>(*value);
                   },
                   [&field] {
                       if constexpr (std::is_arithmetic_v<F>) return json(field);
                       else return field ? json(*field) : json();
                   });
    }
    Row& text(std::string flag, std::string& field, std::string type, std::string help) {
        return add(flag, type, help, field,
                   [=, &field](const std::string& text) {
                       CHECK_USAGE(!text.empty(), "{}: needs a value", flag);
                       field = text;
                   },
                   [&field] { return json(field); });
    }
    Row& toggle(std::string flag, bool& field, std::string help) {
        Row& row = add(flag, "on|off", help, field ? "on" : "off",
                       [=, &field](const std::string& text) {
                           CHECK_USAGE(text == "on" || text == "off" || text == "true" || text == "false" || text.empty(),
                                       "{} {}: must be on or off", flag, text);
                           field = text != "off" && text != "false";
                       },
                       [&field] { return json(field); });
        row.is_switch = true;
        return row;
    }
    // One of a few names; the field may be optional.
    template <typename F, typename E>
    Row& choice(std::string flag, F& field, Choices<E> choices, std::string help) {
        auto name = [choices](E value) {
            for (auto& [text, e] : choices)
                if (e == value) return text;
            return std::string();
        };
        std::string initial;
        if constexpr (std::is_same_v<F, E>) initial = name(field);
        std::vector<std::string> names;
        for (auto& [text, e] : choices) names.push_back(text);
        return add(flag, fmt::format("{}", fmt::join(names, "|")), help, initial,
                   [=, &field](const std::string& text) {
                       for (auto& [candidate, e] : choices)
                           if (candidate == text) {
                               field = e;
                               return;
                           }
                       throw UsageError(fmt::format("{} {}: must be one of {}", flag, text, fmt::join(names, ", ")));
                   },
                   [&field, name] {
                       if constexpr (std::is_same_v<F, E>) return json(name(field));
                       else return field ? json(name(*field)) : json();
                   });
    }
    Row& add(std::string flag, std::string type, std::string help, std::string default_text,
             std::function<void(const std::string&)> set, std::function<json()> get) {
        rows.push_back({group_, std::move(flag), std::move(type), std::move(help), std::move(default_text), std::move(set),
                        std::move(get)});
        return rows.back();
    }

private:
    std::string group_;
};

Role parse_matrix_role(const std::string& flag, const std::string& text) {
    for (Role role : {Role::q, Role::k, Role::v, Role::o, Role::mlp_up, Role::mlp_gate, Role::mlp_down})
        if (name_of(role) == text) return role;
    throw UsageError(fmt::format("{} {}: not a role; there are q, k, v, o, mlp-up, mlp-gate, mlp-down", flag, text));
}

Table make_table(const ModelFamily& family, Options& o) {
    constexpr int64_t kMaxInt = 1'000'000'000, kMaxCount = 1'000'000'000'000'000;
    OptimizerOptions& opt = o.optimizer;
    Table t;
    t.group("Model");
    Choices<std::string> presets;
    for (const std::string& p : family.presets) presets.push_back({p, p});
    o.model = family.default_preset;
    t.choice("--model", o.model, presets, "preset that the flags below override");
    t.integer("--layers", o.layers, 1, 1024, "transformer blocks").default_text = "preset's";
    t.integer("--channels", o.channels, 1, 65536, "width of the residual stream").default_text = "preset's";
    t.integer("--heads", o.heads, 1, 1024, "query heads").default_text = "preset's";
    t.integer("--kv-heads", o.kv_heads, 1, 1024, "key/value heads").default_text = "= heads";
    t.integer("--ffn", o.ffn, 1, 1 << 20, "width of the MLP").default_text = "preset's";
    t.integer("--vocab-size", o.vocab_size, 2, 1 << 24, "tokens in the vocabulary").default_text =
        "the data's manifest.json, or the preset's";
    t.integer("--seq-len", o.seq_len, 1, 1 << 20, "tokens per sequence");
    t.choice("--dtype", o.dtype, Choices<DType>{{"float", DType::f32}, {"bf16", DType::bf16}},
             "storage of weights and activations (master weights and sums are float)").default_text =
        "bf16 on a GPU, float on a CPU";
    t.choice("--recompute", o.recompute,
             Choices<Recompute>{{"none", Recompute::none}, {"cheap", Recompute::cheap}, {"block", Recompute::block},
                                {"auto", Recompute::automatic}},
             "what backward computes again instead of keeping: nothing, norms and activations, or whole blocks; auto: the "
             "first that fits the device");
    if (family.config(family.default_preset).positions == Positions::rotary) {
        t.number("--rope-base", o.rope_base, 1, 1e12, "base of the rotary frequencies").default_text = "preset's";
        t.number("--rope-scaling", o.rope_scaling, 1e-3, 1e6, "positions are divided by this (linear scaling)");
    }

    t.group("Data");
    t.text("--data", o.data, "PATH", "training shards: a folder (its *_train_*.bin), a file, a glob or a list of these");
    t.text("--val-data", o.val_data, "PATH", "validation shards, likewise (*_val_*.bin)").default_text = "--data's, if a folder";
    t.toggle("--shuffle", o.shuffle, "visit windows in a random order, each once an epoch");
    t.toggle("--document-mask", o.document_mask, "attention and positions restart at each document");

    t.group("Batch and length");
    t.integer("--batch-tokens", o.batch_tokens, 1, kMaxCount, "tokens per optimizer step");
    t.integer("--micro-batch", o.micro_batch, 1, 1 << 20, "sequences per device and forward pass").default_text =
        "the most that fits";
    t.integer("--steps", o.steps, 1, kMaxCount, "optimizer steps").default_text = "from --epochs";
    t.integer("--tokens", o.tokens, 1, kMaxCount, "training tokens, instead of --steps").default_text = "from --epochs";
    t.number("--epochs", o.epochs, 1e-6, 1e6, "passes over the data, instead of --steps").default_text = "1";

    t.group("Optimizer");
    t.choice("--optimizer", opt.method,
             Choices<Method>{{"adamw", Method::adamw}, {"muon", Method::muon}, {"teon", Method::teon}},
             "what updates the hidden matrices; AdamW updates the rest");
    t.number("--lr", opt.lr, 0, 100, "peak learning rate").default_text = "3e-4 adamw, 5e-3 muon and teon";
    t.number("--adamw-lr", o.adamw_lr, 0, 100, "peak learning rate of AdamW's share under muon and teon").default_text = "= lr";
    t.number("--weight-decay", opt.weight_decay, 0, 10, "decoupled weight decay, of matrices and embeddings");
    t.number("--grad-clip", o.grad_clip, 0, 1e9, "largest global gradient norm; 0: no clipping");
    t.number("--beta1", opt.beta1, 0, 0.999999, "AdamW's decay of the first moment");
    t.number("--beta2", opt.beta2, 0, 0.999999, "AdamW's decay of the second moment");
    t.number("--eps", opt.eps, 0, 1, "AdamW's epsilon").default_text = "1e-8";
    t.number("--momentum", opt.momentum, 0, 0.999999, "Muon's and Teon's momentum");
    t.toggle("--nesterov", opt.nesterov, "orthogonalize gradient + momentum * M instead of M");
    t.add("--lr-scale", "ROLE=X,...", "factors of the learning rate per role, e.g. q=0.707,k=0.707,v=0.707", "",
          [&opt](const std::string& text) {
              for (const std::string& item : split(text)) {
                  size_t equals = item.find('=');
                  CHECK_USAGE(equals != std::string::npos, "--lr-scale {}: write role=factor, e.g. q=0.5", item);
                  auto factor = parse_number(item.substr(equals + 1));
                  CHECK_USAGE(factor && *factor >= 0 && *factor <= 1e4, "--lr-scale {}: the factor must be between 0 and 1e4", item);
                  opt.lr_scale[parse_matrix_role("--lr-scale", item.substr(0, equals))] = static_cast<float>(*factor);
              }
          },
          [&opt] {
              json j = json::object();
              for (auto [role, factor] : opt.lr_scale) j[std::string(name_of(role))] = factor;
              return j;
          });

    t.group("Orthogonalizer");
    t.choice("--ortho", opt.ortho,
             Choices<Ortho>{{"svd", Ortho::svd}, {"jordan", Ortho::jordan}, {"you", Ortho::you}, {"you6", Ortho::you6},
                            {"polar-express", Ortho::polar_express}},
             "exact polar factor, or a Newton-Schulz coefficient set");
    t.integer("--ns-steps", opt.ns_steps, 1, 100, "Newton-Schulz steps");
    t.choice("--ns-form", opt.ns_form,
             Choices<NsForm>{{"auto", NsForm::automatic}, {"standard", NsForm::standard}, {"gram", NsForm::gram}},
             "iterate on the matrix or on its Gram matrix; auto: by aspect ratio");

    t.group("Teon");
    t.integer("--teon-k", opt.teon_k, 1, 1024, "consecutive layers per stack");
    t.integer("--teon-mode", opt.teon_mode, 1, 3, "unfolding of the stack");
    t.add("--teon-roles", "ROLE,...", "matrices that are stacked; the others are Muon's", "q,k,v",
          [&opt](const std::string& text) {
              opt.teon_roles.clear();
              for (const std::string& item : split(text)) opt.teon_roles.insert(parse_matrix_role("--teon-roles", item));
          },
          [&opt] {
              json j = json::array();
              for (Role role : opt.teon_roles) j.push_back(name_of(role));
              return j;
          });
    t.toggle("--teon-rms-match", opt.teon_rms_match, "scale a stack's updates to the size that Muon's would have");
    t.toggle("--teon-normalize-slices", opt.teon_normalize_slices, "divide each slice by its norm before stacking");

    t.group("Schedule");
    t.choice("--schedule", o.schedule.kind,
             Choices<ScheduleKind>{{"cosine", ScheduleKind::cosine}, {"linear", ScheduleKind::linear},
                                   {"constant", ScheduleKind::constant}, {"constant-linear", ScheduleKind::constant_linear}},
             "learning rate after the warmup");
    t.number("--warmup-ratio", o.schedule.warmup_ratio, 0, 1, "share of the steps with rising learning rate");
    t.number("--constant-ratio", o.schedule.constant_ratio, 0, 1, "constant-linear: share of the steps before the decay");
    t.number("--min-lr-ratio", o.min_lr_ratio, 0, 1, "last learning rate, of the peak").default_text = "0.1 cosine, 0 else";

    t.group("Run");
    t.text("--out", o.out, "FOLDER", "where the run is written").default_text = "runs/<model>-<optimizer>-<time>";
    t.integer("--seed", o.seed, 0, kMaxCount, "of initialization and data order");
    t.integer("--eval-every", o.eval_every, 0, kMaxCount, "steps between evaluations; 0: only at the end");
    t.integer("--eval-tokens", o.eval_tokens, 1, kMaxCount, "validation tokens per evaluation").default_text =
        "all, at most 10485760";
    t.integer("--log-every", o.log_every, 1, kMaxInt, "steps between console lines");
    t.integer("--diagnose-every", o.diagnose_every, 0, kMaxCount,
              "steps between measurements of singular vector alignment; 0: never");
    t.integer("--memory", o.memory, 1, kMaxCount, "bytes of device memory to plan for, e.g. 40Gi").default_text =
        "what is free; 80Gi with --plan-only";

    t.group("Checks");
    t.toggle("--plan-only", o.plan_only, "print parameters, memory and optimizer plan; touch no device");
    return t;
}

// Rules between flags.
void check_conflicts(Options& o, const std::set<std::string>& given) {
    OptimizerOptions& opt = o.optimizer;
    if (!given.count("--lr")) opt.lr = opt.method == Method::adamw ? 3e-4f : 5e-3f;
    opt.adamw_lr = o.adamw_lr.value_or(opt.lr);
    o.schedule.min_lr_ratio = o.min_lr_ratio.value_or(o.schedule.kind == ScheduleKind::cosine ? 0.1 : 0.0);

    std::vector<std::string> lengths;
    for (const char* flag : {"--steps", "--tokens", "--epochs"})
        if (given.count(flag)) lengths.push_back(flag);
    CHECK_USAGE(lengths.size() <= 1, "{}: they say the same thing; give one", fmt::join(lengths, " and "));
    if (lengths.empty()) o.epochs = 1;

    CHECK_USAGE(o.batch_tokens % o.seq_len == 0, "--batch-tokens {} is not a multiple of --seq-len {}; {} would be",
                o.batch_tokens, o.seq_len, std::max<int64_t>(1, o.batch_tokens / o.seq_len) * o.seq_len);
    if (o.micro_batch > 0) {
        const int64_t sequences = o.batch_tokens / o.seq_len;
        CHECK_USAGE(sequences % o.micro_batch == 0,
                    "--micro-batch {} does not divide the {} sequences of a step (--batch-tokens / --seq-len)", o.micro_batch,
                    sequences);
    }
    auto needs = [&](std::initializer_list<const char*> flags, bool allowed, const char* what) {
        for (const char* flag : flags) CHECK_USAGE(allowed || !given.count(flag), "{} has no meaning without {}", flag, what);
    };
    needs({"--adamw-lr", "--momentum", "--nesterov", "--lr-scale", "--ortho", "--ns-steps", "--ns-form", "--diagnose-every"},
          opt.method != Method::adamw, "--optimizer muon or teon");
    needs({"--teon-k", "--teon-mode", "--teon-roles", "--teon-rms-match", "--teon-normalize-slices"},
          opt.method == Method::teon, "--optimizer teon");
    needs({"--ns-steps", "--ns-form"}, opt.ortho != Ortho::svd, "a Newton-Schulz --ortho");
    needs({"--constant-ratio"}, o.schedule.kind == ScheduleKind::constant_linear, "--schedule constant-linear");
    CHECK_USAGE(o.plan_only || !o.data.empty(), "--data: missing; name a folder of token shards (make demo shows how)");
}

[[noreturn]] void reject_unknown(const Table& table, const std::string& word) {
    std::string flag = word.substr(0, word.find('='));
    CHECK_USAGE(flag.starts_with("-"), "'{}': not expected here; flags begin with --", word);
    const Row* nearest = &table.rows.front();
    for (const Row& row : table.rows)
        if (edit_distance(flag, row.flag) < edit_distance(flag, nearest->flag)) nearest = &row;
    throw UsageError(fmt::format("{}: no such flag; did you mean {}? (--help lists all)", flag, nearest->flag));
}

}  // namespace

std::optional<Options> parse_options(const ModelFamily& family, int argc, const char* const* argv) {
    Options o;
    Table table = make_table(family, o);
    CLI::App app(fmt::format("Train a language model of the {} kind on token shards.",
                             family.config(family.default_preset).family),
                 family.program);
    app.get_formatter()->column_width(34);
    app.set_help_flag("--help", "print this and exit")->group("Checks");
    app.set_version_flag("--version", std::string(source_version()), "print the source version and exit")->group("Checks");
    app.set_config("--config", "", "TOML file with the same names; flags override it")->group("Run");
    app.allow_config_extras(CLI::config_extras_mode::error);
    app.allow_extras();

    std::vector<std::vector<std::string>> values(table.rows.size());
    std::vector<CLI::Option*> handles;
    for (size_t i = 0; i < table.rows.size(); ++i) {
        const Row& row = table.rows[i];
        std::string help = row.default_text.empty() ? row.help : fmt::format("{} ({})", row.help, row.default_text);
        CLI::Option* handle = app.add_option(row.flag, values[i], help)->group(row.group)->type_name(row.type);
        handle->expected(row.is_switch ? 0 : 1, row.is_switch ? 1 : CLI::detail::expected_max_vector_size);
        handles.push_back(handle);
    }
    try {
        app.parse(argc, argv);
    } catch (const CLI::CallForHelp&) {
        fmt::print("{}", app.help());
        return std::nullopt;
    } catch (const CLI::CallForVersion&) {
        fmt::print("{}\n", source_version());
        return std::nullopt;
    } catch (const CLI::ParseError& error) {
        std::string message = error.what();
        std::replace(message.begin(), message.end(), '\n', ' ');
        throw UsageError(message);
    }
    for (const std::string& word : app.remaining()) reject_unknown(table, word);

    std::set<std::string> given;
    for (size_t i = 0; i < table.rows.size(); ++i) {
        if (handles[i]->count() == 0) continue;
        given.insert(table.rows[i].flag);
        table.rows[i].set(fmt::format("{}", fmt::join(values[i], ",")));
    }
    check_conflicts(o, given);
    return o;
}

nlohmann::json options_json(const ModelFamily& family, const Options& options) {
    Options copy = options;
    std::string model = options.model;
    Table table = make_table(family, copy);
    copy.model = model;
    json j = json::object();
    for (const Row& row : table.rows) j[row.flag.substr(2)] = row.get();
    return j;
}

}  // namespace teon
