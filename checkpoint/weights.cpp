#include "checkpoint/weights.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/text.h"
#include "checkpoint/quantized_weight.h"
#include "files/file.h"

namespace teon {

namespace {

// Element (i, j) of a parameter is element base + i * row_stride + j * col_stride of its checkpoint tensor.
struct Place {
    int64_t base, row_stride, col_stride;
    bool transposed() const { return col_stride != 1; }
};
Place place_of(const ParamRow& r) {
    const int64_t m = r.logical_rows;
    const int64_t n = r.logical_cols;
    if (m == 1 && r.rows == 1) return {r.slot.part * n, 0, 1};             // a vector: parts follow one another
    if (r.slot.transposed) return {r.slot.part * m, 1, m * r.slot.parts};  // (in, parts * out)
    return {r.slot.part * m * n, n, 1};                                    // (parts * out, in)
}

// Calls f(element of the parameter's storage, element of the checkpoint tensor) for rows [begin, end) of a parameter,
// 16 rows at a time, so that one of a transposed tensor's cache lines serves them all.
template <typename F>
void for_each_element(const ParamRow& r, int64_t begin, int64_t end, F f) {
    constexpr int64_t kRows = 16;
    const Place p = place_of(r);
    for (int64_t first = begin; first < end; first += kRows)
        for (int64_t j = 0; j < r.logical_cols; ++j)
            for (int64_t i = first; i < std::min(first + kRows, end); ++i)
                f(i * r.cols + j, p.base + i * p.row_stride + j * p.col_stride);
}

SafetensorsModel::Found find(const CheckpointTensor& t, const SafetensorsModel& model) {
    SafetensorsModel::Found tensor_found = model.find(t.name);
    for (std::string prefix : {"transformer.", "model."})
        if (!tensor_found && t.name.starts_with(prefix)) tensor_found = model.find(t.name.substr(prefix.size()));
    CHECK_USAGE(tensor_found, "{}: has no tensor '{}'", model.path(), t.name);
    CHECK_USAGE(tensor_found.tensor->shape == t.shape, "{}: tensor '{}' is [{}], this model's is [{}]",
                tensor_found.file->path(), tensor_found.tensor->name, joined(tensor_found.tensor->shape, ", "),
                joined(t.shape, ", "));
    return tensor_found;
}

// Returns "model.layers.0.mlp.up_proj.weight" for "model.layers.7.mlp.up_proj.weight"; other names unchanged.
std::string in_first_layer(const std::string& name) {
    for (const std::string_view layers : {"h.", "layers."})
        for (size_t at = name.find(layers); at != name.npos; at = name.find(layers, at + 1)) {
            const size_t number = at + layers.size();
            const size_t end = name.find_first_not_of("0123456789", number);
            if ((at == 0 || name[at - 1] == '.') && end != name.npos && end > number && name[end] == '.')
                return name.substr(0, number) + "0" + name.substr(end);
        }
    return name;
}

}  // namespace

int64_t CheckpointTensor::elements() const {
    int64_t n = 1;
    for (int64_t d : shape) n *= d;
    return n;
}

std::vector<CheckpointTensor> checkpoint_tensors(const ParamTable& table) {
    std::vector<CheckpointTensor> tensors;
    for (int i = 0; i < table.count(); ++i) {
        const ParamRow& r = table[i];
        auto entry = std::find_if(tensors.begin(), tensors.end(), [&](auto& t) { return t.name == r.slot.tensor; });
        if (entry != tensors.end()) {
            entry->params.push_back(i);
            continue;
        }
        const int64_t m = r.logical_rows;
        const int64_t n = r.logical_cols;
        const int64_t parts = r.slot.parts;
        std::vector<int64_t> shape = {m * parts, n};
        if (r.role == Role::norm || r.role == Role::bias)
            shape = {n * parts};
        else if (r.slot.transposed)
            shape = {n, m * parts};
        tensors.push_back({r.slot.tensor, shape, {i}});
    }
    return tensors;
}

void gather_param(const ParamRow& row, const float* storage, float* tensor) {
    for_each_element(row, 0, row.logical_rows, [&](int64_t here, int64_t there) { tensor[there] = storage[here]; });
}

bool padding_is_zero(const ParamRow& row, const float* storage) {
    const auto zero = [](const float* begin, int64_t n) {
        return std::all_of(begin, begin + n, [](float x) { return x == 0 && !std::signbit(x); });
    };
    const int64_t cols = row.cols;
    for (int64_t i = 0; i < row.logical_rows && cols > row.logical_cols; ++i)
        if (!zero(storage + i * cols + row.logical_cols, cols - row.logical_cols)) return false;
    return zero(storage + row.logical_rows * cols, row.size() - row.logical_rows * cols);
}

std::vector<std::string> check_weights(const ParamTable& table, const SafetensorsModel& model) {
    const std::vector<CheckpointTensor> tensors = checkpoint_tensors(table);
    std::set<std::string> used;
    for (const CheckpointTensor& t : tensors) {
        const SafetensorsModel::Found found = find(t, model);
        used.insert(found.tensor->name);
        used.insert(StoredWeight(model, found).scales());
    }
    const auto embedding = std::find_if(tensors.begin(), tensors.end(), [&](const CheckpointTensor& t) {
        return table[t.params[0]].role == Role::token_embedding;
    });
    int layers = 0;
    for (const ParamRow& row : table.rows()) layers = std::max(layers, row.layer + 1);
    std::vector<std::string> unused;
    for (const std::string& name : model.names()) {
        if (used.count(name)) continue;
        unused.push_back(name);
        CHECK_USAGE(!used.count(in_first_layer(name)),
                    "{}: has a tensor '{}', but its config.json says that there are {} layers", model.path(), name,
                    layers);
        // The model ties a head that it does not use to the embedding.
        if (name != "lm_head.weight" || embedding == tensors.end()) continue;
        const auto head = model.find(name);
        const auto token = find(*embedding, model);
        CHECK_USAGE(head.tensor->shape == token.tensor->shape && head.tensor->dtype == token.tensor->dtype &&
                        head.file->read(*head.tensor) == token.file->read(*token.tensor),
                    "{}: its tensor '{}' is not '{}', to which config.json ties it; set tie_word_embeddings to false "
                    "or remove that tensor",
                    model.path(), name, token.tensor->name);
    }
    return unused;
}

namespace {

// Elements of a checkpoint tensor in float, a part at a time.
class FiniteValues {
public:
    FiniteValues(const SafetensorsModel& model, const SafetensorsModel::Found& tensor)
        : tensor_(tensor), stored_(model, tensor) {}

