#include <sys/resource.h>

#include <cmath>
#include <fstream>

#include "test/support/catch.h"
#include "test/support/cpu_time.h"
#include "test/support/json.h"
#include "test/support/temp_dir.h"

using namespace teon;
using namespace teon::test;
using nlohmann::json;

namespace {

std::string json_error(std::string_view text, const JsonLimits& limits = {}) {
    return error_of([&] { parse_json(text, "some.json", limits); });
}

}  // namespace

TEST_CASE("files/json: members are by key or in order, and copies are independent") {
    Json j = {{"b", 1}, {"a", {{"z", Json::array({1.5, "x"})}, {"y", true}}}, {"c", nullptr}};
    REQUIRE(json_text(j) == R"({"a":{"y":true,"z":[1.5,"x"]},"b":1,"c":null})");
    REQUIRE(json_text(j, {.in_order = true}) == R"({"b":1,"a":{"z":[1.5,"x"],"y":true},"c":null})");
    Json copy = j;
    copy["a"]["z"].push_back(2);
    copy["b"] = "later";  // keeps its place
    copy["removed"] = 0;
    copy.erase("c");
    copy["d"] = Json::array_of(std::vector<int>{7, 8});
    copy.erase("removed");
    REQUIRE(json_text(copy, {.in_order = true}) == R"({"b":"later","a":{"z":[1.5,"x",2],"y":true},"d":[7,8]})");
    REQUIRE(json_text(j) == R"({"a":{"y":true,"z":[1.5,"x"]},"b":1,"c":null})");
    copy.erase("b");
    copy["b"] = "later";  // comes last now
    REQUIRE(json_text(copy, {.in_order = true}) == R"({"a":{"z":[1.5,"x",2],"y":true},"d":[7,8],"b":"later"})");
    j.update(copy);
    REQUIRE(json_text(j, {.in_order = true}) == R"({"b":"later","a":{"z":[1.5,"x",2],"y":true},"c":null,"d":[7,8]})");
    copy = copy["a"];  // a part of itself
    REQUIRE(copy == Json{{"y", true}, {"z", Json::array({1.5, "x", 2})}});
    j = std::move(copy);
    REQUIRE(j["z"].items().size() == 3);
}

TEST_CASE("files/json: reading another kind of value sees nothing, changing it is refused") {
    const Json number = 3;
    REQUIRE(number["a"].is_null());
    REQUIRE(number["a"]["b"].value("c", 7) == 7);
    REQUIRE(number.size() + number.items().size() + number.members().size() == 0);
    Json text = "x";
    REQUIRE_THAT(error_of<UsageError>([&] { text["a"] = 1; }), ContainsSubstring("\"x\" is not an object"));
    REQUIRE_THAT(error_of<UsageError>([&] { text.erase("a"); }), ContainsSubstring("\"x\" is not an object"));
    REQUIRE_THAT(error_of<UsageError>([&] { text.push_back(1); }), ContainsSubstring("\"x\" is not an array"));
    REQUIRE(error_of<UsageError>([&] { text.get<int>("y"); }) == "y is \"x\", expected a whole number");
}

TEST_CASE("files/json: numbers of different kinds are equal if their values are") {
    REQUIRE(Json(1) == Json(1.0));
    REQUIRE(Json(uint64_t{5}) == Json(5));
    REQUIRE(!(Json(UINT64_MAX) == Json(-1)));
    REQUIRE(!(Json(true) == Json(1)));
    REQUIRE(Json(UINT64_MAX).get<uint64_t>() == UINT64_MAX);
    REQUIRE(Json(INT64_MIN).get<int64_t>() == INT64_MIN);
    REQUIRE(json_text(Json::array({std::nan(""), HUGE_VAL, 0.1, 1e-7, 1.0, 0.1f})) ==
            json({std::nan(""), HUGE_VAL, 0.1, 1e-7, 1.0, 0.1f}).dump());
}

TEST_CASE("files/json: invalid UTF-8 is refused or replaced") {
    REQUIRE_THROWS(json_text({{"a", "\xff"}}));
    REQUIRE(json_text({{"a", "\xff"}}, {.any_bytes = true}) == "{\"a\":\"\uFFFD\"}");
    REQUIRE(json_text({{"\xff", 1}}, {.any_bytes = true}) == "{\"\uFFFD\":1}");
    REQUIRE(json_text(Json("t\u00e9\n"), {.ascii = true}) == "\"t\\u00e9\\n\"");
}

TEST_CASE("files/json: written values are read back") {
    const json j = {{"a", {1, -2, 2.5, nullptr, true, "t\u00e9xt\n\"quoted\"", json::array(), json::object()}},
                    {"b", {{"c", {{"d", UINT64_MAX}, {"e", INT64_MIN}}}}},
                    {"", ""}};
    REQUIRE(library_json(parse_json(j.dump(), "x")) == j);
    REQUIRE(library_json(parse_json(j.dump(3) + "\n", "x")) == j);
    for (const int indent : {-1, 0, 3})
        REQUIRE(json_text(parse_json(j.dump(), "x"), {.indent = indent}) == j.dump(indent));
    REQUIRE(parse_json("{}", "x") == Json::object());
    std::string deep = "1";
    for (int i = 0; i < 63; ++i) deep = "[" + deep + "]";
    REQUIRE(json_text(parse_json("{\"a\":" + deep + "}", "x")) == "{\"a\":" + deep + "}");
    REQUIRE_THAT(json_error("{\"a\":[" + deep + "]}"), ContainsSubstring("more than 64 nested brackets"));
}

