// The choice of algorithms for products, by trials on the device.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "runtime/cuda/device.h"

namespace teon {

// The result of a search for one kind of product.
struct AlgorithmChoice {
    std::string product;    // everything the choice may depend on: sizes, types, strides, alignments, epilogue
    std::string algorithm;  // the library's, in hexadecimal digits; for a symmetric product, who computes it
    double ms = 0;          // time of the chosen algorithm
    double first_ms = 0;    // time of the library's first proposal; for a symmetric product, of the library
};

// Times algorithms on a stream, to which it holds a reference.
class AlgorithmSearch {
public:
    static constexpr double kGain = 0.98;  // faster means below this fraction of the other time; the rest is noise

    explicit AlgorithmSearch(const Stream& stream) : stream_(stream) {}

    // Turns trials on. known maps products to algorithms. chosen is called with each choice that trials make.
    void start(std::map<std::string, std::string> choices, std::function<void(const AlgorithmChoice&)> chosen);

    // Returns false before start(), and while the stream captures a graph, when nothing can be timed.
    bool may_try() const;
    // Returns the algorithm that start() was given for the product, or nullptr.
    const std::string* choice_of(const std::string& product) const;
    void report(const AlgorithmChoice& choice) const;
    // Returns the time of one run, the mean of several runs in a row.
    double milliseconds(const std::function<void()>& run) const;

private:
    const Stream& stream_;
    bool started_ = false;
    std::map<std::string, std::string> known_;
    std::function<void(const AlgorithmChoice&)> chosen_;
};

}  // namespace teon
