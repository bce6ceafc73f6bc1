#include "files/script.h"

#include <filesystem>

#include "base/check.h"

namespace teon {

namespace {

namespace fs = std::filesystem;

// Returns the project's folder, which is the program's or above it (build/cpu).
fs::path project_folder(const std::string& name) {
    std::error_code error;
    const fs::path program = fs::read_symlink("/proc/self/exe", error);
    for (fs::path folder = program.parent_path(); folder.has_relative_path(); folder = folder.parent_path())
        if (fs::exists(folder / "scripts" / name, error)) return folder;
    throw Error(fmt::format("{}: scripts/{} is not in its folder or above", program.string(), name));
}

// The commands that run the script: with the Python of .venv, if it exists, and with python3.
std::vector<std::vector<std::string>> commands_of(const std::string& name, const std::vector<std::string>& arguments) {
    const fs::path project = project_folder(name);
    const fs::path python = project / ".venv" / "bin" / "python";
    std::vector<std::string> words = {"python3", (project / "scripts" / name).string()};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<std::vector<std::string>> commands = {words};
    std::error_code error;
    words[0] = python.string();
    if (fs::exists(python, error)) commands.insert(commands.begin(), words);
    return commands;
}

}  // namespace

Script::Script(const std::string& name, const std::vector<std::string>& arguments, double patience_s)
    : name_("the answer of scripts/" + name), server_(commands_of(name, arguments), patience_s) {}

Json Script::ask(const Json& request, const char* key) {
    const Json answer =
        parse_json(server_.ask(json_text(request)), name_, {.bytes = int64_t{1} << 30, .values = 1 << 28});
    const JsonObject object(answer, name_);
    CHECK_USAGE(!object.has("error"), "{}", object.at<std::string>("error"));
    return object.at<Json>(key);
}

}  // namespace teon
