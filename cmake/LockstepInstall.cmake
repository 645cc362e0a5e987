# Install rules, in two components: Lockstep_Runtime (the shared libraries, when they are some, and the engine) and
# Lockstep_Development. What needs gRPC is in an export of its own, which find_package reads only when asked for `cluster`.

include(CMakePackageConfigHelpers)

set(LOCKSTEP_INSTALL_CMAKEDIR ${CMAKE_INSTALL_LIBDIR}/cmake/Lockstep)

install(TARGETS lockstep EXPORT LockstepTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT Lockstep_Runtime NAMELINK_COMPONENT Lockstep_Development
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT Lockstep_Development)

if(TARGET lockstep_cluster)
  install(TARGETS lockstep_cluster EXPORT LockstepClusterTargets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT Lockstep_Runtime NAMELINK_COMPONENT Lockstep_Development
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT Lockstep_Development)
  install(TARGETS lockstep_engine LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT Lockstep_Runtime)
  install(EXPORT LockstepClusterTargets NAMESPACE Lockstep::
    DESTINATION ${LOCKSTEP_INSTALL_CMAKEDIR} COMPONENT Lockstep_Development)
endif()

install(CODE "
  cmake_policy(VERSION 3.25)
  include(\"${CMAKE_CURRENT_LIST_DIR}/LockstepPublicHeaders.cmake\")
  lockstep_public_headers(headers \"${PROJECT_SOURCE_DIR}\")
  foreach(header IN LISTS headers)
    cmake_path(GET header PARENT_PATH folder)
    file(INSTALL \"${PROJECT_SOURCE_DIR}/\${header}\"
      DESTINATION \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_INCLUDEDIR}/\${folder}\")
  endforeach()"
  COMPONENT Lockstep_Development)
install(FILES ${PROJECT_BINARY_DIR}/include/lockstep/version.h
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/lockstep COMPONENT Lockstep_Development)

install(EXPORT LockstepTargets NAMESPACE Lockstep::
  DESTINATION ${LOCKSTEP_INSTALL_CMAKEDIR} COMPONENT Lockstep_Development)

# A static library leaves what it needs privately to the program that links it.
get_target_property(LOCKSTEP_LIBRARY_TYPE lockstep TYPE)
set(LOCKSTEP_PC_PRIVATE "")
set(LOCKSTEP_PC_CLUSTER_REQUIRES "")
if(LOCKSTEP_LIBRARY_TYPE STREQUAL "STATIC_LIBRARY")
  set(LOCKSTEP_PC_PRIVATE " -lz")
  set(LOCKSTEP_PC_CLUSTER_REQUIRES ", grpc++, protobuf-lite, libssl, libcrypto")
endif()

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/LockstepConfig.cmake.in LockstepConfig.cmake
  INSTALL_DESTINATION ${LOCKSTEP_INSTALL_CMAKEDIR}
  NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(LockstepConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES
    ${CMAKE_CURRENT_BINARY_DIR}/LockstepConfig.cmake
    ${CMAKE_CURRENT_BINARY_DIR}/LockstepConfigVersion.cmake
    ${CMAKE_CURRENT_LIST_DIR}/FindLibTorch.cmake
    ${CMAKE_CURRENT_LIST_DIR}/FindNCCL.cmake
  DESTINATION ${LOCKSTEP_INSTALL_CMAKEDIR} COMPONENT Lockstep_Development)

# For programs built without CMake. The folder of LibTorch can be given again: --define-variable=torch_dir=...
if(LibTorch_DIR_USED)
  set(LOCKSTEP_PC_TORCH_DIR ${LibTorch_DIR_USED})
  set(LOCKSTEP_PC_CUDA "")
  if(LOCKSTEP_CUDA)
    # Their kernels register themselves when they are loaded, which no undefined symbol tells the linker.
    set(LOCKSTEP_PC_CUDA " -Wl,--push-state,--no-as-needed -ltorch_cuda -lc10_cuda -Wl,--pop-state -L${CUDAToolkit_LIBRARY_DIR} -lcudart")
    if(LOCKSTEP_NCCL)
      string(APPEND LOCKSTEP_PC_CUDA " ${NCCL_LIBRARY}")
    endif()
  endif()
  configure_file(${CMAKE_CURRENT_LIST_DIR}/lockstep.pc.in lockstep.pc @ONLY)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/lockstep.pc
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT Lockstep_Development)
  if(TARGET lockstep_cluster)
    configure_file(${CMAKE_CURRENT_LIST_DIR}/lockstep-cluster.pc.in lockstep-cluster.pc @ONLY)
    install(FILES ${CMAKE_CURRENT_BINARY_DIR}/lockstep-cluster.pc
      DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT Lockstep_Development)
  endif()
endif()