    // Reads the elements [first, first + n). Throws Error naming file and tensor if one is not finite.
    void read(int64_t first, int64_t n) {
        first_ = first;
        values_.resize(static_cast<size_t>(n));
        stored_.read(first, n, values_.data());
        const auto bad = std::find_if(values_.begin(), values_.end(), [](float x) { return !std::isfinite(x); });
        CHECK(bad == values_.end(), "{}: tensor '{}' is not finite at element {}; the saved model was broken",
              tensor_.file->path(), tensor_.tensor->name, first + (bad - values_.begin()));
    }
    float operator[](int64_t element) const { return values_[static_cast<size_t>(element - first_)]; }

private:
    const SafetensorsModel::Found tensor_;
    const StoredWeight stored_;
    std::vector<float> values_;
    int64_t first_ = 0;
};

// Sets a parameter from its checkpoint tensor, some rows at a time. `values` has the whole tensor if it is transposed.
void load_param(ParamStore& params, int i, FiniteValues& values, const Stream& stream) {
    const ParamRow& row = params.table()[i];
    const Place place = place_of(row);
    const int64_t rows_at_once = std::max<int64_t>(1, ParamStore::kStagedElements / row.cols);
    std::vector<float> storage;
    for (int64_t begin = 0; begin < row.rows; begin += rows_at_once) {
        const int64_t end = std::min<int64_t>(row.rows, begin + rows_at_once);
        const int64_t end_of_data = std::min<int64_t>(row.logical_rows, end);
        if (!place.transposed() && begin < end_of_data)
            values.read(place.base + begin * place.row_stride, (end_of_data - begin) * row.logical_cols);
        const int64_t first = begin * row.cols;
        storage.assign(static_cast<size_t>((end - begin) * row.cols), 0.0f);
        for_each_element(row, begin, end_of_data, [&](int64_t here, int64_t there) {
            storage[static_cast<size_t>(here - first)] = values[there];
        });
        upload(params.staging(i, first), storage.data(), std::ssize(storage), stream);
        params.place(i, first, std::ssize(storage), stream);
        stream.synchronize();  // storage is reused
    }
}

}  // namespace

void load_weights(ParamStore& params, const SafetensorsModel& model, const Stream& stream) {
    refusing_as_usage([&] {
        for (const CheckpointTensor& t : checkpoint_tensors(params.table())) {
            FiniteValues values(model, find(t, model));
            if (place_of(params.table()[t.params.front()]).transposed()) values.read(0, t.elements());
            for (int i : t.params) load_param(params, i, values, stream);
        }
    });
}

}  // namespace teon
