#pragma once

namespace lockstep::errors {

inline constexpr int kCheckpoint = 521;  ///< a checkpoint is damaged, of another version, or its folder cannot be used

}  // namespace lockstep::errors
