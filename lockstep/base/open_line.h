#pragma once

namespace lockstep::detail {

/// Whether a progress line is open on this process's terminal. A logged line then replaces it instead of being
/// appended; the progress is drawn again below. May be called from any thread.
void set_line_is_open(bool is_open) noexcept;

}  // namespace lockstep::detail
