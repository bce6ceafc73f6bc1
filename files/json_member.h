// A JSON value as a member of a class whose header need not include json.hpp, a second of each compile.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>

namespace teon {

class JsonMember {
public:
    JsonMember();  // an empty object
    explicit JsonMember(const nlohmann::json& value);
    JsonMember(const JsonMember& other);
    JsonMember& operator=(const JsonMember& other);
    JsonMember& operator=(const nlohmann::json& value);
    ~JsonMember();

    nlohmann::json& operator*() { return *value_; }
    const nlohmann::json& operator*() const { return *value_; }
    nlohmann::json* operator->() { return value_.get(); }
    const nlohmann::json* operator->() const { return value_.get(); }

private:
    std::unique_ptr<nlohmann::json> value_;
};

}  // namespace teon