TEST_CASE("files/json: text that is not a JSON object is refused in one line with place and reason") {
    const std::pair<const char*, const char*> cases[] = {
        {"", "is empty"},
        {" \n ", "is empty"},
        {"[]", "not a JSON object"},
        {"3", "not a JSON object"},
        {"{", "line 1, column 2"},
        {"{\n  \"a\": 1,\n  \"b\": x\n}", "line 3, column 8"},
        {"{\"a\": 1} {", "line 1, column 10"},
        {"{\"a\": 1,}", "line 1, column 9"},
        {"{\"a\": \"\xff\"}", "not valid JSON"},
        {"{\"a\": 1e999}", "a number is out of range"},
        {"{\"a\": NaN}", "not valid JSON"},
        {"{\"a\": 1, \"b\": {\"a\": 2, \"a\": 3}}", "\"a\" occurs twice"},
        {"{'a': 1}", "line 1, column 2"},
    };
    for (const auto& [text, says] : cases) {
        INFO(text);
        REQUIRE_THAT(json_error(text), ContainsSubstring(says));
        REQUIRE(json_error(text).starts_with("some.json: "));
    }
    REQUIRE_THAT(json_error("{\"a\":[1,2,3]}", {.values = 4}), ContainsSubstring("more than 4 values"));
    REQUIRE(json_error("{\"a\":[1,2,3]}", {.values = 5}) == "");
    REQUIRE_THAT(json_error("{\"a\":1}", {.bytes = 6}), ContainsSubstring("7 bytes, more than the 6"));
    TempDir folder;
    std::ofstream(folder / "x.json") << "{\"a\": tru}";
    REQUIRE_THAT(error_of([&] { read_json(folder / "x.json"); }), ContainsSubstring(folder / "x.json: not valid JSON"));
}

TEST_CASE("files/json: hostile text costs neither time nor memory") {
    const JsonLimits large = {.bytes = 100'000'000};
    auto megabytes = [] {  // the process's peak memory so far
        struct rusage usage;
        ::getrusage(RUSAGE_SELF, &usage);
        return usage.ru_maxrss / 1024;
    };
    std::string text = "{\"a\":";
    text.resize(99'000'000, '[');
    const long before = megabytes();
    REQUIRE_THAT(json_error(text, large), ContainsSubstring("more than 64 nested brackets"));
    REQUIRE(megabytes() - before < 10);
    // 49 million values would be 784 MB.
    for (size_t i = 6; i < text.size(); i += 2) {
        text[i] = '0';
        text[i + 1] = ',';
    }
    REQUIRE_THAT(json_error(text, large), ContainsSubstring("more than 4000000 values"));
    REQUIRE(megabytes() - before < 300);
    // A million objects one after the other: 40 times as many take about 40 times as long, not 1600 times.
    auto time_of = [](int objects) {
        std::string list = "{\"a\":[{}";
        for (int i = 1; i < objects; ++i) list += ",{}";
        list += "]}";
        return cpu_seconds_of([&] { REQUIRE(parse_json(list, "x")["a"].size() == static_cast<size_t>(objects)); });
    };
    time_of(25'000);
    REQUIRE(time_of(1'000'000) < 400 * time_of(25'000));
}

TEST_CASE("files/json: a value is of the type asked for, or its key is named") {
    std::string text = R"({"whole": 3, "big": 5000000000, "negative": -1, "half": 0.5, "huge": 1e300, "yes": true,
                               "text": "x", "none": null, "list": [1], "long": ")";
    text.append(500, 'y') += R"("})";
    const Json j = parse_json(text, "run.json");
    const JsonObject o(j, "run.json");
    REQUIRE(o.at<int>("whole") == 3);
    REQUIRE(o.at<int64_t>("big") == 5000000000);
    REQUIRE(o.at<int>("negative") == -1);
    REQUIRE(o.at<float>("whole") == 3.0f);
    REQUIRE(o.at<double>("half") == 0.5);
    REQUIRE(o.at<double>("huge") == 1e300);
    REQUIRE(o.at<bool>("yes"));
    REQUIRE(o.at<std::string>("text") == "x");
    REQUIRE(o.at<Json>("list") == Json::array({1}));
    REQUIRE(o.get("none", 7) == 7);
    REQUIRE(o.get("absent", 7) == 7);
    REQUIRE(o.get("whole", 7) == 3);
    REQUIRE(!o.has("none"));
    REQUIRE(error_of([&] { o.at<int>("absent"); }) == "run.json: absent is missing");
    REQUIRE(error_of([&] { o.at<int>("none"); }) == "run.json: none is null, expected a whole number");
    REQUIRE(error_of([&] { o.at<int>("half"); }) == "run.json: half is 0.5, expected a whole number");
    REQUIRE(error_of([&] { o.at<int>("yes"); }) == "run.json: yes is true, expected a whole number");
    REQUIRE(error_of([&] { o.get("big", 1); }) == "run.json: big is 5000000000, expected a smaller number");
    REQUIRE_THAT(error_of([&] { o.get<unsigned>("negative", 1); }), ContainsSubstring("negative is -1"));
    REQUIRE_THAT(error_of([&] { o.at<float>("huge"); }), ContainsSubstring("expected a smaller number"));
    REQUIRE_THAT(error_of([&] { o.at<float>("text"); }), ContainsSubstring("text is \"x\", expected a number"));
    REQUIRE_THAT(error_of([&] { o.at<bool>("whole"); }), ContainsSubstring("expected true or false"));
    REQUIRE_THAT(error_of([&] { o.at<std::string>("list"); }), ContainsSubstring("list is [1], expected a text"));
    REQUIRE(error_of([&] { o.at<int>("long"); }).size() < 120);
    REQUIRE_THAT(error_of([&] { JsonObject(j["list"], "run.json: list"); }), ContainsSubstring("expected an object"));
}
