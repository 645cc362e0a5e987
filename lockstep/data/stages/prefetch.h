#pragma once

#include "lockstep/data/iterator.h"

namespace lockstep::data {

/// Reads ahead on a thread, several small elements at a time: a hand-over costs more than a small element.
IteratorPtr read_ahead_in_chunks(IteratorPtr input);

}  // namespace lockstep::data
