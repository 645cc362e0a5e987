# The library's targets and the functions by which a floor adds to them:
#
#   lockstep_plain_sources(a.cpp ...)   objects that know no torch: it is not even on their include path
#   lockstep_torch_sources(b.cpp ... [BATCH files] [WIDE d.cpp ...])   objects that see torch
#   lockstep_cuda_sources(c.cu ...)   kernels for GPUs, which know no torch; with LOCKSTEP_CUDA only
#   lockstep_plain_test(name a_test.cpp ... [TIMEOUT seconds] [COST seconds] [LIBRARIES ...] [BATCH files] [OPTIMIZED]
#                       [SHARDS n])
#   lockstep_torch_test(name b_test.cpp ... [TIMEOUT seconds] [COST seconds] [LIBRARIES ...] [HEADERS kind] [BATCH files]
#                       [SHARDS n] [ON_GPU])
#
# A test links the objects and not the library, so that it reaches hidden symbols of a shared build too. The plain tests
# (ctest label `plain`) also run under ThreadSanitizer; everything runs under AddressSanitizer.
#
# Compiling is what a build costs, and most of that is reading LibTorch's headers: objects and tests share precompiled headers
# (LOCKSTEP_PCH) and are compiled a few files at a time (LOCKSTEP_UNITY), and tests are compiled without optimisation, because
# the library they exercise has it (OPTIMIZED: those that compute much themselves). WIDE names files that need torch/nn/module.h
# or another header that includes all of ATen: they are batched apart, so that no other batch reads it. SHARDS runs a program that
# mostly waits as several tests, each with a part of its cases, so that they wait at the same time. COST is about how long a test
# takes, if that is more than others: ctest begins with the longest, so that no core is idle at the end. ON_GPU: with LOCKSTEP_CUDA the
# program is also run with replicas on a GPU (tests/support/on_gpu.cpp).

include(LockstepPrecompiled)

# Flags of Lockstep's own code. They stay private to its targets: a program that uses the library gets none of them but the one
# below that lets g++ compile it faster.
function(lockstep_own_flags target)
  target_compile_features(${target} PRIVATE cxx_std_20)
  set_target_properties(${target} PROPERTIES
    CXX_EXTENSIONS OFF
    CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON
    POSITION_INDEPENDENT_CODE ON)
  target_compile_options(${target} PRIVATE
    -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion
    # Options are aggregates: naming only some of the fields is how they are used.
    -Wno-missing-field-initializers
    # A compiler that fuses a*b+c in one place and not in another breaks the promise of equal bits.
    -ffp-contract=off)
  if(LOCKSTEP_WERROR AND NOT (LOCKSTEP_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU"))
    # Not with g++'s sanitizers: what they insert makes g++ 12 see uninitialised values that are none.
    target_compile_options(${target} PRIVATE -Werror)
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # g++ tidies its memory again and again while it reads LibTorch. Letting it take 15 % more saves a tenth of the time.
    target_compile_options(${target} PRIVATE --param=ggc-min-expand=400 --param=ggc-min-heapsize=1000000)
  endif()
  if(LOCKSTEP_FUZZ)
    target_compile_options(${target} PRIVATE -fsanitize=fuzzer-no-link)
  endif()
  if(LOCKSTEP_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${LOCKSTEP_SANITIZE} -fno-omit-frame-pointer -g1)
    target_link_options(${target} PRIVATE -fsanitize=${LOCKSTEP_SANITIZE})
    if(LOCKSTEP_SANITIZE MATCHES address)
      # The sanitizers alone miss a variable without a value, which the compiler may take for any, and an index beyond the size
      # of a vector that is still inside its memory. Neither flag costs time that could be measured.
      target_compile_options(${target} PRIVATE -ftrivial-auto-var-init=pattern -D_GLIBCXX_ASSERTIONS)
    endif()
  endif()
endfunction()

function(lockstep_own_includes target)
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
    $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
endfunction()

# Batches are small enough that a change in one file is rebuilt within half a minute; the AddressSanitizer build, in which no one
# edits, takes twice as many files of the library. Tests are in the same batches there, so that names which collide are seen in
# every build. The ThreadSanitizer build compiles every file alone.
set(LOCKSTEP_BATCH_FACTOR 1)
if(LOCKSTEP_SANITIZE MATCHES address)
  set(LOCKSTEP_BATCH_FACTOR 2)
endif()

function(lockstep_batch target files)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${LOCKSTEP_UNITY} UNITY_BUILD_BATCH_SIZE ${files})
endfunction()

# The library's objects are batched by folder: a new file moves none of another folder's. `kind` is a part of the name.
function(lockstep_batch_folder target kind files)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${LOCKSTEP_UNITY} UNITY_BUILD_MODE GROUP)
  file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  string(MAKE_C_IDENTIFIER ${folder}${kind} folder)
  set(count 0)
  foreach(source ${ARGN})
    math(EXPR batch "${count} / (${files} * ${LOCKSTEP_BATCH_FACTOR})")
    set_source_files_properties(${source} TARGET_DIRECTORY ${target} PROPERTIES UNITY_GROUP ${folder}_${batch})
    math(EXPR count "${count} + 1")
  endforeach()
