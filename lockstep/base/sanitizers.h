#pragma once

// LOCKSTEP_ADDRESS_SANITIZER is defined in builds with AddressSanitizer, which g++ and clang report in different ways.

#if defined(__SANITIZE_ADDRESS__)
#define LOCKSTEP_ADDRESS_SANITIZER
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define LOCKSTEP_ADDRESS_SANITIZER
#endif
#endif
