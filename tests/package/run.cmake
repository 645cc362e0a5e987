# Installs, then configures, builds and runs a user's project. The first step that fails ends the test with its output.

function(step what)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${what} failed (${result}):\n${output}")
  endif()
  message(STATUS "${what}: ok")
endfunction()

set(prefix ${WORK_DIR}/prefix)
set(user_build ${WORK_DIR}/build)
file(REMOVE_RECURSE ${WORK_DIR})

step("install" ${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${prefix})
set(configure ${CMAKE_COMMAND} -S ${USER_SOURCE_DIR} -G ${GENERATOR}
  -DCMAKE_CXX_COMPILER=${CXX_COMPILER} -DCMAKE_PREFIX_PATH=${prefix} -DLOCKSTEP_TORCH_DIR=${TORCH_DIR})
step("configure" ${configure} -B ${user_build})
step("build" ${CMAKE_COMMAND} --build ${user_build})
step("run" ${user_build}/installed)

if(NOT HAS_CLUSTER)
  return()
endif()

step("run on two workers" ${prefix}/bin/lockstep run -n 2 ${user_build}/two_workers)
step("run on two workers by Gloo's ring" ${prefix}/bin/lockstep run -n 2 ${user_build}/two_workers ring)
# Without CMake: pkg-config says all that the compiler must know.
find_program(pkg_config pkg-config)
if(pkg_config)
  set(ENV{PKG_CONFIG_PATH} ${prefix}/${LIBRARY_FOLDER}/pkgconfig)
  execute_process(COMMAND ${pkg_config} --cflags --libs --define-variable=torch_dir=${TORCH_DIR} lockstep-cluster
    OUTPUT_VARIABLE flags OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  separate_arguments(flags UNIX_COMMAND "${flags}")
  step("build with pkg-config" ${CXX_COMPILER} -std=c++20 -O0 ${USER_SOURCE_DIR}/two_workers.cpp
    -o ${WORK_DIR}/by_pkg_config ${flags})
  step("run on two workers, built with pkg-config" ${prefix}/bin/lockstep run -n 2 ${WORK_DIR}/by_pkg_config ring)
endif()
step("configure without gRPC" ${configure} -B ${WORK_DIR}/without_grpc -DCMAKE_DISABLE_FIND_PACKAGE_gRPC=ON)

# Programs that are installed beside Lockstep may be moved together with it. What was linked dynamically is told where.
set(moved ${WORK_DIR}/moved)
file(COPY ${user_build}/two_workers DESTINATION ${prefix}/bin)
file(RENAME ${prefix} ${moved})
file(GLOB shared ${moved}/${LIBRARY_FOLDER}/liblockstep.so)
if(shared)
  set(ENV{LD_LIBRARY_PATH} ${moved}/${LIBRARY_FOLDER})
endif()
step("run on two workers, moved" ${moved}/bin/lockstep run -n 2 ${moved}/bin/two_workers)
step("run on two workers by Gloo's ring, moved" ${moved}/bin/lockstep run -n 2 ${moved}/bin/two_workers ring)
unset(ENV{LD_LIBRARY_PATH})

# A Lockstep that was built without the component says how to get it.
file(GLOB_RECURSE targets ${moved}/LockstepClusterTargets*.cmake)
file(REMOVE ${targets})
file(WRITE ${WORK_DIR}/asks/CMakeLists.txt "
  cmake_minimum_required(VERSION 3.25)
  project(Asks LANGUAGES CXX)
  find_package(Lockstep CONFIG REQUIRED COMPONENTS cluster)")
execute_process(
  COMMAND ${CMAKE_COMMAND} -S ${WORK_DIR}/asks -B ${WORK_DIR}/asks_build -G ${GENERATOR}
    -DCMAKE_CXX_COMPILER=${CXX_COMPILER} -DCMAKE_PREFIX_PATH=${moved} -DLOCKSTEP_TORCH_DIR=${TORCH_DIR}
  RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(result EQUAL 0 OR NOT output MATCHES "-DLOCKSTEP_CLUSTER=ON")
  message(FATAL_ERROR "asking for a component that is not installed gave (${result}):\n${output}")
endif()
