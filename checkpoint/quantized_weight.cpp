#include "checkpoint/quantized_weight.h"

#include <algorithm>
#include <array>

#include "base/integer.h"
#include "base/text.h"

namespace teon {

namespace {

constexpr int64_t kBlock = 128;

// How to come by weights that can be read, with transformers 5 and the package of their format.
constexpr const char* kWayOut =
    "; where transformers decompresses it, this makes a folder in bf16: python3 -c \"import transformers as t; "
    "c = t.AutoConfig.from_pretrained('FOLDER'); c.quantization_config['dequantize'] = True; "
    "t.AutoModelForCausalLM.from_pretrained('FOLDER', config=c, dtype='bfloat16').save_pretrained('OUT')\"";

bool in_float(const std::string& dtype) {
    return dtype == "F32" || dtype == "BF16" || dtype == "F16" || dtype == "F64";
}

}  // namespace

void check_quantization(const Json& quantization, const std::string& path) {
    if (quantization.is_null()) return;
    const JsonObject q(quantization, path + ": quantization_config");
    const auto method = q.get<std::string>("quant_method", "");
    std::string what = method;
    if (method == "compressed-tensors") {
        const auto format = q.get<std::string>("format", "");
        const auto sparsity = q.get("sparsity_config", Json::object());
        const std::string sparse = sparsity.value("format", "dense");
        what += sparse == "dense" ? " in the format " + format : " with the sparsity " + sparse;
        constexpr std::array kFormats = {"float-quantized", "int-quantized", "naive-quantized"};
        const bool plain = sparse == "dense" && q.get("transform_config", Json::object()).size() == 0;
        if (plain && std::ranges::count(kFormats, format) > 0) return;
    }
    if (method == "fp8" || method == "fbgemm_fp8") return;
    throw UsageError(fmt::format("{} is {}; only weights of 8 bits with scales are read{}", q.name(),
                                 what.empty() ? shown(quantization) : what, kWayOut));
}

StoredWeight::StoredWeight(const SafetensorsModel& model, const SafetensorsModel::Found& tensor) : tensor_(tensor) {
    const TensorInfo& t = *tensor.tensor;
    SafetensorsModel::Found scale;
    for (const char* suffix : {"_scale", "_scale_inv"})
        if (const auto found = model.find(t.name + suffix)) scale = found;
    const auto fault = [&](const std::string& what) {
        return fmt::format("{}: tensor '{}' {}", tensor.file->path(), t.name, what);
    };
    for (const char* suffix : {"_zero_point", "_global_scale"})
        CHECK_USAGE(!model.find(t.name + suffix), "{}",
                    fault(fmt::format("has a '{}{}', which is not read", t.name, suffix)) + kWayOut);
    if (in_float(t.dtype)) {
        CHECK_USAGE(!scale, "{}",
                    fault(fmt::format("is {}, but has scales, '{}': if its numbers are final, remove the scales",
                                      t.dtype, scale.tensor->name)));
        return;
    }
    CHECK_USAGE(t.dtype == "F8_E4M3" || t.dtype == "I8", "{}", fault("is " + t.dtype + kWayOut));
    CHECK_USAGE(scale, "{}", fault(fmt::format("is {} and has no scales, '{}_scale'", t.dtype, t.name)));
    scale_name_ = scale.tensor->name;
    const std::vector<int64_t>& shape = scale.tensor->shape;
    CHECK_USAGE(in_float(scale.tensor->dtype), "{}",
                fault(fmt::format("has scales of {}, '{}'", scale.tensor->dtype, scale_name_)) + kWayOut);
    const int64_t rows = t.shape.empty() ? 1 : t.shape[0];
    cols_ = rows > 0 ? t.elements() / rows : 1;
    const std::vector<int64_t> blocks = {ceil_div(rows, kBlock), ceil_div(cols_, kBlock)};
    if (scale.tensor->elements() == 1) {
        block_rows_ = std::max<int64_t>(1, rows);
        block_cols_ = std::max<int64_t>(1, cols_);
    } else if (shape == std::vector{rows} || shape == std::vector{rows, int64_t{1}}) {
        block_cols_ = std::max<int64_t>(1, cols_);
    } else {
        CHECK_USAGE(shape == blocks, "{}",
                    fault(fmt::format("has scales of the shape [{}], expected one, one for each row, or [{}] for "
                                      "blocks of {} x {}",
                                      joined(shape, ", "), joined(blocks, ", "), kBlock, kBlock)) +
                        kWayOut);
        block_rows_ = block_cols_ = kBlock;
        scale_cols_ = blocks[1];
    }
    scales_ = scale.file->read_float(*scale.tensor);
}

void StoredWeight::read(int64_t first, int64_t n, float* out) const {
    tensor_.file->read_float(*tensor_.tensor, first, n, out);
    if (scales_.empty()) return;
    int64_t row = first / cols_;
    int64_t col = first % cols_;
    for (int64_t i = 0; i < n; ++i) {
        out[i] *= scale_of(row, col);
        if (++col < cols_) continue;
        col = 0;
        ++row;
    }
}

}  // namespace teon
