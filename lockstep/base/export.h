#pragma once

/// Marks what the shared library offers; everything else stays hidden.
#define LOCKSTEP_EXPORT [[gnu::visibility("default")]]
