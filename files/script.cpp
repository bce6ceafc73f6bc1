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

}  // namespace

std::vector<std::vector<std::string>> script_commands(const std::string& name,
                                                      const std::vector<std::string>& arguments) {
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

}  // namespace teon
