#[=======================================================================[.rst:
FindLibTorch
------------

Finds LibTorch without a CUDA toolkit and without Python, and gives the target ``LibTorch::LibTorch``.
(``TorchConfig.cmake`` of a wheel built for CUDA asks for the whole toolkit even where only the CPU is used.)

It takes the first of these:

1. ``LOCKSTEP_TORCH_DIR``: the folder of a LibTorch zip, or the ``torch`` folder of a wheel;
2. what the project's own ``find_package(Torch)`` has found before;
3. ``libtorch-<version>/torch`` in ``$LOCKSTEP_DEPS_DIR`` or in ``.deps`` beside this folder, where ``scripts/setup`` puts it;
4. ``LibTorch_HINT``: what an installed Lockstep was built with;
5. ``find_package(Torch)``.

Sets ``LibTorch_FOUND``, ``LibTorch_VERSION`` and ``LibTorch_DIR_USED`` (empty when it is the project's own Torch).
With ``LOCKSTEP_CUDA`` the CUDA half of LibTorch is linked too.
#]=======================================================================]

set(LOCKSTEP_TORCH_DIR "" CACHE PATH "Folder of a LibTorch zip, or the torch folder of a wheel")

function(_libtorch_choose_dir out)
  if(LOCKSTEP_TORCH_DIR)
    set(${out} ${LOCKSTEP_TORCH_DIR} PARENT_SCOPE)
    return()
  endif()
  if(TARGET torch OR TORCH_LIBRARIES)
    return()
  endif()
  set(deps ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../.deps)
  if(DEFINED ENV{LOCKSTEP_DEPS_DIR})
    set(deps $ENV{LOCKSTEP_DEPS_DIR})
  endif()
  file(GLOB candidates ${deps}/libtorch-*/torch)
  list(SORT candidates COMPARE NATURAL ORDER DESCENDING)
  foreach(candidate ${candidates} ${LibTorch_HINT})
    if(EXISTS ${candidate}/lib/libtorch_cpu.so)
      file(REAL_PATH ${candidate} candidate)
      set(${out} ${candidate} PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

function(_libtorch_read_version out include_dirs)
  find_file(header torch/version.h PATHS ${include_dirs} NO_DEFAULT_PATH NO_CACHE)
  if(NOT header)
    return()
  endif()
  file(STRINGS ${header} lines REGEX "^#define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
  list(TRANSFORM lines REPLACE "^.* ([0-9]+)$" "\\1")
  list(JOIN lines "." version)
  set(${out} ${version} PARENT_SCOPE)
endfunction()

# What a wheel's libraries need lies in folders that only their own run path knows; the linker wants to look into them too.
function(_libtorch_link_companions dir)
  file(GLOB companions ${dir}/../torch.libs ${dir}/../nvidia/*/lib)
  foreach(companion ${companions})
    file(REAL_PATH ${companion} companion)
    target_link_options(LibTorch::LibTorch INTERFACE LINKER:-rpath-link,${companion})
  endforeach()
endfunction()

# The folder of a zip or a wheel as imported targets; CMake gives programs the run path to it by itself.
function(_libtorch_import dir)
  set(libraries torch_cpu c10)
  if(LOCKSTEP_CUDA)
    list(APPEND libraries torch_cuda c10_cuda)
  endif()
  add_library(LibTorch::LibTorch INTERFACE IMPORTED)
  foreach(library ${libraries})
    add_library(LibTorch::${library} SHARED IMPORTED)
    set_target_properties(LibTorch::${library} PROPERTIES
      IMPORTED_LOCATION ${dir}/lib/lib${library}.so
      INTERFACE_INCLUDE_DIRECTORIES "${dir}/include;${dir}/include/torch/csrc/api/include")
    target_link_libraries(LibTorch::LibTorch INTERFACE LibTorch::${library})
  endforeach()
  # LibTorch registers its kernels when it is loaded, which no undefined symbol tells the linker.
  target_link_options(LibTorch::LibTorch INTERFACE LINKER:--no-as-needed)
endfunction()

set(_libtorch_help "give -DLOCKSTEP_TORCH_DIR=<LibTorch zip folder or a wheel's torch folder>, or run scripts/setup")
set(LibTorch_DIR_USED "")
_libtorch_choose_dir(LibTorch_DIR_USED)

if(LibTorch_DIR_USED)
  set(LibTorch_LIBRARY ${LibTorch_DIR_USED}/lib/libtorch_cpu.so)
  if(NOT EXISTS ${LibTorch_LIBRARY})
    set(LibTorch_NOT_FOUND_MESSAGE "${LibTorch_DIR_USED} holds no lib/libtorch_cpu.so: ${_libtorch_help}")
    unset(LibTorch_LIBRARY)
  elseif(LOCKSTEP_CUDA AND NOT EXISTS ${LibTorch_DIR_USED}/lib/libtorch_cuda.so)
    set(LibTorch_NOT_FOUND_MESSAGE "LOCKSTEP_CUDA is ON, but ${LibTorch_DIR_USED} is a LibTorch without CUDA")
    unset(LibTorch_LIBRARY)
  endif()
  _libtorch_read_version(LibTorch_VERSION
    "${LibTorch_DIR_USED}/include;${LibTorch_DIR_USED}/include/torch/csrc/api/include")
else()
  if(NOT TARGET torch AND NOT TORCH_LIBRARIES)
    find_package(Torch QUIET)
  endif()
  if(TORCH_LIBRARIES)
    set(LibTorch_LIBRARY ${TORCH_LIBRARIES})
  elseif(TARGET torch)
    set(LibTorch_LIBRARY torch)
    get_target_property(TORCH_INCLUDE_DIRS torch INTERFACE_INCLUDE_DIRECTORIES)
  else()
    set(LibTorch_NOT_FOUND_MESSAGE "no LibTorch: ${_libtorch_help}")
  endif()
  _libtorch_read_version(LibTorch_VERSION "${TORCH_INCLUDE_DIRS}")
endif()

if(LibTorch_NOT_FOUND_MESSAGE AND LibTorch_FIND_REQUIRED)
  message(FATAL_ERROR "${LibTorch_NOT_FOUND_MESSAGE}")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch REQUIRED_VARS LibTorch_LIBRARY VERSION_VAR LibTorch_VERSION)

if(LibTorch_FOUND AND NOT TARGET LibTorch::LibTorch)
  if(LibTorch_DIR_USED)
    _libtorch_import(${LibTorch_DIR_USED})
    _libtorch_link_companions(${LibTorch_DIR_USED})
    # Kept, so that a build directory stays with the LibTorch it began with.
    set_property(CACHE LOCKSTEP_TORCH_DIR PROPERTY VALUE ${LibTorch_DIR_USED})
  else()
    add_library(LibTorch::LibTorch INTERFACE IMPORTED)
    target_link_libraries(LibTorch::LibTorch INTERFACE ${LibTorch_LIBRARY})
    target_include_directories(LibTorch::LibTorch INTERFACE ${TORCH_INCLUDE_DIRS})
    if(TORCH_INSTALL_PREFIX)
      _libtorch_link_companions(${TORCH_INSTALL_PREFIX})
    endif()
  endif()
endif()
