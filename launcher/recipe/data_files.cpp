#include <fnmatch.h>
#include <glob.h>
#include <sys/stat.h>

#include <algorithm>
#include <set>

#include "core/base/text.h"
#include "launcher/recipe/recipe.h"

namespace muster {
namespace {
class GlobMatches {
 public:
  explicit GlobMatches(const std::string& pattern)
      : status_(::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &matches_)) {}
  ~GlobMatches() { ::globfree(&matches_); }
  GlobMatches(const GlobMatches&) = delete;
  GlobMatches& operator=(const GlobMatches&) = delete;

  [[nodiscard]] std::vector<std::string> paths() const {
    if (status_ != 0) return {};
    return {matches_.gl_pathv, matches_.gl_pathv + matches_.gl_pathc};
  }

 private:
  glob_t matches_{};
  int status_;
};

bool is_regular_file(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
}
}  // namespace

Result<std::vector<std::string>> expand_data_files(const Recipe::Data& data) {
  std::set<std::string> files;
  for (const std::string& pattern : data.files) {
    size_t found = 0;
    for (const std::string& path : GlobMatches(pattern).paths()) {
      if (!is_regular_file(path)) continue;
      files.insert(path);
      ++found;
    }
    if (found == 0) {
      return make_error(ErrorCode::kNotFound,
                        "data.files: each glob must match a file; got nothing for \"{}\"", pattern);
    }
  }
  for (const std::string& pattern : data.exclude) {
    // Without a slash a pattern means names, in whichever folder they lie.
    const bool is_for_names = pattern.find('/') == std::string::npos;
    std::erase_if(files, [&](const std::string& path) {
      const std::string text = is_for_names ? path.substr(path.rfind('/') + 1) : path;
      return ::fnmatch(pattern.c_str(), text.c_str(), FNM_PATHNAME) == 0;
    });
  }
  if (files.empty()) {
    return make_error(ErrorCode::kNotFound,
                      "data.exclude: must leave a file of data.files; got none from [{}] without "
                      "[{}]",
                      join(data.files), join(data.exclude));
  }
  return std::vector<std::string>(files.begin(), files.end());
}
}  // namespace muster
