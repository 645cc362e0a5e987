#pragma once

namespace lockstep {

/// Makes malloc keep freed memory instead of returning large blocks to the system. Tensors of a training step have the
/// same sizes as in the previous step; mapping their memory again each time costs up to half the speed on CPU. Affects
/// the whole process, once, and logs one line of Severity::Debug.
void keep_freed_memory();

}  // namespace lockstep
