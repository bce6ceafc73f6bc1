#include "train/algorithms.h"

#include <fstream>

#include "test/support/catch.h"
#include "test/support/temp_dir.h"

using namespace teon;
using namespace teon::test;

TEST_CASE("train/algorithms: the next run on the same kind of device and library knows the choices") {
    const TempDir dir;
    const std::string path = dir / "algorithms.jsonl";
    {
        AlgorithmFile file(path, "H200", "cuBLASLt 1");
        REQUIRE(file.choices().empty());
        file.add({"a x b", "12.34", 0.5, 0.75});
        file.add({"c x d", "56", 1, 1});
        file.add({"a x b", "78", 0.25, 0.75});
    }
    REQUIRE(AlgorithmFile(path, "H200", "cuBLASLt 1").choices() ==
            std::map<std::string, std::string>{{"a x b", "78"}, {"c x d", "56"}});
    REQUIRE(AlgorithmFile(path, "H200", "cuBLASLt 2").choices().empty());
    {
        AlgorithmFile other(path, "A100", "cuBLASLt 1");
        REQUIRE(other.choices().empty());
        other.add({"a x b", "9", 1, 1});
    }
    REQUIRE(AlgorithmFile(path, "A100", "cuBLASLt 1").choices().size() == 1);
    REQUIRE(AlgorithmFile(path, "H200", "cuBLASLt 1").choices().at("a x b") == "78");
}

TEST_CASE("train/algorithms: an invalid line is refused by its number") {
    const TempDir dir;
    const std::string path = dir / "algorithms.jsonl";
    auto message = [&](const std::string& text) {
        std::ofstream(path) << R"({"device": "d", "library": "l", "product": "p", "algorithm": "1"})"
                            << "\n"
                            << text;
        return error_of<UsageError>([&] { AlgorithmFile(path, "d", "l"); });
    };
    REQUIRE(message("") == "");
    REQUIRE(contains(message("{"), "algorithms.jsonl: line 2"));
    REQUIRE(contains(message(R"({"device": "d", "library": "l", "product": 3, "algorithm": "1"})"),
                     "line 2: \"product\" is 3"));
    REQUIRE(contains(message(R"({"device": "d"})"), "line 2 has no \"library\""));
}
