#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <set>

#include "files/file.h"
#include "test/support/catch.h"
#include "test/support/cpu_time.h"
#include "test/support/json.h"
#include "test/support/temp_dir.h"

using namespace teon;
using namespace teon::test;
using nlohmann::json;

// The number of calls after which readdir() fails; -1: never.
static int calls_before_fault = -1;
extern "C" struct dirent* readdir(DIR* folder) {
    if (calls_before_fault == 0) {
        errno = EIO;
        return nullptr;
    }
    if (calls_before_fault > 0) --calls_before_fault;
    static const auto next = reinterpret_cast<struct dirent* (*)(DIR*)>(::dlsym(RTLD_NEXT, "readdir"));
    return next(folder);
}

namespace {

std::string json_error(std::string_view text, const JsonLimits& limits = {}) {
    return error_of([&] { parse_json(text, "some.json", limits); });
}

}  // namespace

TEST_CASE("files/file: a path that is not a regular file is refused by name, and links are never written through") {
    TempDir folder;
    const std::string pipe = folder / "pipe";
    const std::string file = folder / "file";
    const std::string link = folder / "link";
    REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
    std::ofstream(file) << "content";
    REQUIRE(::symlink(file.c_str(), link.c_str()) == 0);
    REQUIRE(::symlink("nowhere", (folder / "dangling").c_str()) == 0);
    REQUIRE(read_text(link, 100) == "content");
    REQUIRE(read_text(file, 7) == "content");
    REQUIRE_THAT(error_of([&] { read_text(file, 6); }), ContainsSubstring("file: 7 bytes, more than the 6"));
    const std::pair<std::string, const char*> unreadable[] = {{pipe, "pipe: is not a regular file"},
                                                              {folder.path(), "is a directory"},
                                                              {"/dev/zero", "/dev/zero: is not a regular file"},
                                                              {folder / "none", "none: cannot be opened: No such file"},
                                                              {folder / "dangling", "dangling: cannot be opened"}};
    for (const auto& row : unreadable)
        REQUIRE_THAT(error_of([&] { read_text(row.first, 100); }), ContainsSubstring(row.second));
    const std::pair<std::string, const char*> unwritable[] = {
        {pipe, "pipe: cannot be opened"},
        {folder.path(), "cannot be opened"},
        {"/dev/null", "/dev/null: is not a regular file"},
        {link, "link: cannot be opened for writing: it is a symbolic link"},
        {folder / "no/folder", "cannot be opened"}};
    for (const auto& row : unwritable)
        REQUIRE_THAT(error_of([&] { open_for_append(row.first); }), ContainsSubstring(row.second));
    // With a reader at its other end the pipe can be opened, but is still refused.
    const Descriptor reader(::open(pipe.c_str(), O_RDONLY | O_NONBLOCK));
    REQUIRE_THAT(error_of([&] { open_for_append(pipe); }), ContainsSubstring("pipe: is not a regular file"));
    write_all(open_for_append(file), "+more", 5, file);
    REQUIRE(read_file(file) == "content+more");
    REQUIRE_THAT(error_of([&] { InputFile(file).read(std::string(20, ' ').data(), 20, 0); }),
                 ContainsSubstring("file: ends at byte 12, 8 more were expected"));
}

TEST_CASE("files/file: a folder's names are sorted, and a folder that cannot be read is an error") {
    TempDir folder;
    for (const char* name : {"b", "a", ".c"}) std::ofstream(folder / name) << "x";
    std::error_code error;
    using Names = std::vector<std::string>;
    REQUIRE(names_in(folder.path(), error) == Names{".c", "a", "b"});
    REQUIRE(names_in(folder / "none", error).empty());
    REQUIRE(names_in(folder / "a", error).empty());
    REQUIRE(!error);
    for (int calls : {0, 1, 2}) {
        calls_before_fault = calls;
        names_in(folder.path(), error);
        calls_before_fault = -1;
        REQUIRE(error == std::errc::io_error);
    }
}

