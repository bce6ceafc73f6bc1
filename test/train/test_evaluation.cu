#include "train/eval_only.h"
#include "train/evaluation.h"

#include <cmath>
#include <cstring>
#include <fstream>

#include "test/model/golden_model.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

using namespace teon;
using namespace teon::test;

namespace {

// Returns random examples: contexts of 1 to 6 tokens below V, and four endings of 1 to 5 tokens.
std::vector<MultipleChoice> random_examples(int count, int V, uint64_t seed) {
    const std::vector<int> random = random_ints(count * 64, seed, 1 << 20);
    std::vector<MultipleChoice> examples;
    for (int i = 0; i < count; ++i) {
        const int* next = random.data() + i * 64;
        auto tokens = [&](int longest) {
            std::vector<int> list(static_cast<size_t>(*next++ % longest + 1));
            for (int& token : list) token = *next++ % V;
            return list;
        };
        MultipleChoice example;
        example.label = *next++ % 4;
        example.context = tokens(6);
        for (int e = 0; e < 4; ++e) example.endings.push_back(tokens(5));
        examples.push_back(example);
    }
    return examples;
}

// Scores one ending at a time, from the model's logits, in float64.
MultipleChoiceResult by_logits(ModelRunner& runner, const std::vector<MultipleChoice>& examples, int V) {
    MultipleChoiceResult result;
    for (const MultipleChoice& example : examples) {
        int best = 0;
        int best_normalized = 0;
        double smallest = INFINITY;
        double smallest_mean = INFINITY;
        for (int e = 0; e < 4; ++e) {
            const std::vector<int>& ending = example.endings[static_cast<size_t>(e)];
            std::vector<int> tokens = example.context;
            tokens.insert(tokens.end(), ending.begin(), ending.end());
            const int T = static_cast<int>(tokens.size());
            const DeviceBatch batch(tokens, tokens, 1, T, runner.context.stream);
            Guarded<float> device(int64_t{T} * V, runner.context.stream);
            runner.model->logits(device.data(), *batch, 0, T);
            const std::vector<float> logits = device.get();
            double loss = 0;
            for (int t = static_cast<int>(example.context.size()); t < T; ++t) {
                const float* row = logits.data() + (t - 1) * V;
                double sum = 0;
                for (int v = 0; v < V; ++v) sum += std::exp(double{row[v]});
                loss += std::log(sum) - row[tokens[static_cast<size_t>(t)]];
            }
            if (loss < smallest) {
                smallest = loss;
                best = e;
            }
            const double mean = loss / static_cast<double>(ending.size());
            if (mean < smallest_mean) {
                smallest_mean = mean;
                best_normalized = e;
            }
        }
        ++result.examples;
        result.right += best == example.label;
        result.right_normalized += best_normalized == example.label;
    }
    return result;
}

std::vector<uint16_t> numbers_of(const std::vector<MultipleChoice>& examples) {
    std::vector<uint16_t> numbers;
    for (size_t i = 0; i < examples.size(); ++i) {
        const size_t begin = numbers.size();
        const MultipleChoice& e = examples[i];
        auto put = [&](size_t x) { numbers.push_back(static_cast<uint16_t>(x)); };
        auto put_tokens = [&](const std::vector<int>& tokens) {
            put(tokens.size());
            numbers.insert(numbers.end(), tokens.begin(), tokens.end());
        };
        put(65535);
        put(0);
        put(i);
        put(static_cast<size_t>(e.label));
        put(e.endings.size());
        put_tokens(e.context);
        for (const auto& ending : e.endings) put_tokens(ending);
        numbers[begin + 1] = static_cast<uint16_t>((numbers.size() - begin) * 2);
    }
    return numbers;
}

void write_examples(const std::string& path, const std::vector<uint16_t>& numbers, int count, int magic = 20240522) {
    int32_t header[256] = {magic, 1, count, 0};
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(header), sizeof header);
    file.write(reinterpret_cast<const char*>(numbers.data()), static_cast<std::streamsize>(numbers.size() * 2));
}

