# Builds the checkout that this port is part of: vcpkg install lockstep --overlay-ports=packaging/vcpkg
get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

# LibTorch is not a port. A triplet may set LOCKSTEP_TORCH_DIR instead of the environment.
if(NOT LOCKSTEP_TORCH_DIR)
  set(LOCKSTEP_TORCH_DIR "$ENV{LOCKSTEP_TORCH_DIR}")
endif()
if(NOT EXISTS "${LOCKSTEP_TORCH_DIR}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "LOCKSTEP_TORCH_DIR must be the folder of a LibTorch, got '${LOCKSTEP_TORCH_DIR}': set it in the environment or in your triplet")
endif()

vcpkg_cmake_configure(
  SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS
    "-DLOCKSTEP_TORCH_DIR=${LOCKSTEP_TORCH_DIR}"
    -DLOCKSTEP_BUILD_TESTS=OFF
    -DLOCKSTEP_BUILD_EXAMPLES=OFF
    -DLOCKSTEP_BUILD_BENCH=OFF)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(PACKAGE_NAME Lockstep CONFIG_PATH lib/cmake/Lockstep)
vcpkg_fixup_pkgconfig()
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
