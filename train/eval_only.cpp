#include "train/eval_only.h"

#include <algorithm>
#include <cmath>

#include "base/standard_streams.h"
#include "checkpoint/published_model.h"
#include "checkpoint/tokenizer_files.h"
#include "checkpoint/weights.h"
#include "data/dataset.h"
#include "data/loader.h"
#include "data/shards.h"
#include "files/file.h"
#include "files/json.h"
#include "model/decoder.h"
#include "plan/run_plan.h"
#include "runtime/linalg/library.h"
#include "train/evaluation.h"

namespace teon {

namespace {

// A sequence for the model: a context and an ending. ending_losses() pads it with tokens that have no target.
struct Row {
    std::vector<int> tokens;
    int begin = 0;  // of the ending
};

// Returns the summed loss of each row's ending.
std::vector<double> ending_losses(Model& model, const std::vector<Row>& rows, Context& context) {
    const int B = static_cast<int>(rows.size());
    size_t longest = 0;
    for (const Row& row : rows) longest = std::max(longest, row.tokens.size());
    const int T = static_cast<int>(longest) - 1;
    const int64_t n = static_cast<int64_t>(B) * T;
    std::vector<int> tokens(static_cast<size_t>(n), 0);
    std::vector<int> targets(static_cast<size_t>(n), -1);
    std::vector<int> positions(static_cast<size_t>(n));
    for (int b = 0; b < B; ++b) {
        const std::vector<int>& row = rows[static_cast<size_t>(b)].tokens;
        for (int t = 0; t < T; ++t) {
            const auto i = static_cast<size_t>(b) * static_cast<size_t>(T) + static_cast<size_t>(t);
            positions[i] = t;
            if (t + 1 >= static_cast<int>(row.size())) continue;
            tokens[i] = row[static_cast<size_t>(t)];
            if (t + 1 >= rows[static_cast<size_t>(b)].begin) targets[i] = row[static_cast<size_t>(t) + 1];
        }
    }
    Buffer<int> device(3 * n);
    Buffer<float> losses(n);
    Batch batch{B, T, device.data(), device.data() + n, device.data() + 2 * n};
    upload(device.data(), tokens.data(), n, context.stream);
    upload(device.data() + n, targets.data(), n, context.stream);
    upload(device.data() + 2 * n, positions.data(), n, context.stream);
    model.forward(losses.data(), batch);
    std::vector<float> values(static_cast<size_t>(n));
    download(values.data(), losses.data(), n, context.stream);
    context.stream.synchronize();
    std::vector<double> sums(static_cast<size_t>(B), 0.0);
    for (int64_t i = 0; i < n; ++i) sums[static_cast<size_t>(i / T)] += values[static_cast<size_t>(i)];
    return sums;
}

// Returns the index of the smallest score, the first of equal ones.
int best(const std::vector<double>& scores) {
    return static_cast<int>(std::min_element(scores.begin(), scores.end()) - scores.begin());
}

// Plans for --micro-batch or, without it, 65536 tokens on a GPU and 4096 on a CPU, halved until they fit beside the
// weights.
DecoderRun evaluation_run(const DecoderConfig& c, const Options& o, const DeviceInfo& device) {
    DecoderRun run;
    run.T = std::min(o.seq_len, c.max_T);
    run.dtype = choose_dtype(o.dtype).dtype;
    run.attention = o.attention;
    run.matmul_dtype = o.matmul_dtype;
    run.fast_accumulation = o.fast_accumulation;
    check_device(run, device);
    run.recompute = Recompute::block;  // there is no backward pass to save activations for
    const ParamLayouts params(decoder_params(c), run.dtype, {});
    const int64_t room = (o.memory ? o.memory : static_cast<int64_t>(device.free_bytes)) - params.bytes(run.dtype);
    run.B = o.micro_batch ? o.micro_batch : std::max(1, (device.is_gpu ? 65536 : 4096) / run.T);
    while (!o.micro_batch && run.B > 1 && decoder_activations(c, run).total_bytes() > room) run.B /= 2;
    return run;
}

// Every token of the shards is a target but the first of each, up to `limit`. Windows of up to T + 1 tokens begin
// `stride` tokens after one another and, at the end of a shard, so that they end there; of each window the targets that
// follow those of the window before count.
EvalResult evaluate_in_strides(Model& model, const DecoderConfig& c, const DecoderRun& run, int stride, int64_t limit,
                               const DataSet& data, Context& context) {
    ShardReader reader(data.shards, c.V);
    EvalResult result;
    std::vector<Row> rows;
    const auto flush = [&] {
        for (const double sum : ending_losses(model, rows, context)) result.loss += sum;
        rows.clear();
    };
    for (int s = 0; s < static_cast<int>(data.shards.size()); ++s) {
        const int64_t tokens = data.shards[static_cast<size_t>(s)].tokens;
        for (int64_t target = 1, end = 0; target < tokens && result.tokens < limit; target = end) {
            const int64_t step = std::min<int64_t>(target == 1 ? run.T : stride, limit - result.tokens);
            end = std::min(tokens, target + step);
            const int64_t first = std::max<int64_t>(0, end - run.T - 1);
            rows.push_back({std::vector<int>(static_cast<size_t>(end - first)), static_cast<int>(target - first)});
            reader.read(rows.back().tokens.data(), s, first, end - first);
            result.tokens += end - target;
            if (std::ssize(rows) == run.B) flush();
        }
    }
    if (!rows.empty()) flush();
    result.loss /= static_cast<double>(result.tokens);
    return result;
}

EvalResult evaluate_in_windows(Model& model, const DecoderConfig& c, const DecoderRun& run, const Options& o,
                               int64_t limit, const DataSet& data, Context& context) {
    LoaderOptions l;
    l.B = run.B;
    l.T = run.T;
    l.vocab_size = c.V;
    l.shuffle = false;
    l.document_mask = o.document_mask;
    l.delimiter = data.delimiter;
    Loader loader(data.shards, l);
    const int64_t windows = std::clamp<int64_t>(limit / run.T, 1, loader.windows());
    return *Evaluator(model, loader, run.B, run.T, windows, context).run();
}

// Says which part of the data was evaluated, and how.
std::string coverage(const EvalResult& e, const DecoderRun& run, const Options& o, const DataSet& data) {
    int64_t tokens = 0;
    for (const ShardInfo& shard : data.shards) tokens += shard.tokens;
    std::string line = fmt::format("{} of {} tokens were targets", e.tokens, tokens);
    if (data.unopened > 0)
        line += fmt::format(" ({} others of the folder are for training: --eval-all)", data.unopened);
    if (o.eval_stride > 0)
        line += fmt::format(": all but each shard's first, with {} to {} tokens before them except at its beginning",
                            run.T - o.eval_stride + 1, run.T);
    else
        line += fmt::format(": windows of {} do not overlap; each shard's first token and its remainder do not count",
                            run.T);
    return line + "; delimiters are tokens without bytes\n";
}

Json evaluate_shards(Model& model, const DecoderConfig& c, const DecoderRun& run, const Options& o, const DataSet& data,
                     Context& context) {
    const int64_t limit = o.eval_tokens ? o.eval_tokens : INT64_MAX;
    CHECK_USAGE(o.eval_stride <= run.T, "--eval-stride {}: is more than the sequence of {}", o.eval_stride, run.T);
    const EvalResult e = o.eval_stride > 0 ? evaluate_in_strides(model, c, run, o.eval_stride, limit, data, context)
                                           : evaluate_in_windows(model, c, run, o, limit, data, context);
    CHECK_USAGE(e.tokens > 0, "{}: has no two tokens", data.shards.front().path);
    const int T = o.eval_stride > 0 ? 1 : run.T;
    const std::optional<TextSize> text = text_size(data, tokenizer_folder(data.shards.front().path), T, e.tokens / T);
    const double nats = e.loss * static_cast<double>(e.tokens);
    Json result = evaluation_json(e, text);
    result["val_nats"] = nats;
    std::string line = evaluation_text(e, text);
    if (text && text->words > 0) {
        const double word_perplexity = std::exp(nats / static_cast<double>(text->words));
        result.update({{"val_words", text->words}, {"val_word_ppl", word_perplexity}});
        line += fmt::format(" | word perplexity {:.2f}", word_perplexity);
    }
    print_output(line + "\n" + coverage(e, run, o, data));
    return result;
}

// Writes a line of JSON for each question: its right ending, and the nats and tokens of every ending.
void write_questions(const std::string& path, const std::vector<MultipleChoice>& examples,
                     const MultipleChoiceResult& result) {
    std::string lines;
    for (size_t i = 0; i < examples.size(); ++i) {
        std::vector<size_t> tokens;
        for (const std::vector<int>& ending : examples[i].endings) tokens.push_back(ending.size());
        const Json line = {
            {"label", examples[i].label}, {"nats", Json::array_of(result.nats[i])}, {"tokens", Json::array_of(tokens)}};
        lines += json_text(line, {.in_order = true}) + "\n";
    }
    write_file_atomically(path, lines);
}

}  // namespace

MultipleChoiceResult score_multiple_choice(Model& model, const std::vector<MultipleChoice>& examples,
                                           const DecoderRun& run, Context& context) {
    MultipleChoiceResult result;
    std::vector<Row> rows;
    std::vector<double> losses;
    auto flush = [&] {
        const std::vector<double> sums = ending_losses(model, rows, context);
        losses.insert(losses.end(), sums.begin(), sums.end());
        rows.clear();
    };
    for (const MultipleChoice& example : examples) {
        bool shortened = false;
        for (const std::vector<int>& ending : example.endings) {
            CHECK(static_cast<int>(ending.size()) <= run.T, "an ending of {} tokens does not fit the context of {}",
                  ending.size(), run.T);
            const size_t room = static_cast<size_t>(run.T) + 1 - ending.size();
            const size_t kept = std::min(room, example.context.size());
            shortened |= kept < example.context.size();
            Row row{{example.context.end() - static_cast<int64_t>(kept), example.context.end()},
                    static_cast<int>(kept)};
            row.tokens.insert(row.tokens.end(), ending.begin(), ending.end());
            rows.push_back(std::move(row));
            if (static_cast<int>(rows.size()) == run.B) flush();
        }
        result.shortened += shortened;
    }
    if (!rows.empty()) flush();

    const double* loss = losses.data();
    for (const MultipleChoice& example : examples) {
        std::vector<double> sums(loss, loss + example.endings.size());
        std::vector<double> means = sums;
        for (size_t i = 0; i < means.size(); ++i) means[i] /= static_cast<double>(example.endings[i].size());
        result.nats.push_back(sums);
        loss += example.endings.size();
        ++result.examples;
        result.right += best(sums) == example.label;
        result.right_normalized += best(means) == example.label;
    }
    return result;
}

void evaluate_only(const ModelFamily& family, const Options& o) {
    const PublishedModel published = open_model(o.resume ? o.out : o.init_from, {family});
    const DecoderConfig& c = published.config;
    for (const std::string& note : notes_on(published)) print_error(note + "\n");
    const SafetensorsModel weights(published.folder);
    DataSet data;
    if (!o.data.empty() || !o.val_data.empty()) {
        data = open_dataset(o.val_data.empty() ? o.data : o.val_data, o.eval_all ? "" : "val");
        CHECK_USAGE(data.mixture.empty(),
                    "--val-data: a mixture cannot be evaluated; name the sources without weights");
        check_model_tokenizer(data, published.folder, c.V);  // otherwise losses mean nothing
        set_delimiter(o, data);
    }
    std::vector<MultipleChoice> examples;
    if (!o.hellaswag.empty()) examples = read_multiple_choice(o.hellaswag, c.V);

    require_device();
    Context context;
    context.stream.set_kernels(o.kernels);
    CHECK_USAGE(context.comm->size() == 1, "--eval-only: runs on one rank, not {}", context.comm->size());
    const DecoderRun run = evaluation_run(c, o, device_info());
    const std::unique_ptr<Model> model = make_decoder(c, run, context);
    load_weights(model->params(), weights, context.stream);
    print_output(fmt::format("{} | {} parameters as {} | sequences of {}\n", published.folder,
                             model->table().logical_size(), name_of(run.dtype), run.T));
    Json result = {{"checkpoint", published.folder}, {"parameters", model->table().logical_size()}};
    if (!data.shards.empty()) result.update(evaluate_shards(*model, c, run, o, data, context));
    if (!examples.empty()) {
        const MultipleChoiceResult r = score_multiple_choice(*model, examples, run, context);
        print_output(fmt::format("hellaswag accuracy {:.4f} | normalized accuracy {:.4f} | {} examples{}\n",
                                 r.accuracy(), r.accuracy_normalized(), r.examples,
                                 r.shortened ? fmt::format(" ({} with a context cut to fit)", r.shortened) : ""));
        result.update({{"hellaswag_accuracy", r.accuracy()},
                       {"hellaswag_accuracy_normalized", r.accuracy_normalized()},
                       {"hellaswag_examples", r.examples}});
        if (!o.hellaswag_out.empty()) write_questions(o.hellaswag_out, examples, r);
    }
    print_output(json_text(result, {.in_order = true}) + "\n");
}

}  // namespace teon