std::string complaint(const std::string& path, int V) {
    return error_of<UsageError>([&] { read_multiple_choice(path, V); });
}

}  // namespace

TEST_CASE("train/evaluation: endings are chosen as by brute force from logits") {
    for (const char* name : {"gpt2", "llama"}) {
        Golden g(name, DType::f32);
        const int V = golden_config(name).V;
        const std::vector<MultipleChoice> examples = random_examples(23, V, 5);
        const MultipleChoiceResult expected = by_logits(g.runner, examples, V);
        REQUIRE(expected.right != expected.right_normalized);  // otherwise the test could not tell them apart
        for (int B : {1, 3}) {  // 92 rows: batches cut examples, and the last one is not full
            const MultipleChoiceResult r =
                score_multiple_choice(*g.runner.model, examples, {B, kGoldenT}, g.runner.context);
            REQUIRE(r.examples == 23);
            REQUIRE(r.right == expected.right);
            REQUIRE(r.right_normalized == expected.right_normalized);
            REQUIRE(r.shortened == 0);
        }
    }
}

TEST_CASE("train/evaluation: a context that is too long loses its beginning") {
    Golden g("gpt2", DType::f32);
    MultipleChoice fits = random_examples(1, 61, 6)[0];
    MultipleChoice longer = fits;
    for (auto& ending : fits.endings) ending.resize(3, 7);
    longer.endings = fits.endings;
    fits.context = random_ints(kGoldenT - 2, 9, 61);  // context and ending fill T inputs and one target
    longer.context = fits.context;
    longer.context.insert(longer.context.begin(), {1, 2, 3});
    for (int label = 0; label < 4; ++label) {
        fits.label = longer.label = label;
        const auto a = score_multiple_choice(*g.runner.model, {fits}, {2, kGoldenT}, g.runner.context);
        const auto b = score_multiple_choice(*g.runner.model, {longer}, {2, kGoldenT}, g.runner.context);
        REQUIRE(a.right == b.right);
        REQUIRE(a.shortened == 0);
        REQUIRE(b.shortened == 1);
    }
    longer.endings[0].resize(kGoldenT + 1);
    REQUIRE_THROWS_AS(score_multiple_choice(*g.runner.model, {longer}, {2, kGoldenT}, g.runner.context), Error);
}

TEST_CASE("data/multiple_choice: written questions are read back, and damage is named") {
    TempDir folder;
    const std::string path = folder / "h.bin";
    const std::vector<MultipleChoice> examples = random_examples(5, 61, 7);
    const std::vector<uint16_t> numbers = numbers_of(examples);
    write_examples(path, numbers, 5);
    const std::vector<MultipleChoice> read = read_multiple_choice(path, 61);
    REQUIRE(read.size() == 5);
    for (size_t i = 0; i < 5; ++i) {
        REQUIRE(read[i].label == examples[i].label);
        REQUIRE(read[i].context == examples[i].context);
        REQUIRE(read[i].endings == examples[i].endings);
    }
    REQUIRE(contains(complaint(path, 2), "outside the model's vocabulary of 2"));
    write_examples(path, numbers, 6);
    REQUIRE(contains(complaint(path, 61), "5 examples, its header says 6"));
    write_examples(path, numbers, 5, 20240520);
    REQUIRE(contains(complaint(path, 61), "magic 20240520"));
    for (size_t cut = 1; cut < 40; ++cut) {
        write_examples(path, {numbers.begin(), numbers.end() - static_cast<int64_t>(cut)}, 5);
        REQUIRE(complaint(path, 61) != "");
    }
    for (auto [at, value] : {std::pair{0, 1}, {1, 2}, {3, 4}, {4, 3}, {5, 0}}) {
        std::vector<uint16_t> damaged = numbers;
        damaged[static_cast<size_t>(at)] = static_cast<uint16_t>(value);
        write_examples(path, damaged, 5);
        REQUIRE(contains(complaint(path, 61), "example 0"));
    }
    REQUIRE(contains(complaint(folder / "none", 61), "cannot be opened"));
}