endfunction()

add_library(lockstep_plain OBJECT)
lockstep_own_flags(lockstep_plain)
lockstep_own_includes(lockstep_plain)
# Headers alone, which no public header includes: programs need not have it.
target_link_libraries(lockstep_plain PUBLIC Threads::Threads ZLIB::ZLIB PRIVATE nlohmann_json::nlohmann_json)

if(LOCKSTEP_WITH_TORCH)
  add_library(lockstep $<TARGET_OBJECTS:lockstep_plain>)
  add_library(Lockstep::lockstep ALIAS lockstep)
  lockstep_own_flags(lockstep)
  lockstep_own_includes(lockstep)
  target_compile_features(lockstep PUBLIC cxx_std_20)
  # Behind LibTorch's headers g++ collects its garbage once more, whatever is included next, for two seconds. A program that
  # includes lockstep.h compiles 7 % faster if that is put off, in 6 % more memory.
  target_compile_options(lockstep INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-expand=200>)
  target_link_libraries(lockstep PUBLIC LibTorch::LibTorch Threads::Threads PRIVATE ZLIB::ZLIB)
  set_target_properties(lockstep PROPERTIES
    LINKER_LANGUAGE CXX
    VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
    INSTALL_RPATH_USE_LINK_PATH ON)
endif()

function(lockstep_absolute out)
  set(paths ${ARGN})
  list(TRANSFORM paths PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  set(${out} ${paths} PARENT_SCOPE)
endfunction()

function(lockstep_plain_sources)
  lockstep_absolute(sources ${ARGN})
  target_sources(lockstep_plain PRIVATE ${sources})
  lockstep_batch_folder(lockstep_plain "" 10 ${sources})
endfunction()

function(lockstep_torch_sources)
  if(NOT LOCKSTEP_WITH_TORCH)
    return()
  endif()
  if(NOT TARGET lockstep_torch)
    add_library(lockstep_torch OBJECT)
    lockstep_own_flags(lockstep_torch)
    lockstep_own_includes(lockstep_torch)
    target_link_libraries(lockstep_torch PUBLIC LibTorch::LibTorch Threads::Threads)
    lockstep_precompile(lockstep_torch library)
    target_sources(lockstep PRIVATE $<TARGET_OBJECTS:lockstep_torch>)
    if(LOCKSTEP_CUDA)
      target_link_libraries(lockstep_torch PUBLIC CUDA::cudart)
      target_link_libraries(lockstep PRIVATE CUDA::cudart)
    endif()
    if(LOCKSTEP_NCCL)
      target_link_libraries(lockstep_torch PUBLIC NCCL::NCCL)
      target_link_libraries(lockstep PRIVATE NCCL::NCCL)
    endif()
  endif()
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "BATCH" "WIDE")
  if(NOT arg_BATCH)
    set(arg_BATCH 10)
  endif()
  lockstep_absolute(sources ${arg_UNPARSED_ARGUMENTS})
  lockstep_absolute(wide ${arg_WIDE})
  target_sources(lockstep_torch PRIVATE ${sources} ${wide})
  lockstep_batch_folder(lockstep_torch "" ${arg_BATCH} ${sources})
  lockstep_batch_folder(lockstep_torch _wide 7 ${wide})
