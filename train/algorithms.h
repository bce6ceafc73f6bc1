// The file of algorithms that --autotune chose for matrix products. The same file gives the same bits. One JSON object
// per line: {"device", "library", "product", "algorithm", "ms", "first_ms"}.
#pragma once

#include <map>
#include <string>

#include "runtime/linalg/linalg.h"

namespace teon {

class AlgorithmFile {
public:
    // Reads the file if it exists. Throws UsageError naming path and line.
    AlgorithmFile(std::string path, std::string device, std::string library);
    // This device's and library's algorithms, by product.
    const std::map<std::string, std::string>& choices() const { return choices_; }
    // Adds a line, or replaces the line of the same product, device and library. Throws Error naming the path.
    void add(const AlgorithmChoice& choice);

private:
    std::string path_, device_, library_;
    std::map<std::string, std::string> choices_;
    std::map<std::string, std::string> lines_;  // by device, library and product
};

}  // namespace teon
