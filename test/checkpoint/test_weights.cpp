#include "checkpoint/weights.h"

#include <fstream>

#include "test/support/catch.h"
#include "test/support/temp_dir.h"
#include "test/support/transfer.h"

using namespace teon;
using namespace teon::test;

namespace {

// Parameters of more than ParamStore::kStagedElements, with padding: one, and two that are the halves of a transposed
// tensor.
constexpr int kRows = 5000;
constexpr int kCols = 1030;
constexpr int kStoredRows = 5120;
constexpr int kStoredCols = 1032;

ParamRow row_of(const std::string& name, CheckpointSlot slot) {
    ParamRow row;
    row.name = name;
    row.role = Role::mlp_up;
    row.rows = kStoredRows;
    row.cols = kStoredCols;
    row.logical_rows = kRows;
    row.logical_cols = kCols;
    row.slot = std::move(slot);
    return row;
}

float element(int64_t i) { return static_cast<float>(i % 251 - 125); }  // exact in bf16

void write_file(const std::string& path) {
    std::vector<float> values(static_cast<size_t>(2) * kRows * kCols);
    for (size_t i = 0; i < values.size(); ++i) values[i] = element(static_cast<int64_t>(i));
    const std::vector<TensorData> tensors = {{"plain", "F32", {kRows, kCols}, values.data()},
                                             {"both", "F32", {kCols, 2 * kRows}, values.data()}};
    std::ofstream file(path, std::ios::binary);
    file << safetensors_header(tensors, {});
    for (const TensorData& t : tensors) file.write(static_cast<const char*>(t.data), bytes_of(t));
}

template <typename T>
void check_weights_of(const std::string& path, bool has_masters) {
    ParamTable table;
    table.add(row_of("plain", {"plain"}));
    table.add(row_of("first", {"both", 0, 2, true}));
    table.add(row_of("second", {"both", 1, 2, true}));
    const Stream stream;
    ParamStore params(table, dtype_of<T>, stream, has_masters);
    load_weights(params, SafetensorsModel(path), stream);
    for (int r = 0; r < table.count(); ++r) {
        const std::vector<T> stored = fetch(params.work<T>(r), table[r].size(), stream);
        int64_t wrong = 0;
        for (int64_t i = 0; i < kStoredRows; ++i)
            for (int64_t j = 0; j < kStoredCols; ++j) {
                const int64_t place = r == 0 ? i * kCols + j : j * 2 * kRows + (r - 1) * kRows + i;
                const float expected = i < kRows && j < kCols ? element(place) : 0.0f;
                wrong += static_cast<float>(stored[static_cast<size_t>(i * kStoredCols + j)]) != expected;
            }
        INFO(table[r].name);
        REQUIRE(wrong == 0);
    }
}

}  // namespace

TEST_CASE("checkpoint/weights: parameters that are read in several parts, padded and transposed") {
    REQUIRE(int64_t{kStoredRows} * kStoredCols > ParamStore::kStagedElements);
    TempDir folder;
    const std::string path = folder / "model.safetensors";
    write_file(path);
    check_weights_of<float>(path, true);
    check_weights_of<bf16>(path, true);
    check_weights_of<bf16>(path, false);
}