endfunction()

function(lockstep_cuda_sources)
  if(NOT TARGET lockstep_cuda)
    add_library(lockstep_cuda OBJECT)
    lockstep_own_includes(lockstep_cuda)
    target_link_libraries(lockstep_cuda PRIVATE CUDA::cudart)
    set_target_properties(lockstep_cuda PROPERTIES
      CUDA_STANDARD 20
      CUDA_VISIBILITY_PRESET hidden
      POSITION_INDEPENDENT_CODE ON)
    # Where a product is fused with a sum is written in the code, as LibTorch's kernels do it.
    target_compile_options(lockstep_cuda PRIVATE --fmad=false -Xcompiler=-Wall,-Wextra)
    if(LOCKSTEP_WERROR)
      target_compile_options(lockstep_cuda PRIVATE -Werror=all-warnings)
    endif()
    target_sources(lockstep PRIVATE $<TARGET_OBJECTS:lockstep_cuda>)
  endif()
  lockstep_absolute(sources ${ARGN})
  target_sources(lockstep_cuda PRIVATE ${sources})
endfunction()

# clang's reports are bare addresses if it does not find the symbolizer of its own version, which is often not installed: any
# other will do. g++ brings its own.
set(symbolizer "")
if(LOCKSTEP_SANITIZE AND CMAKE_CXX_COMPILER_ID MATCHES Clang)
  string(REGEX MATCH "^[0-9]+" clang_version "${CMAKE_CXX_COMPILER_VERSION}")
  find_program(LOCKSTEP_SYMBOLIZER NAMES llvm-symbolizer-${clang_version} llvm-symbolizer addr2line)
  mark_as_advanced(LOCKSTEP_SYMBOLIZER)
  if(LOCKSTEP_SYMBOLIZER)
    set(symbolizer ":external_symbolizer_path=${LOCKSTEP_SYMBOLIZER}")
  endif()
endif()

# Every failure that a sanitizer sees fails its test. The suppression files say why each entry is there.
set(LOCKSTEP_SANITIZER_ENVIRONMENT
  "ASAN_OPTIONS=detect_stack_use_after_return=1:check_initialization_order=1${symbolizer}"
  "LSAN_OPTIONS=suppressions=${CMAKE_CURRENT_LIST_DIR}/sanitizers/lsan.supp:print_suppressions=0"
  "UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1${symbolizer}"
  "TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:suppressions=${CMAKE_CURRENT_LIST_DIR}/sanitizers/tsan.supp${symbolizer}")

# Replicas take all cores: two such programs at a time, or they spend their time waiting for each other.
include(ProcessorCount)
ProcessorCount(cores)
math(EXPR LOCKSTEP_TEST_PROCESSORS "1 + (${cores} - 1) / 2")  # 0 cores: unknown

# Every test links all objects of the library, for which lld takes a fifth of the time. The library itself is left to the usual
# linker, and so are g++'s sanitizers, whose run-time libraries want the linker of their own compiler; clang's is lld.
if(LOCKSTEP_BUILD_TESTS AND PROJECT_IS_TOP_LEVEL AND (NOT LOCKSTEP_SANITIZE OR CMAKE_CXX_COMPILER_ID MATCHES Clang))
  include(CheckLinkerFlag)
  check_linker_flag(CXX -fuse-ld=lld LOCKSTEP_TESTS_BY_LLD)
endif()

