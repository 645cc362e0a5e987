#pragma once

/// Marks names that TensorFlow calls deprecated. Define LOCKSTEP_NO_DEPRECATION_WARNINGS before the include to use them
/// without warnings while a program is being ported.
#ifdef LOCKSTEP_NO_DEPRECATION_WARNINGS
#define LOCKSTEP_DEPRECATED(text)
#else
#define LOCKSTEP_DEPRECATED(text) [[deprecated(text)]]
#endif
