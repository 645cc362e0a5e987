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
step("configure" ${CMAKE_COMMAND} -S ${USER_SOURCE_DIR} -B ${user_build} -G ${GENERATOR}
  -DCMAKE_CXX_COMPILER=${CXX_COMPILER} -DCMAKE_PREFIX_PATH=${prefix} -DLOCKSTEP_TORCH_DIR=${TORCH_DIR})
step("build" ${CMAKE_COMMAND} --build ${user_build})
step("run" ${user_build}/installed)
