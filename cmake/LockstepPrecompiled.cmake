# Precompiled headers. Reading LibTorch's headers is most of what a file costs to compile, so they are read once for all of:
#
#   plain_test  tests that know no torch: GoogleTest and the standard library
#   library     the torch side of the library (lockstep_torch): tensors and the standard library
#   test        tests of strategies, values and data: the same, GoogleTest and the JSON of golden cases
#   module      tests of models and optimizers: tensors, GoogleTest, torch::nn and torch::optim
#   example     the examples, which include all of torch as users do
#
# They hold headers of others only, never our own: a change in one of ours rebuilds what includes it and nothing else.
# Files still name every header they use; LOCKSTEP_PCH=OFF compiles them without this help.

option(LOCKSTEP_PCH "Precompile LibTorch's headers (faster to build, 200 to 700 MB of disk each)" ${PROJECT_IS_TOP_LEVEL})

set(LOCKSTEP_PCH_plain_test
  <algorithm> <functional> <map> <memory> <optional> <span> <sstream> <string> <string_view> <vector> <gtest/gtest.h>)
set(LOCKSTEP_PCH_library
  <ATen/core/Tensor.h> <ATen/ops/full.h>
  <algorithm> <chrono> <cmath> <condition_variable> <functional> <iomanip> <map> <memory> <mutex> <optional> <set> <span> <sstream>
  <string> <string_view> <thread> <unordered_map> <unordered_set> <variant> <vector>)
set(LOCKSTEP_PCH_test ${LOCKSTEP_PCH_library} <ATen/ops/arange.h> <gtest/gtest.h> <nlohmann/json.hpp>)
set(LOCKSTEP_PCH_module
  <ATen/core/Tensor.h>
  <algorithm> <functional> <map> <memory> <optional> <span> <sstream> <string> <string_view> <unordered_map> <variant> <vector>
  <ATen/ops/arange.h> <ATen/ops/full.h> <gtest/gtest.h>
  <torch/nn/module.h> <torch/nn/modules/linear.h> <torch/nn/pimpl.h> <torch/optim/adam.h> <torch/optim/sgd.h>
  <torch/csrc/autograd/generated/variable_factories.h>)
set(LOCKSTEP_PCH_example <torch/torch.h>)

# lockstep_precompile(target kind): `target` must have its flags already, the same as every other target of this kind.
function(lockstep_precompile target kind)
  if(kind MATCHES "^(library|test)$")
    # With this, headers such as ATen/TensorOperators.h include only those of LibTorch's 2,000 operators that they use.
    target_compile_options(${target} PRIVATE -DAT_PER_OPERATOR_HEADERS)
  endif()
  if(NOT LOCKSTEP_PCH)
    return()
  endif()
  set(carrier lockstep_${kind}_headers)
  if(NOT TARGET ${carrier})
    set(source ${PROJECT_BINARY_DIR}/${carrier}.cpp)
    file(CONFIGURE OUTPUT ${source} CONTENT "// Carries a precompiled header.\n")
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      # g++ would instantiate all templates that the header uses, for seconds and for nothing. So it reads no header here.
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS -fpreprocessed)
    endif()
    add_library(${carrier} OBJECT ${source})
    foreach(property COMPILE_OPTIONS COMPILE_FEATURES CXX_EXTENSIONS CXX_VISIBILITY_PRESET VISIBILITY_INLINES_HIDDEN)
      get_target_property(value ${target} ${property})
      set_target_properties(${carrier} PROPERTIES ${property} "${value}")
    endforeach()
    get_target_property(type ${target} TYPE)
    if(type STREQUAL "EXECUTABLE")
      # CMake compiles an executable's own files with -fPIE, those of libraries with -fPIC: a precompiled header is one or the other.
      target_compile_options(${carrier} PRIVATE -fPIE)
    else()
      set_target_properties(${carrier} PROPERTIES POSITION_INDEPENDENT_CODE ON)
    endif()
    target_link_libraries(${carrier} PRIVATE Threads::Threads)
    if(NOT kind STREQUAL "plain_test")
      target_link_libraries(${carrier} PRIVATE LibTorch::LibTorch)
    endif()
    if(NOT kind MATCHES "library|example")
      target_link_libraries(${carrier} PRIVATE GTest::gtest)
    endif()
    if(kind STREQUAL "test")
      target_link_libraries(${carrier} PRIVATE nlohmann_json::nlohmann_json)
    endif()
    target_precompile_headers(${carrier} PRIVATE ${LOCKSTEP_PCH_${kind}})
  endif()
  target_precompile_headers(${target} REUSE_FROM ${carrier})
endfunction()
