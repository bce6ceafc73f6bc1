#include "checkpoint/quantized_weight.h"

#include <cmath>
#include <fstream>
#include <map>

#include "files/json.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

using namespace teon;
using namespace teon::test;

namespace {

struct Stored {
    std::string dtype;
    std::vector<int64_t> shape;
    std::string bytes;
};

// A file by hand, as safetensors_header knows no type that the engine does not write.
std::string write_model(const std::string& path, const std::map<std::string, Stored>& model) {
    std::string header;
    std::string data;
    for (const auto& [name, t] : model) {
        const std::string shape = json_text(Json::array_of(t.shape));
        header +=
            fmt::format(R"({}"{}":{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})", header.empty() ? "{" : ",",
                        name, t.dtype, shape, data.size(), data.size() + t.bytes.size());
        data += t.bytes;
    }
    header += "}";
    const uint64_t size = header.size();
    std::ofstream(path, std::ios::binary) << std::string(reinterpret_cast<const char*>(&size), 8) << header << data;
    return path;
}

Stored floats(std::vector<int64_t> shape, const std::vector<float>& values) {
    return {"F32", std::move(shape), std::string(reinterpret_cast<const char*>(values.data()), 4 * values.size())};
}

// The number of a code (arXiv 2209.05433, table 1): a sign bit, 4 bits of exponent with bias 7, 3 of mantissa.
double number_of_e4m3(int code) {
    const int exponent = code >> 3 & 15;
    const int mantissa = code & 7;
    const double value = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    return code & 128 ? -value : value;
}

constexpr int kRows = 200;
constexpr int kCols = 300;

// Codes of all finite numbers.
Stored codes(const std::string& dtype) {
    std::string bytes(size_t{kRows} * kCols, '\0');
    for (size_t i = 0; i < bytes.size(); ++i) {
        bytes[i] = static_cast<char>(i * 7 % 256);
        if (dtype == "F8_E4M3" && (bytes[i] & 127) == 127) bytes[i] = 0;  // NaN
    }
    return {dtype, {kRows, kCols}, bytes};
}

std::string fault_of(const std::string& path, const std::map<std::string, Stored>& model) {
    const SafetensorsModel file(write_model(path, model));
    return error_of<UsageError>([&] { StoredWeight(file, file.find("w")); });
}

}  // namespace

TEST_CASE("checkpoint/quantized_weight: numbers of 8 bits are multiplied by their scales") {
    TempDir folder;
    const auto scale_at = [](int64_t i) { return static_cast<float>(0.25 + 0.125 * static_cast<double>(i)); };
    struct Layout {
        std::string suffix;
        std::vector<int64_t> shape;
        int64_t block_rows, block_cols, per_row;
    };
    const Layout layouts[] = {{"_scale", {}, kRows, kCols, 1},
                              {"_scale", {1}, kRows, kCols, 1},
                              {"_scale", {kRows}, 1, kCols, 1},
                              {"_scale", {kRows, 1}, 1, kCols, 1},
                              {"_scale_inv", {2, 3}, 128, 128, 3}};
    for (const char* dtype : {"F8_E4M3", "I8"})
        for (const Layout& layout : layouts) {
            int64_t n = 1;
            for (const int64_t d : layout.shape) n *= d;
            std::vector<float> scales;
            for (int64_t i = 0; i < n; ++i) scales.push_back(scale_at(i));
            const Stored weight = codes(dtype);
            const SafetensorsModel file(write_model(
                folder / "model.safetensors", {{"w", weight}, {"w" + layout.suffix, floats(layout.shape, scales)}}));
            const StoredWeight stored(file, file.find("w"));
            REQUIRE(stored.scales() == "w" + layout.suffix);
            for (const auto& [first, count] : {std::pair(0, kRows * kCols), std::pair(12345, 23456)}) {
                std::vector<float> out(static_cast<size_t>(count));
                stored.read(first, count, out.data());
                int wrong = 0;
                for (int i = 0; i < count; ++i) {
                    const int64_t row = (first + i) / kCols;
                    const int64_t col = (first + i) % kCols;
                    const char code = weight.bytes[static_cast<size_t>(first + i)];
                    const double value = weight.dtype == "I8" ? code : number_of_e4m3(static_cast<uint8_t>(code));
                    const int64_t scale = row / layout.block_rows * layout.per_row + col / layout.block_cols;
                    // Both factors have few bits: the product is exact.
                    wrong += out[static_cast<size_t>(i)] != value * double{scale_at(scale)};
                }
                INFO(dtype << " " << layout.suffix << " of " << n << " from " << first);
                REQUIRE(wrong == 0);
            }
        }
}

