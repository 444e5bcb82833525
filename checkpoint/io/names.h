#pragma once
/// Names of folders and files of checkpoints. A name counts only if it matches whole.
///
///   step-00001000                      a committed checkpoint
///   .tmp-step-00001000.<save id>       being written, or left by a save that died
///   .replaced-step-00001000.<save id>  an old one of the same step while its successor moves in
///   .trash-step-00001000.<save id>     being removed

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace muster::checkpoint {

inline constexpr std::string_view kManifestName = "manifest.json";
inline constexpr std::string_view kTrainStateName = "train.json";

/// What a name in the folder of checkpoints stands for.
struct FolderName {
  enum class Kind { kStep, kTemporary, kReplaced, kTrash };
  Kind kind = Kind::kStep;
  int64_t step = 0;
  std::string save_id;  ///< empty for kStep
};

/// At least 8 digits, zero-padded.
std::string step_name(int64_t step);
std::string folder_name(const FolderName& name);
/// nullopt for every name that folder_name() would not make.
std::optional<FolderName> parse_folder_name(std::string_view name);

/// "rank-00003.safetensors"; a rank that holds several boxes of one tensor needs more files, which
/// are "rank-00003-0001.safetensors", ...
std::string rank_file_name(int global_rank, int index = 0);
/// "rank-00003.json"
std::string rank_state_name(int global_rank);

/// 128 random bits as 32 hexadecimal digits.
std::string new_save_id();

}  // namespace muster::checkpoint
