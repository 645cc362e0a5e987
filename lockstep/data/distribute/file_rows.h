#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/data/stage.h"

// How many rows the files of a pipeline have, for people who want to see who reads what.
namespace lockstep::data {

/// The rows of each file, in the order in which files are shared out among workers (if they are). Counts them: from the
/// size of files with records of fixed length, else by going through them as long as they are small. None where that
/// would take long, where a function of the user's decides which files there are, or where a stage changes how many
/// rows there are.
std::optional<std::vector<std::int64_t>> rows_of_files(const Stage& pipeline);

}  // namespace lockstep::data
