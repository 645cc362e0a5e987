#pragma once

namespace lockstep::train {

/// How a loop reports its progress.
enum class Verbose {
  Auto,    ///< Bar on a terminal, Lines elsewhere
  Silent,  ///< nothing
  Bar,     ///< one line that is redrawn, at most 20 times a second
  Lines,   ///< a line at the end of each epoch; in a long one also for each tenth, or every 30 s
};

}  // namespace lockstep::train
