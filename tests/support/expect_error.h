#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "tests/support/errors.h"

namespace lockstep {

/// Runs `action`, which must throw an error of this code and number, with help, whose text has all the fragments.
inline void expect_error(const std::function<void()>& action, Code code, int number,
                         const std::vector<std::string>& fragments, const std::string& name = "") {
  SCOPED_TRACE(name);
  const SeenError seen = error_of(action);
  EXPECT_EQ(to_string(seen.code), to_string(code)) << seen.text;
  EXPECT_EQ(seen.number, number) << seen.text;
  EXPECT_NE(seen.parts.help, "") << "an error without help:\n" << seen.text;
  for (const std::string& fragment : fragments) {
    EXPECT_TRUE(contains(seen.text, fragment)) << "no '" << fragment << "' in\n" << seen.text;
  }
}

}  // namespace lockstep
