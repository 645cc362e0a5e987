#pragma once

#include <string_view>

#include "lockstep/base/export.h"

namespace lockstep::data {

/// How the bytes of a whole file are compressed.
enum class Compression {
  None,
  Zlib,  ///< RFC 1950
  Gzip,  ///< RFC 1952; several members one after the other are one file
};

LOCKSTEP_EXPORT std::string_view to_string(Compression compression);  ///< "", "ZLIB", "GZIP", as TensorFlow names them

/// The kind with this name ("", "NONE", "ZLIB" or "GZIP"); InvalidArgument for any other.
LOCKSTEP_EXPORT Compression compression_named(std::string_view name);

}  // namespace lockstep::data