function(lockstep_add_test name label)
  cmake_parse_arguments(PARSE_ARGV 2 arg "OPTIMIZED;ON_GPU" "TIMEOUT;COST;HEADERS;BATCH;SHARDS" "LIBRARIES")
  add_executable(${name} ${arg_UNPARSED_ARGUMENTS})
  lockstep_own_flags(${name})
  if(NOT arg_OPTIMIZED)
    target_compile_options(${name} PRIVATE -O0)
  endif()
  if(label STREQUAL "torch")
    if(NOT arg_HEADERS)
      set(arg_HEADERS test)
    endif()
    lockstep_precompile(${name} ${arg_HEADERS})
  elseif(NOT arg_OPTIMIZED)
    lockstep_precompile(${name} plain_test)
  endif()
  list(LENGTH arg_UNPARSED_ARGUMENTS files)
  if(files GREATER 1)
    if(NOT arg_BATCH)
      set(arg_BATCH 6)
    endif()
    lockstep_batch(${name} ${arg_BATCH})
  endif()
  target_compile_definitions(${name} PRIVATE LOCKSTEP_TEST_DATA_DIR="${PROJECT_SOURCE_DIR}/tests/data")
  target_link_libraries(${name} PRIVATE ${arg_LIBRARIES} nlohmann_json::nlohmann_json GTest::gtest_main)
  if(LOCKSTEP_TESTS_BY_LLD)
    target_link_options(${name} PRIVATE -fuse-ld=lld)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  if(LOCKSTEP_SANITIZE)
    math(EXPR arg_TIMEOUT "4 * ${arg_TIMEOUT}")
  endif()
  set(tests ${name})
  if(arg_SHARDS)
    list(TRANSFORM tests APPEND _1)
    foreach(shard RANGE 2 ${arg_SHARDS})
      list(APPEND tests ${name}_${shard})
    endforeach()
  endif()
  set(shard 0)
  foreach(test IN LISTS tests)
    set(environment ${LOCKSTEP_SANITIZER_ENVIRONMENT})
    set(report "")
    if(arg_SHARDS)
      list(APPEND environment "GTEST_TOTAL_SHARDS=${arg_SHARDS}" "GTEST_SHARD_INDEX=${shard}")
      set(report --gtest_output=xml:${PROJECT_BINARY_DIR}/results/${test}.xml)  # the default is a file for each program
      math(EXPR shard "${shard} + 1")
    endif()
    add_test(NAME ${test} COMMAND ${name} --gtest_brief=1 ${report})
    set_tests_properties(${test} PROPERTIES
      LABELS ${label}
      TIMEOUT ${arg_TIMEOUT}
      PROCESSORS ${LOCKSTEP_TEST_PROCESSORS}
      ENVIRONMENT "${environment}")
    if(arg_COST)
      set_tests_properties(${test} PROPERTIES COST ${arg_COST})
    endif()
  endforeach()
  if(arg_ON_GPU AND LOCKSTEP_CUDA)
    target_sources(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests/support/on_gpu.cpp)
    set_source_files_properties(${PROJECT_SOURCE_DIR}/tests/support/on_gpu.cpp PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    add_test(NAME ${name}_on_gpu COMMAND ${name} --gtest_brief=1)
    set_tests_properties(${name}_on_gpu PROPERTIES
      LABELS gpu
      TIMEOUT ${arg_TIMEOUT}
      SKIP_RETURN_CODE 77
      ENVIRONMENT LOCKSTEP_TEST_DEVICES=gpu)
  endif()
endfunction()

function(lockstep_plain_test name)
  if(LOCKSTEP_BUILD_TESTS)
    lockstep_add_test(${name} plain ${ARGN})
    target_link_libraries(${name} PRIVATE lockstep_plain)
  endif()
endfunction()

function(lockstep_torch_test name)
  if(LOCKSTEP_BUILD_TESTS AND LOCKSTEP_WITH_TORCH)
    lockstep_add_test(${name} torch ${ARGN})
    target_link_libraries(${name} PRIVATE lockstep_plain $<TARGET_NAME_IF_EXISTS:lockstep_torch>
      $<TARGET_NAME_IF_EXISTS:lockstep_cuda> LibTorch::LibTorch)
  endif()
endfunction()
