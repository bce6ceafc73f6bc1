// Tables of kernels with the error that each must give, in every order of the modelled GPU's work.
#pragma once

#include <exception>
#include <string>
#include <vector>

#include "gpusim/test/ptx_kernel.h"
#include "test/support/catch.h"

namespace teon::test {

inline const std::vector<std::string> kOrders = {"forward", "reverse", "random:3", "random:4", "random:5"};

struct KernelCase {
    std::string name, body, expected;  // "": no error
    uint32_t threads = 0;              // 0: as many as the file's other cases
};

// run(c, order) runs the case's kernel. Each error contains all of `place`, too.
template <typename Run>
void check_cases(const std::vector<KernelCase>& cases, const std::vector<std::string>& place, Run run) {
    for (const KernelCase& c : cases)
        for (const std::string& order : kOrders) {
            INFO(c.name << ", " << order);
            const std::string error = error_of<std::exception>([&] { run(c, order); });
            if (c.expected.empty()) {
                REQUIRE(error == "");
                continue;
            }
            REQUIRE_THAT(error, ContainsSubstring(c.expected));
            for (const std::string& part : place) REQUIRE_THAT(error, ContainsSubstring(part));
        }
}

}  // namespace teon::test
