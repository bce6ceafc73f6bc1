#include "files/json_member.h"

#include <nlohmann/json.hpp>

namespace teon {

JsonMember::JsonMember() : JsonMember(nlohmann::json::object()) {}
JsonMember::JsonMember(const nlohmann::json& value) : value_(std::make_unique<nlohmann::json>(value)) {}
JsonMember::JsonMember(const JsonMember& other) : JsonMember(*other) {}
JsonMember& JsonMember::operator=(const JsonMember& other) { return *this = *other; }
JsonMember& JsonMember::operator=(const nlohmann::json& value) {
    *value_ = value;
    return *this;
}
JsonMember::~JsonMember() = default;

}  // namespace teon