TEST_CASE("checkpoint/quantized_weight: what is stored otherwise is refused by name") {
    TempDir folder;
    const std::string path = folder / "model.safetensors";
    const Stored plain = floats({2}, {1, 2});
    const Stored one = floats({1}, {2});
    REQUIRE(fault_of(path, {{"w", plain}}).empty());
    REQUIRE(contains(fault_of(path, {{"w", plain}, {"w_scale", one}}), "'w' is F32, but has scales, 'w_scale'"));
    REQUIRE(contains(fault_of(path, {{"w", plain}, {"w_scale_inv", one}}), "is F32, but has scales, 'w_scale_inv'"));
    REQUIRE(contains(fault_of(path, {{"w", codes("I8")}}), "'w' is I8 and has no scales, 'w_scale'"));
    REQUIRE(contains(fault_of(path, {{"w", {"U8", {2}, "ab"}}, {"w_scale", one}}), "is U8; where transformers"));
    for (const std::string type : {"F8_E5M2", "F8_E4M3FNUZ", "F4"})
        REQUIRE(contains(fault_of(path, {{"w", {type, {2}, "ab"}}, {"w_scale", one}}),
                         "is " + type + "; where transformers"));
    for (const std::string type : {"U8", "F8_E8M0"})
        REQUIRE(contains(fault_of(path, {{"w", codes("I8")}, {"w_scale", {type, {1}, "a"}}}),
                         "has scales of " + type + ", 'w_scale'; where transformers"));
    REQUIRE(contains(fault_of(path, {{"w", codes("I8")}, {"w_scale", floats({3}, {1, 2, 3})}}),
                     "has scales of the shape [3], expected one, one for each row, or [2, 3] for blocks"));
    REQUIRE(contains(fault_of(path, {{"w", codes("I8")}, {"w_scale", one}, {"w_zero_point", one}}),
                     "has a 'w_zero_point', which is not read; where transformers"));
}

TEST_CASE("checkpoint/quantized_weight: a quantization_config of other methods is refused by name") {
    const auto fault = [](const Json& j) {
        return error_of<UsageError>([&] { check_quantization(j, "config.json"); });
    };
    REQUIRE(fault({}).empty());
    REQUIRE(fault({{"quant_method", "fp8"}, {"weight_block_size", Json::array({128, 128})}}).empty());
    REQUIRE(fault({{"quant_method", "compressed-tensors"}, {"format", "float-quantized"}}).empty());
    for (const auto& [j, says] : std::initializer_list<std::pair<Json, const char*>>{
             {{{"quant_method", "gptq"}, {"bits", 4}}, "quantization_config is gptq; only weights of 8 bits"},
             {{{"bits", 4}}, R"(quantization_config is {"bits":4}; only)"},
             {{{"quant_method", "compressed-tensors"}, {"format", "pack-quantized"}}, "in the format pack-quantized"},
             {{{"quant_method", "compressed-tensors"},
               {"format", "int-quantized"},
               {"sparsity_config", {{"format", "sparse-24-bitmask"}}}},
              "with the sparsity sparse-24-bitmask"}}) {
        REQUIRE(contains(fault(j), says));
        REQUIRE(contains(fault(j), "python3 -c"));
    }
}
