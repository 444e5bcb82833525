#pragma once
/// From the options of `muster run` to a JobSpec: what the words mean.
///
/// Starts nothing and writes nothing; the recipe file and /dev are read.

#include <string>
#include <vector>

#include "core/base/result.h"
#include "launcher/agent/job.h"
#include "launcher/cli/run_options.h"

namespace muster {

/// The job that the arguments describe.
/// @error kInvalidArgument an option or the program's form; kBadRecipe the recipe, with every
/// fault;
///        kNotFound the script, recipe or muster-train is missing
Result<JobSpec> plan_run(const RunArguments& arguments, const Environment& environment);

/// "0:3,1:1", "3" as in --tee and --redirects; any rank number.
/// @error kInvalidArgument quotes the text
Result<StreamSelection> parse_stream_selection(std::string_view option, std::string_view text);

/// The folder of this executable.
std::string own_directory();

}  // namespace muster
