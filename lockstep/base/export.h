#pragma once

/// Marks the exported symbols of the shared library; everything else stays hidden.
#define LOCKSTEP_EXPORT [[gnu::visibility("default")]]
