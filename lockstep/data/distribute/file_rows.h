#pragma once

#include "lockstep/data/distribute/batch_tally.h"
#include "lockstep/data/stage.h"

namespace lockstep::data {

/// How many rows the files of a pipeline have, in the order of their names; those of all workers. From the size of
/// files with records of fixed length, else by going through them, as long as that does not take long. Without readers
/// of which nobody can tell.
FileRows rows_of_files(const Stage& pipeline);

}  // namespace lockstep::data
