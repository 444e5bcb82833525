#include "checkpoint/io/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <random>

namespace muster::checkpoint {
namespace {
constexpr std::string_view kPrefixes[] = {"", ".tmp-", ".replaced-", ".trash-"};
constexpr size_t kSaveIdLength = 32;

std::optional<int64_t> parse_step(std::string_view name) {
  constexpr std::string_view kStep = "step-";
  if (!name.starts_with(kStep)) return std::nullopt;
  const std::string_view digits = name.substr(kStep.size());
  int64_t step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (error != std::errc() || step < 0 || step_name(step) != name) return std::nullopt;
  return step;
}

bool is_save_id(std::string_view text) {
  return text.size() == kSaveIdLength &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}
}  // namespace

std::string step_name(int64_t step) { return fmt::format("step-{:08}", step); }

std::string folder_name(const FolderName& name) {
  std::string text = std::string(kPrefixes[static_cast<size_t>(name.kind)]) + step_name(name.step);
  if (name.kind != FolderName::Kind::kStep) text += "." + name.save_id;
  return text;
}

std::optional<FolderName> parse_folder_name(std::string_view name) {
  if (const auto step = parse_step(name)) return FolderName{FolderName::Kind::kStep, *step, ""};
  for (const auto kind :
       {FolderName::Kind::kTemporary, FolderName::Kind::kReplaced, FolderName::Kind::kTrash}) {
    const std::string_view prefix = kPrefixes[static_cast<size_t>(kind)];
    if (!name.starts_with(prefix)) continue;
    const std::string_view rest = name.substr(prefix.size());
    const size_t dot = rest.find('.');
    if (dot == std::string_view::npos || !is_save_id(rest.substr(dot + 1))) return std::nullopt;
    const auto step = parse_step(rest.substr(0, dot));
    if (!step) return std::nullopt;
    return FolderName{kind, *step, std::string(rest.substr(dot + 1))};
  }
  return std::nullopt;
}

std::string rank_file_name(int global_rank, int index) {
  if (index == 0) return fmt::format("rank-{:05}.safetensors", global_rank);
  return fmt::format("rank-{:05}-{:04}.safetensors", global_rank, index);
}

std::string rank_state_name(int global_rank) { return fmt::format("rank-{:05}.json", global_rank); }

std::string new_save_id() {
  std::random_device device;
  std::string id;
  for (int word = 0; word < 4; ++word) id += fmt::format("{:08x}", device());
  return id;
}
}  // namespace muster::checkpoint
