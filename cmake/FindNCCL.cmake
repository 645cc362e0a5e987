# Finds NCCL, best the one that LibTorch uses, and gives the target NCCL::NCCL.
#
# It looks into LOCKSTEP_NCCL_DIR, the folder of PyPI's wheel beside LibTorch's, the CUDA toolkit and the system.

set(LOCKSTEP_NCCL_DIR "" CACHE PATH "Folder with include/nccl.h and lib/libnccl.so.2")
set(_nccl_hints ${LOCKSTEP_NCCL_DIR} ${LibTorch_DIR_USED}/../nvidia/nccl ${CUDAToolkit_LIBRARY_ROOT})
find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${_nccl_hints} ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES include)
find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2 HINTS ${_nccl_hints} ${CUDAToolkit_LIBRARY_DIR} PATH_SUFFIXES lib lib64)
mark_as_advanced(NCCL_INCLUDE_DIR NCCL_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NCCL REQUIRED_VARS NCCL_LIBRARY NCCL_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "give -DLOCKSTEP_NCCL_DIR=<folder with include/nccl.h and lib/libnccl.so.2>")

if(NCCL_FOUND AND NOT TARGET NCCL::NCCL)
  add_library(NCCL::NCCL SHARED IMPORTED)
  set_target_properties(NCCL::NCCL PROPERTIES
    IMPORTED_LOCATION ${NCCL_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${NCCL_INCLUDE_DIR})
endif()