TEST_CASE("files/file: a file is replaced as a whole or not at all, whatever lies at the temporary's name") {
    TempDir folder;
    const std::string path = folder / "config.json";
    const std::string victim = folder / "victim";
    const std::string temporary = path + ".tmp";
    std::ofstream(victim) << "mine";
    REQUIRE(::symlink(victim.c_str(), temporary.c_str()) == 0);
    write_file_atomically(path, "new");
    REQUIRE(read_file(path) == "new");
    REQUIRE(read_file(victim) == "mine");
    REQUIRE(::mkfifo(temporary.c_str(), 0600) == 0);
    write_file_atomically(path, "newer");
    REQUIRE(read_file(path) == "newer");
    std::filesystem::remove(path);
    std::filesystem::create_symlink(victim, path);  // replaces the link, not its target
    write_file_atomically(path, "newest");
    REQUIRE(read_file(path) == "newest");
    REQUIRE(read_file(victim) == "mine");
    std::filesystem::create_directory(temporary);
    REQUIRE_THAT(error_of([&] { write_file_atomically(path, "x"); }), ContainsSubstring(temporary));
    REQUIRE(read_file(path) == "newest");
    std::filesystem::remove(temporary);
    std::filesystem::create_directory(folder / "there");
    REQUIRE_THAT(error_of([&] { write_file_atomically(folder / "there", "x"); }),
                 ContainsSubstring("there: is not a regular file"));
    REQUIRE(!std::filesystem::exists(folder / "there.tmp"));
    // A limit on the size of files stands in for a full disk.
    struct rlimit before;
    REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
    const struct rlimit small = {1000, before.rlim_max};
    const auto handler = std::signal(SIGXFSZ, SIG_IGN);
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
    const std::string said = error_of([&] { write_file_atomically(path, std::string(2000, 'x')); });
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
    std::signal(SIGXFSZ, handler);
    REQUIRE_THAT(said, ContainsSubstring("config.json.tmp: cannot be written"));
    REQUIRE(read_file(path) == "newest");
    REQUIRE(!std::filesystem::exists(temporary));
}

TEST_CASE("files/files: a device or a pipe is not replaced by a file") {
    TempDir folder;
    const std::string pipe = folder / "pipe";
    const std::string link = folder / "link";
    REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
    REQUIRE(error_of([&] { write_file_atomically(pipe, "x"); }) ==
            pipe + ": is not a regular file, and is not replaced by one");
    struct stat status;
    REQUIRE(::lstat(pipe.c_str(), &status) == 0);
    REQUIRE(S_ISFIFO(status.st_mode));
    REQUIRE(::symlink("/dev/null", link.c_str()) == 0);
    write_file_atomically(link, "x");  // replaces the link, not its target
    REQUIRE(read_text(link, 9) == "x");
}

TEST_CASE("files/file: a sampled hash is of the size, all of a small file, and places all over a large one") {
    TempDir folder;
    const std::string path = folder / "shard";
    auto hash = [&](const std::string& bytes) {
        write_file_atomically(path, bytes);
        return sampled_hash(path);
    };
    std::string small(1000, 'a');
    std::string large(3 << 20, 'b');
    std::set<std::string> seen = {hash(""), hash(small), hash(small + "a"), hash(large), hash(large + "b")};
    REQUIRE(seen.size() == 5);
    for (size_t at : {size_t{0}, size_t{500}, size_t{999}}) {
        std::string other = small;
        other[at] = 'c';
        REQUIRE(seen.insert(hash(other)).second);
    }
    for (size_t at : {size_t{0}, large.size() / 15 * 7 + 100, large.size() - 1}) {
        std::string other = large;
        other[at] = 'c';
        REQUIRE(seen.insert(hash(other)).second);
    }
    REQUIRE(hash(small) == hash(small));
    REQUIRE(hash(small).size() == 16);
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
    const Json j =
        parse_json(R"({"whole": 3, "big": 5000000000, "negative": -1, "half": 0.5, "huge": 1e300, "yes": true,
                               "text": "x", "none": null, "list": [1], "long": ")" +
                       std::string(500, 'y') + R"("})",
                   "run.json");
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
