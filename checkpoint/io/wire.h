#pragma once
/// JSON forms of what ranks tell each other in a Meeting.

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "checkpoint/io/rank_file.h"
#include "core/base/error.h"
#include "core/base/result.h"

namespace muster::checkpoint {

/// {"ok": false, "code": ..., "message": ..., "context": [...]}
nlohmann::json error_to_json(const Error& error);
/// @error the object is such an error: that error, its message after `prefix`
Result<void> check_reply(const nlohmann::json& reply, const std::string& prefix);

/// Reads a reply that the other side has made. @error kInternal it is no JSON object
Result<nlohmann::json> parse_reply(const std::string& text);

/// {"ok": true, "files": [...], "boxes": [...]}
nlohmann::json written_to_json(const WrittenFiles& written);
/// @error kInternal a field is missing
Result<WrittenFiles> written_from_json(const nlohmann::json& reply);

}  // namespace muster::checkpoint
