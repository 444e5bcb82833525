// The header parser. It is event-driven, so that repeated keys and the form of numbers are seen,
// which a parser into a JSON tree hides.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/io/safetensors.h"

namespace muster::checkpoint {
namespace {
constexpr std::string_view kMetadataKey = "__metadata__";
// The object, an entry, and a list or object in it.
constexpr int kMaxDepth = 3;

class HeaderHandler {
 public:
  using json = nlohmann::json;

  bool null() {
    if (place_ == Place::kMetadataWanted) {
      place_ = Place::kTop;
      return true;
    }
    return scalar("null");
  }
  bool boolean(bool) { return scalar("a boolean"); }
  bool number_integer(json::number_integer_t) { return number("a negative number"); }
  bool number_float(json::number_float_t, const std::string&) {
    return number("a number that is no plain integer below 2^64");
  }
  bool number_unsigned(json::number_unsigned_t value) {
    if (place_ != Place::kShape && place_ != Place::kOffsets) return scalar("a number");
    if (value > static_cast<uint64_t>(INT64_MAX)) return number("a number above 2^63 - 1");
    (place_ == Place::kShape ? entry_.shape : offsets_).push_back(static_cast<int64_t>(value));
    return true;
  }
  bool string(std::string& text) {
    if (place_ == Place::kMetadata) {
      if (metadata_key_) {
        header.metadata.emplace(*metadata_key_, text);
        metadata_key_.reset();
      }
      return true;
    }
    if (place_ == Place::kDtypeWanted) {
      entry_.dtype = text;
      place_ = Place::kEntry;
      return true;
    }
    return scalar("a string");
  }
  bool binary(json::binary_t&) { return fail("binary data"); }

  bool start_object(size_t) {
    if (++depth_ > kMaxDepth) return too_deep();
    switch (place_) {
      case Place::kStart:
        place_ = Place::kTop;
        return true;
      case Place::kMetadataWanted:
        place_ = Place::kMetadata;
        return true;
      case Place::kEntryWanted:
        place_ = Place::kEntry;
        return true;
      case Place::kExtraWanted:
      case Place::kExtra:
        place_ = Place::kExtra;
        ++extra_depth_;
        return true;
      default:
        return scalar("an object");
    }
  }

  bool key(std::string& text) {
    switch (place_) {
      case Place::kTop:
        return top_key(text);
      case Place::kMetadata:
        metadata_key_ = text;
        if (header.metadata.count(text) > 0)
          return fail(fmt::format("metadata key \"{}\" occurs twice", text));
        return true;
      case Place::kEntry:
        return entry_key(text);
      default:
        return true;  // inside an unknown field
    }
  }

  bool end_object() {
    --depth_;
    if (place_ == Place::kExtra) return end_extra();
    if (place_ == Place::kMetadata) {
      place_ = Place::kTop;
      return true;
    }
    if (place_ == Place::kEntry) {
      place_ = Place::kTop;
      return finish_entry();
    }
    return true;
  }

  bool start_array(size_t) {
    if (++depth_ > kMaxDepth) return too_deep();
    switch (place_) {
      case Place::kShapeWanted:
        place_ = Place::kShape;
        return true;
      case Place::kOffsetsWanted:
        place_ = Place::kOffsets;
        return true;
      case Place::kExtraWanted:
      case Place::kExtra:
        place_ = Place::kExtra;
        ++extra_depth_;
        return true;
      default:
        return scalar("a list");
    }
  }

  bool end_array() {
    --depth_;
    if (place_ == Place::kExtra) return end_extra();
    place_ = Place::kEntry;
    return true;
  }

  bool parse_error(size_t position, const std::string& token, const json::exception&) {
    return fail(fmt::format("the header is no valid JSON at byte {}, near \"{}\"", position,
                            printable(token)));
  }

  SafetensorsHeader header;
  std::string error;

 private:
  enum class Place {
    kStart,
    kTop,
    kMetadataWanted,
    kMetadata,
    kEntryWanted,
    kEntry,
    kDtypeWanted,
    kShapeWanted,
    kShape,
    kOffsetsWanted,
    kOffsets,
    kExtraWanted,
    kExtra,
  };

  static std::string printable(const std::string& token) {
    std::string text;
    for (const char c : token.substr(0, 40)) text += c >= 0x20 && c < 0x7F ? c : '?';
    return text;
  }

  bool fail(std::string text) {
    error = std::move(text);
    return false;
  }
  bool too_deep() {
    return fail(fmt::format("{} nests deeper than {} levels", where(), kMaxDepth));
  }

  [[nodiscard]] std::string where() const {
    if (place_ == Place::kStart) return "the header";
    if (place_ == Place::kMetadata || place_ == Place::kMetadataWanted)
      return std::string(kMetadataKey);
    return fmt::format("tensor \"{}\"", entry_.name);
  }

  // A value of the wrong kind, or the value of an unknown field.
  bool scalar(std::string_view what) {
    if (place_ == Place::kExtraWanted) {
      place_ = Place::kEntry;
      return true;
    }
    if (place_ == Place::kExtra) return true;
    const char* wanted = "";
    switch (place_) {
      case Place::kStart:
        wanted = "must be an object";
        break;
      case Place::kMetadataWanted:
        wanted = "must be an object of strings";
        break;
      case Place::kMetadata:
        wanted = "values must be strings";
        break;
      case Place::kEntryWanted:
        wanted = "must be an object";
        break;
      case Place::kDtypeWanted:
        wanted = "dtype must be a string";
        break;
      case Place::kShapeWanted:
      case Place::kShape:
        wanted = "shape must be a list of integers";
        break;
      default:
        wanted = "data_offsets must be two integers";
        break;
    }
    return fail(fmt::format("{} {}; got {}", where(), wanted, what));
  }
  bool number(std::string_view what) { return scalar(what); }

