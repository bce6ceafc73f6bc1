// Algorithms of products, chosen by trials on the device.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "runtime/device.h"

namespace teon {

// What a search for algorithms found for one kind of product.
struct AlgorithmChoice {
    std::string product;    // all that the choice may depend on: sizes, types, strides, alignments, epilogue
    std::string algorithm;  // the library's, in hexadecimal digits; of a symmetric product: by whom
    double ms = 0;          // it took
    double first_ms = 0;    // the library's first proposal took; of a symmetric product: the library
};

// Holds a reference to the stream.
class AlgorithmSearch {
public:
    static constexpr double kGain = 0.98;  // of another time, below which an algorithm is faster; more is noise

    explicit AlgorithmSearch(const Stream& stream) : stream_(stream) {}

    // known: algorithm by product. chosen is called with each choice that trials have made.
    void start(std::map<std::string, std::string> known, std::function<void(const AlgorithmChoice&)> chosen);

    // False before start(), and while the stream captures a graph, where nothing can be timed.
    bool may_try() const;
    // nullptr: none.
    const std::string* known(const std::string& product) const;
    void report(const AlgorithmChoice& choice) const;
    // Of one of several runs in a row.
    double milliseconds(const std::function<void()>& run) const;

private:
    const Stream& stream_;
    bool started_ = false;
    std::map<std::string, std::string> known_;
    std::function<void(const AlgorithmChoice&)> chosen_;
};

}  // namespace teon