  bool end_extra() {
    if (--extra_depth_ == 0) place_ = Place::kEntry;
    return true;
  }

  bool top_key(const std::string& text) {
    if (text == kMetadataKey) {
      if (has_metadata_) return fail("__metadata__ occurs twice");
      has_metadata_ = true;
      place_ = Place::kMetadataWanted;
      return true;
    }
    if (!names_.insert(text).second) return fail(fmt::format("tensor \"{}\" occurs twice", text));
    entry_ = {};
    entry_.name = text;
    offsets_.clear();
    fields_.clear();
    place_ = Place::kEntryWanted;
    if (text.find('\0') != std::string::npos)
      return fail(fmt::format("tensor name \"{}\" holds a NUL", printable(text)));
    return true;
  }

  bool entry_key(const std::string& text) {
    if (!fields_.insert(text).second)
      return fail(fmt::format("tensor \"{}\" has the field \"{}\" twice", entry_.name, text));
    if (text == "dtype") {
      place_ = Place::kDtypeWanted;
    } else if (text == "shape") {
      place_ = Place::kShapeWanted;
    } else if (text == "data_offsets") {
      place_ = Place::kOffsetsWanted;
    } else {
      header.warnings.push_back(
          fmt::format("tensor \"{}\" has an unknown field \"{}\"", entry_.name, text));
      place_ = Place::kExtraWanted;
    }
    return true;
  }

  bool finish_entry() {
    for (const char* field : {"dtype", "shape", "data_offsets"}) {
      if (fields_.count(field) == 0)
        return fail(fmt::format("tensor \"{}\" has no {}", entry_.name, field));
    }
    if (offsets_.size() != 2) {
      return fail(fmt::format("tensor \"{}\" data_offsets must be two integers; got {}",
                              entry_.name, offsets_.size()));
    }
    entry_.begin = offsets_[0];
    entry_.end = offsets_[1];
    header.tensors.push_back(entry_);
    return true;
  }

  Place place_ = Place::kStart;
  int depth_ = 0;
  int extra_depth_ = 0;
  bool has_metadata_ = false;
  std::optional<std::string> metadata_key_;
  SafetensorsEntry entry_;
  Dims offsets_;
  std::set<std::string> fields_;
  std::set<std::string> names_;
};

// The size in bytes that type and shape ask for, or the reason why there is none.
std::optional<std::string> size_fault(const SafetensorsEntry& entry) {
  const std::optional<int> bits = safetensors_bits(entry.dtype);
  if (!bits) return fmt::format("has the unknown dtype \"{}\"", entry.dtype);
  // A zero does not excuse an overflow before it: other readers multiply in order.
  uint64_t count = 1;
  for (const int64_t n : entry.shape) {
    if (__builtin_mul_overflow(count, static_cast<uint64_t>(n), &count))
      return fmt::format("has a shape that overflows: {}", to_string(entry.shape));
  }
  uint64_t total_bits = 0;
  if (__builtin_mul_overflow(count, static_cast<uint64_t>(*bits), &total_bits))
    return fmt::format("has a shape that overflows: {}", to_string(entry.shape));
  if (total_bits % 8 != 0)
    return fmt::format("has {} elements of {} bits, which are no whole bytes", count, *bits);
  if (entry.begin > entry.end)
    return fmt::format("begins at {} and ends at {}", entry.begin, entry.end);
  if (static_cast<uint64_t>(entry.end - entry.begin) != total_bits / 8) {
    return fmt::format("is {} of {} and needs {} bytes; its range has {}", to_string(entry.shape),
                       entry.dtype, total_bits / 8, entry.end - entry.begin);
  }
  return std::nullopt;
}

Error header_error(const std::string& text) {
  return make_error(ErrorCode::kCorruption, "safetensors header: {}", text);
}

Result<void> check_ranges(SafetensorsHeader& header) {
  for (const SafetensorsEntry& entry : header.tensors) {
    if (const auto fault = size_fault(entry))
      return header_error(fmt::format("tensor \"{}\" {}", entry.name, *fault));
  }
  std::sort(header.tensors.begin(), header.tensors.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  int64_t at = 0;
  for (const SafetensorsEntry& entry : header.tensors) {
    if (entry.begin != at) {
      return header_error(
          fmt::format("tensor \"{}\" must begin at {}, where the one before it ends; got {} ({})",
                      entry.name, at, entry.begin, entry.begin < at ? "an overlap" : "a hole"));
    }
    at = entry.end;
  }
  if (at != header.data_nbytes) {
    return header_error(fmt::format(
        "the tensors must end at {}, the end of the file's data; got {}", header.data_nbytes, at));
  }
  return {};
}
}  // namespace

Result<SafetensorsHeader> parse_safetensors_header(std::string_view json, int64_t data_nbytes) {
  if (json.empty() || json.front() != '{')
    return header_error("must begin with '{'; got " +
                        (json.empty()
                             ? std::string("nothing")
                             : fmt::format("byte {:#04x}", static_cast<uint8_t>(json[0]))));
  // The JSON library takes a NUL for the end of its input.
  if (const size_t nul = json.find('\0'); nul != std::string_view::npos)
    return header_error(fmt::format("must be text; got a NUL at byte {}", nul));
  HeaderHandler handler;
  if (!nlohmann::json::sax_parse(json.begin(), json.end(), &handler))
    return header_error(handler.error);
  handler.header.data_nbytes = data_nbytes;
  MUSTER_TRY(check_ranges(handler.header));
  return std::move(handler.header);
}
}  // namespace muster::checkpoint
